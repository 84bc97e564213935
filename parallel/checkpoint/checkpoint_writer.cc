#include "parallel/checkpoint/checkpoint_writer.h"

#include <ATen/ATen.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "core/os/files.h"
#include "fmt/format.h"
#include "parallel/checkpoint/agreement.h"
#include "parallel/checkpoint/background_saves.h"
#include "parallel/checkpoint/commit.h"
#include "parallel/checkpoint/file_tensors.h"
#include "parallel/checkpoint/patience.h"
#include "parallel/checkpoint/raised_by.h"
#include "parallel/checkpoint/saved_state.h"
#include "parallel/checkpoint/seen_sequences.h"
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

// The files' headers; those of one rank are those of all.
ByFile<SafetensorsHeader> lay_out(const std::string& path, const FileTensors& tensors) {
  ByFile<SafetensorsHeader> headers;
  for (size_t file = 0; file < headers.size(); ++file) {
    Outline outline;
    for (const auto& [name, tensor] : tensors[file]) outline[name] = tensor.info;
    auto header = LayOutSafetensors(path + "/" + kFileNames[file], outline);
    if (!header.ok()) throw CheckpointFileError(std::string(header.status().message()));
    headers[file] = *std::move(header);
  }
  return headers;
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

std::vector<bool> CheckpointWriter::find_sees(const Group& group, c10::Device device,
                                              const std::string& save) {
  const auto ranks = static_cast<size_t>(group->getSize());
  if (ranks == 1) return {true};
  if (seen_by_ && seen_by_->lock() == group) return sees_;
  // A name that nobody has asked for before: no file system remembers that it was missing.
  const std::string probe = path_ + "/.probe-" + save;
  const bool leads = group->getRank() == 0;
  std::string problem;
  run_patiently(*group, device, [&] {
    if (!leads) return;
    absl::Status made = os::MakeDirectories(path_);
    if (made.ok()) made = os::WriteFileAtomically(probe, save, 0666, /*sync=*/false);
    if (!made.ok()) problem = "cannot create " + std::string(made.message());
  });
  problem = common_problem(*group, device, problem);
  if (!problem.empty()) throw CheckpointFileError(problem);
  bool has = false;
  run_patiently(*group, device, [&] {
    const auto content = os::ReadFile(probe);
    has = content.ok() && *content == save;
    if (leads && !has) problem = "cannot read what was just written: " + probe;
  });
  problem = common_problem(*group, device, problem);
  if (!problem.empty()) throw CheckpointFileError(problem);
  const std::vector<int64_t> sees = number_by_rank(*group, device, has ? 1 : 0);
  run_patiently(*group, device, [&] {
    if (leads) ::unlink(probe.c_str());
  });
  sees_.assign(sees.begin(), sees.end());
  seen_by_ = WeakGroup(group);
  return sees_;
}

void CheckpointWriter::save(const torch::nn::Module& module, torch::optim::Optimizer& optimizer,
                            const TrainingProgress& progress, const KeptValues& kept,
                            bool in_background) {
  wait();
  const Group group = options_.group.get();
  const Parts parts(module, kept);
  const c10::Device device = parts.device();
  auto [manifest, tensors] = saved_state(*group, parts, optimizer, progress, kept);
  manifest.identity = options_.identity;
  // The greatest of the ranks'.
  manifest.sequence = 1 - least(*group, device, {-seen_sequence(path_)})[0];
  const ByFile<SafetensorsHeader> headers = lay_out(path_, tensors);

  const bool leads = group->getRank() == 0;
  const CommitRight right = right_of(path_);
  manifest.save = random_number();
  StepWriter step_writer = writer_of(right, manifest.save);
  if (group->getSize() > 1) {
    // Those of rank 0.
    json token = {{"save", manifest.save}, {"writer", step_writer.name}};
    token = json::parse(broadcast_text(*group, device, leads ? token.dump() : ""));
    manifest.save = token["save"].get<std::string>();
    step_writer.name = token["writer"].get<std::string>();
  }
  const std::string number = manifest.save;
  const SavePlace place{group->getRank(), find_sees(group, device, number), device};

  SaveTask task{.directory = path_,
                .files = {},
                .manifest = std::move(manifest),
                .rank = group->getRank(),
                .ranks = group->getSize(),
                .sees_directory = place.sees[static_cast<size_t>(group->getRank())],
                .writer = std::move(step_writer),
                .retention = {options_.keep, options_.keep_for, options_.keep_every},
                .hook = hook_,
                .timeout = options_.timeout,
                .prepare =
                    [path = path_, right, before = leads ? previous_ : nullptr] {
                      if (before) before->wait_left();
                      finish_committed(path, right);
                    },
                .say = say};
  std::vector<size_t> places(headers.size());
  for (size_t file = 0; file < headers.size(); ++file) {
    if (file == kKept && tensors[file].empty()) continue;
    places[file] = task.files.size();
    task.files.push_back(
        {kFileNames[file], EncodeSafetensorsHeader(headers[file]), headers[file].file_bytes});
  }
  std::shared_ptr<BackgroundSave> save;
  do_together(*group, device, [&] {
    save = std::make_shared<BackgroundSave>(std::move(task), [&](std::function<bool()> is_stopped) {
      SaveMeeting meeting(group->getSize() == 1 ? nullptr : group->getStore()->clone(), number,
                          group->getSize(), std::move(is_stopped));
      if (leads) meeting.forget(std::exchange(previous_number_, number));
      return meeting;
    });
  });
  previous_ = save;
  const UnlessDone guard(*save);
  if (!in_background) {
    add_ranges(*save, std::make_shared<FileTensors>(std::move(tensors)), headers, places, place);
    return await(group, device, *save);
  }
  background_ = save;
  background_group_ = WeakGroup(group);
  background_device_ = device;
  note_background_save(save);
  add_copies(*save, tensors, headers, places, place);
}

void CheckpointWriter::add_ranges(BackgroundSave& save, const std::shared_ptr<FileTensors>& tensors,
                                  const ByFile<SafetensorsHeader>& headers,
                                  const std::vector<size_t>& places, const SavePlace& place) {
  list_ranges(
      *tensors, headers, place,
      [&](size_t file, std::vector<FileRange> ranges, std::shared_ptr<void> keep) {
        save.add(places[file], std::move(ranges), keep == nullptr ? tensors : std::move(keep));
      },
      [&](c10d::ProcessGroup& of) {
        await_all(of, place.device,
                  [&](milliseconds most) { return save.wait_for(most, kMostWaiting); });
      });
  save.close();
}

void CheckpointWriter::add_copies(BackgroundSave& save, const FileTensors& tensors,
                                  const ByFile<SafetensorsHeader>& headers,
                                  const std::vector<size_t>& places, const SavePlace& place) {
  std::vector<std::pair<size_t, std::vector<FileRange>>> copied;
  list_ranges(
      tensors, headers, place,
      [&](size_t file, std::vector<FileRange> ranges, std::shared_ptr<void> keep) {
        if (keep == nullptr) {
          copied.emplace_back(places[file], std::move(ranges));
        } else {
          save.add(places[file], std::move(ranges), std::move(keep));
        }
      },
      [](c10d::ProcessGroup&) {});
  const std::string problem = raised_by([&] { snapshot_.copy(copied, place.device.is_cuda()); });
  if (!problem.empty()) return save.fail("cannot copy what is to be written: " + problem);
  for (auto& [file, ranges] : copied) save.add(file, std::move(ranges), snapshot_.keep());
  save.close();
}

}  // namespace meshrun::detail
