#include "parallel/checkpoint/checkpoint_writer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "core/checkpoint/safetensors_index.h"
#include "fmt/format.h"
#include "parallel/checkpoint/agreement.h"
#include "parallel/checkpoint/background_saves.h"
#include "parallel/checkpoint/commit.h"
#include "parallel/checkpoint/file_tensors.h"
#include "parallel/checkpoint/patience.h"
#include "parallel/checkpoint/raised_by.h"
#include "parallel/checkpoint/save_leader.h"
#include "parallel/checkpoint/saved_state.h"
#include "parallel/checkpoint/seen_sequences.h"
#include "parallel/checkpoint/site_plan.h"
#include "parallel/checkpoint/site_ranges.h"
#include "parallel/checkpoint/together.h"

namespace meshrun::detail {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using Kind = SaveOutcome::Kind;

// What is on its way to the disk while pieces travel: a bound for memory.
constexpr uint64_t kMostWaiting = uint64_t{64} << 20;

// Gives a save up that an exception leaves behind: it must not become a checkpoint of what the
// program writes from now on.
class UnlessDone {
 public:
  explicit UnlessDone(BackgroundSave& save) : save_(save) {}
  ~UnlessDone() {
    if (exceptions_ < std::uncaught_exceptions()) save_.give_up();
  }
  UnlessDone(const UnlessDone&) = delete;
  UnlessDone& operator=(const UnlessDone&) = delete;

 private:
  BackgroundSave& save_;
  const int exceptions_ = std::uncaught_exceptions();
};

// The coordinator may know it before this rank's collectives do.
bool is_generation_over(const std::string& path) {
  try {
    right_of(path).newest();
    return false;
  } catch (const CommitRefused&) {
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

std::string random_number() {
  std::random_device device;
  return fmt::format("{:08x}{:08x}", device(), device());
}

// Adds the files of this rank's site. Returns the place of each kind among them.
ByFile<size_t> add_files(SaveTask& task, const SitePlan& plan, bool keeps) {
  ByFile<size_t> places = {};
  for (const FileKind kind : {kModel, kOptimizer, kKept}) {
    if (kind == kKept && !keeps) continue;
    places[kind] = task.files.size();
    task.files.push_back(
        {site_file_name(kind, static_cast<size_t>(task.site), static_cast<size_t>(task.sites)),
         plan.heads[kind], plan.headers[kind].file_bytes});
  }
  return places;
}

// Collective: the manifest of rank 0, on all ranks, since each site writes the same.
Manifest of_rank_0(c10d::ProcessGroup& group, c10::Device device, Manifest own,
                   const Sites& sites) {
  own.hosts = sites.hosts;
  return value_of(
      DecodeManifest("the manifest of rank 0", broadcast_text(group, device, EncodeManifest(own))));
}

}  // namespace

CheckpointWriter::CheckpointWriter(std::string path, CheckpointOptions options)
    : path_(std::move(path)),
      options_(std::move(options)),
      hook_(options_.on_commit.empty() ? nullptr
                                       : std::make_shared<CommitHook>(options_.on_commit, say)) {
  if (hook_) note_commit_hook(hook_);
  TORCH_CHECK_VALUE(options_.keep >= 1, "A checkpoint directory keeps at least 1 checkpoint, not ",
                    static_cast<int64_t>(options_.keep));
  TORCH_CHECK_VALUE(options_.keep_every >= 0,
                    "A checkpoint directory keeps every checkpoint whose step is a multiple of "
                    "keep_every, which is ",
                    static_cast<int64_t>(options_.keep_every));
}

CheckpointWriter::~CheckpointWriter() {
  // An exception is on its way, of a lost rank perhaps: then the others' parts may never come.
  if (background_ && std::uncaught_exceptions() > 0) background_->give_up();
  if (background_ && !background_->is_given_up()) finish_and_say(*background_);
  if (hook_) finish(*hook_);
}

bool CheckpointWriter::is_writing() const { return background_ && !background_->is_done(); }

void CheckpointWriter::drop_of_other_world(const Group& group) {
  if (!background_) return;
  const Group of = background_group_->lock();
  if (of == group) return;
  if (!background_->is_done()) {
    background_->give_up();
    say(fmt::format("the checkpoint of step {} was given up with its world", background_->step()));
  }
  background_.reset();
}

void CheckpointWriter::await(const Group& group, c10::Device device, BackgroundSave& save) {
  // A rank whose thread cannot speak with the others' ends the save for them.
  meet_until_done(
      *group, device,
      [&](milliseconds most) {
        const bool is_done = save.wait_for(most);
        const bool is_cut_off = is_done && save.outcome().kind == Kind::kGivenUp;
        return std::vector<int64_t>{is_done ? 1 : 0, is_cut_off ? 0 : 1};
      },
      [&](const std::vector<int64_t>& least) {
        if (least[1] == 0) save.give_up();
      });
  const SaveOutcome outcome = save.outcome();
  std::string text;
  if (outcome.kind != Kind::kWritten) {
    const bool is_refused = outcome.kind == Kind::kRefused ||
                            (outcome.kind == Kind::kGivenUp && is_generation_over(path_));
    text = (is_refused ? "r" : "f") + outcome.problem;
  }
  const bool is_news = save.is_news();
  const std::string problem = group->getSize() == 1 ? text : common_problem(*group, device, text);
  if (problem.empty()) return note_sequence(path_, outcome.sequence);
  if (is_news) raise_outcome(problem[0] == 'r' ? Kind::kRefused : Kind::kFailed, problem.substr(1));
}

void CheckpointWriter::wait() {
  const Group group = options_.group.get();
  drop_of_other_world(group);
  if (!background_) return;
  const auto save = std::exchange(background_, nullptr);
  const UnlessDone guard(*save);
  await(group, background_device_, *save);
}

const Sites& CheckpointWriter::sites_of(const Group& group, c10::Device device,
                                        const std::string& number) {
  if (sites_group_ && sites_group_->lock() == group) return sites_;
  sites_ = find_sites(*group, device, path_, number);
  sites_group_ = WeakGroup(group);
  return sites_;
}

const SitePlan& CheckpointWriter::plan_of(const FileTensors& tensors, const Sites& sites,
                                          const Group& group, c10::Device device) {
  const int64_t outline = digest_of_outline(tensors);
  // With several sites it refers to the tensors.
  const bool is_known = sites.count() == 1 && planned_outline_ == outline;
  if (!is_known) {
    planned_outline_.reset();
    plan_ = plan_files(tensors, sites, path_, *group, device);
    if (sites.count() == 1) planned_outline_ = outline;
  }
  return plan_;
}

void CheckpointWriter::save(const torch::nn::Module& module, torch::optim::Optimizer& optimizer,
                            const TrainingProgress& progress, const KeptValues& kept,
                            bool in_background) {
  wait();
  const Group group = options_.group.get();
  const Parts parts(module, kept);
  const c10::Device device = parts.device();
  auto [manifest, tensors, differing] = saved_state(*group, parts, optimizer, progress, kept);
  manifest.identity = options_.identity;
  // The greatest of the ranks'.
  manifest.sequence = 1 - least(*group, device, {-seen_sequence(path_)})[0];
  const CommitRight right = right_of(path_);
  manifest.save = random_number();
  StepWriter step_writer = writer_of(right, manifest.save);
  if (group->getSize() > 1) {
    // Those of rank 0.
    json token = {{"save", manifest.save}, {"writer", step_writer.name}};
    token = json::parse(broadcast_text(*group, device, token.dump()));
    manifest.save = token["save"].get<std::string>();
    step_writer.name = token["writer"].get<std::string>();
  }
  const std::string number = manifest.save;
  const Sites& sites = sites_of(group, device, number);
  if (sites.count() > 1) manifest = of_rank_0(*group, device, std::move(manifest), sites);
  const auto owned = std::make_shared<FileTensors>(std::move(tensors));
  const SitePlan& plan = plan_of(*owned, sites, group, device);

  const int rank = group->getRank();
  const size_t site = sites.of_rank[static_cast<size_t>(rank)];
  SaveTask task = task_of(plan, sites, rank, right);
  task.manifest = std::move(manifest);
  task.writer = std::move(step_writer);
  const ByFile<size_t> places = add_files(task, plan, /*keeps=*/!(*owned)[kKept].empty());
  std::shared_ptr<BackgroundSave> save;
  do_together(*group, device, [&] {
    save = std::make_shared<BackgroundSave>(std::move(task), [&](std::function<bool()> is_stopped) {
      SaveMeeting meeting(group->getSize() == 1 ? nullptr : group->getStore()->clone(), number,
                          std::move(is_stopped));
      const auto count = static_cast<int>(sites.count());
      if (rank == 0) forget_save(meeting, std::exchange(previous_number_, number), count);
      return meeting;
    });
  });
  previous_ = save;
  const UnlessDone guard(*save);
  const SavePlace place{rank, sites.members(site), device};
  const ListRanges list = [&](const TakeRanges& take,
                              const std::function<void(c10d::ProcessGroup&)>& wait) {
    const auto take_placed = [&](size_t file, std::vector<FileRange> ranges,
                                 std::shared_ptr<void> keep) {
      take(places[file], std::move(ranges), std::move(keep));
    };
    if (sites.count() == 1) return list_ranges(*owned, plan.headers, place, take_placed, wait);
    list_site_ranges(*owned, plan, sites, *group, place, take_placed, wait);
  };
  if (!in_background) {
    add_ranges(*save, list, device, owned);
    return await(group, device, *save);
  }
  background_ = save;
  background_group_ = WeakGroup(group);
  background_device_ = device;
  note_background_save(save);
  add_copies(*save, list, device);
}

SaveTask CheckpointWriter::task_of(const SitePlan& plan, const Sites& sites, int rank,
                                   const CommitRight& right) const {
  SaveTask task;
  task.directory = path_;
  task.pieces = plan.pieces;
  if (!plan.index.empty()) task.index_name = kSafetensorsIndexName;
  task.index = plan.index;
  task.rank = rank;
  task.ranks = static_cast<int>(sites.of_rank.size());
  task.site = static_cast<int>(sites.of_rank[static_cast<size_t>(rank)]);
  task.sites = static_cast<int>(sites.count());
  task.leads = sites.leads(rank);
  task.retention = {options_.keep, options_.keep_for, options_.keep_every};
  task.hook = hook_;
  task.timeout = options_.timeout;
  task.say = say;
  const auto before = task.leads ? previous_ : nullptr;
  task.prepare = [path = path_, right, before, is_one = sites.count() == 1]() -> std::string {
    if (before) before->wait_left();
    if (!is_one) return finish_and_tell(path, right);
    finish_committed(path, right);
    return "";
  };
  task.prepare_as_told = [path = path_, before](const std::string& told) {
    if (before) before->wait_left();
    finish_as_told(path, told);
  };
  return task;
}

void CheckpointWriter::add_ranges(BackgroundSave& save, const ListRanges& list, c10::Device device,
                                  const std::shared_ptr<void>& tensors) {
  list(
      [&](size_t file, std::vector<FileRange> ranges, std::shared_ptr<void> keep) {
        save.add(file, std::move(ranges), keep == nullptr ? tensors : std::move(keep));
      },
      [&](c10d::ProcessGroup& of) {
        await_all(of, device, [&](milliseconds most) { return save.wait_for(most, kMostWaiting); });
      });
  save.close();
}

void CheckpointWriter::add_copies(BackgroundSave& save, const ListRanges& list,
                                  c10::Device device) {
  std::vector<std::pair<size_t, std::vector<FileRange>>> copied;
  list(
      [&](size_t file, std::vector<FileRange> ranges, std::shared_ptr<void> keep) {
        if (keep == nullptr) {
          copied.emplace_back(file, std::move(ranges));
        } else {
          save.add(file, std::move(ranges), std::move(keep));
        }
      },
      [](c10d::ProcessGroup&) {});
  const std::string problem = raised_by([&] { snapshot_.copy(copied, device.is_cuda()); });
  if (!problem.empty()) return save.fail("cannot copy what is to be written: " + problem);
  for (auto& [file, ranges] : copied) save.add(file, std::move(ranges), snapshot_.keep());
  save.close();
}

}  // namespace meshrun::detail
