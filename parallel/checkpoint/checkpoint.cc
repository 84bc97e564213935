#include "parallel/checkpoint/checkpoint.h"

#include <ATen/ATen.h>

#include <functional>
#include <map>
#include <span>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>

#include "core/hash.h"
#include "core/os/files.h"
#include "parallel/base/no_collectives.h"
#include "parallel/checkpoint/agreement.h"
#include "parallel/checkpoint/checkpoint_writer.h"
#include "parallel/checkpoint/contents.h"
#include "parallel/checkpoint/hand_on.h"
#include "parallel/checkpoint/newest_step.h"
#include "parallel/checkpoint/patience.h"
#include "parallel/checkpoint/random_streams.h"
#include "parallel/checkpoint/read_checkpoint.h"
#include "parallel/checkpoint/region_exchange.h"
#include "parallel/checkpoint/seen_files.h"
#include "parallel/checkpoint/seen_sequences.h"
#include "parallel/checkpoint/sites.h"
#include "parallel/checkpoint/status_errors.h"
#include "parallel/checkpoint/stored_contents.h"
#include "parallel/checkpoint/tensor_file.h"
#include "parallel/comm/interface/call_scope.h"
#include "parallel/manager/number_device.h"
#include "parallel/nn/optimizer_state.h"

namespace meshrun {
namespace {

using detail::Mismatch;
using detail::Parts;

// The end of a rank's part.
enum class Outcome { kDone, kDamaged, kMismatch, kRefused, kFile };

struct Result {
  Outcome outcome = Outcome::kDone;
  std::string problem;
};

// Runs a rank's part. Nothing escapes, since other ranks wait.
Result guarded(const std::function<void()>& work) {
  try {
    work();
    return {};
  } catch (const Mismatch& error) {
    return {Outcome::kMismatch, error.what()};
  } catch (const CommitRefused& error) {
    return {Outcome::kRefused, error.what()};
  } catch (const DamagedCheckpoint& error) {
    return {Outcome::kDamaged, error.what()};
  } catch (const c10::Error& error) {
    return {Outcome::kFile, error.what_without_backtrace()};
  } catch (const std::exception& error) {
    return {Outcome::kFile, error.what()};
  }
}

void raise(Outcome outcome, const std::string& problem) {
  if (outcome == Outcome::kDamaged) throw CheckpointDamagedError(problem);
  if (outcome == Outcome::kMismatch) throw CheckpointMismatchError(problem);
  if (outcome == Outcome::kRefused) throw CheckpointRefusedError(problem);
  if (outcome == Outcome::kFile) throw CheckpointFileError(problem);
}

// Collective: runs a rank's part, which may take as long as a disk does. What one rank has met is
// raised on all. `remedy`: what to do about damage, as the end of a sentence.
void do_patiently(c10d::ProcessGroup& group, c10::Device device, const std::function<void()>& work,
                  const std::string& remedy = "") {
  Result own;
  detail::run_patiently(group, device, [&] { own = guarded(work); });
  if (own.outcome == Outcome::kDamaged) own.problem += remedy;
  const char kind = static_cast<char>('0' + static_cast<int>(own.outcome));
  const bool is_problem = own.outcome != Outcome::kDone;
  const std::string common = common_problem(group, device, is_problem ? kind + own.problem : "");
  if (common.empty()) return;
  raise(static_cast<Outcome>(common[0] - '0'), common.substr(1));
}

// Null where this rank does not see the checkpoint.
std::unique_ptr<detail::CheckpointReader> open_if_seen(const std::string& path,
                                                       const CommittedStep& step) {
  const std::string manifest = path + "/" + kManifestName;
  const auto text = os::ReadFile(manifest);
  if (!text.ok() || Sha256(*text) != step.digest) return nullptr;
  return std::make_unique<detail::CheckpointReader>(
      StepDirectory{path, value_of(DecodeManifest(manifest, *text))});
}

}  // namespace

CheckpointDirectory::CheckpointDirectory(std::string path, CheckpointOptions options)
    : writer_(std::make_shared<detail::CheckpointWriter>(path, options)),
      path_(std::move(path)),
      options_(std::move(options)) {}

namespace {

void check_call(const char* name, const torch::nn::Module& module,
                torch::optim::Optimizer& optimizer, const KeptValues& kept) {
  check_collectives_allowed([&] { return std::string(name) + "()"; });
  check_parameters_of(optimizer, module);
  kept.check_stepped(module);
  kept.list_moments();
  optimizer_kind(optimizer);  // raises for an unknown one
}

}  // namespace

void CheckpointDirectory::save(const torch::nn::Module& module, torch::optim::Optimizer& optimizer,
                               const TrainingProgress& progress, const KeptValues& kept) {
  constexpr const char* kName = "CheckpointDirectory::save";
  const CallScope scope(kName);
  check_call(kName, module, optimizer, kept);
  writer_->save(module, optimizer, progress, kept, /*in_background=*/false);
}

void CheckpointDirectory::save_async(const torch::nn::Module& module,
                                     torch::optim::Optimizer& optimizer,
                                     const TrainingProgress& progress, const KeptValues& kept) {
  constexpr const char* kName = "CheckpointDirectory::save_async";
  const CallScope scope(kName);
  check_call(kName, module, optimizer, kept);
  writer_->save(module, optimizer, progress, kept, /*in_background=*/true);
}

void CheckpointDirectory::wait() {
  constexpr const char* kName = "CheckpointDirectory::wait";
  const CallScope scope(kName);
  check_collectives_allowed([&] { return std::string(kName) + "()"; });
  writer_->wait();
}

bool CheckpointDirectory::is_writing() const { return writer_->is_writing(); }

void CheckpointDirectory::check_writable() const {
  constexpr const char* kName = "CheckpointDirectory::check_writable";
  const CallScope scope(kName);
  check_collectives_allowed([&] { return std::string(kName) + "()"; });
  const GroupArgument::Handle group = options_.group.get();
  detail::check_writable(*group, number_device(*group), path_);
}

bool CheckpointDirectory::has_committed() const {
  constexpr const char* kName = "CheckpointDirectory::has_committed";
  const CallScope scope(kName);
  check_collectives_allowed([&] { return std::string(kName) + "()"; });
  const GroupArgument::Handle group = options_.group.get();
  const c10::Device device = number_device(*group);
  return detail::has_commit(*group, device, path_, [&](const std::function<void()>& part) {
    do_patiently(*group, device, part);
  });
}

std::optional<TrainingProgress> CheckpointDirectory::load(torch::nn::Module& module,
                                                          torch::optim::Optimizer& optimizer,
                                                          const KeptValues& kept) {
  constexpr const char* kName = "CheckpointDirectory::load";
  const CallScope scope(kName);
  check_call(kName, module, optimizer, kept);
  writer_->wait();
  const GroupArgument::Handle group = options_.group.get();
  const Parts parts(module, kept);
  const c10::Device device = parts.device();

  std::string remedy;
  // What is damaged is found before anything is changed.
  const auto together = [&](const std::function<void()>& work) {
    do_patiently(*group, device, work, remedy);
  };
  const auto newest = detail::find_newest(*group, device, path_, options_.former_file, together);
  if (!newest) return std::nullopt;
  remedy = newest->remedy;
  const std::string path = named_path(path_, newest->committed.step);
  std::unique_ptr<detail::CheckpointReader> reader;
  together([&] { reader = open_if_seen(path, newest->committed); });
  const detail::SeenFiles seen(*group, device, reader.get());
  if (!seen.root()) throw CheckpointFileError(path + " has changed while it was read");
  const int root = *seen.root();
  const detail::OutlinesByFile stored = seen.outlines();
  std::optional<detail::Contents> contents;
  together([&] {
    if (group->getRank() != root) return;
    contents =
        detail::contents_of(reader->step(), stored, options_.identity, parts, optimizer, kept);
  });
  together([&] { seen.verify(); });

  const auto fill = [&](std::vector<detail::Target>& targets) {
    if (seen.is_whole_everywhere()) return together([&] { reader->fill(targets); });
    const std::vector<detail::HeldRegion> nothing;
    detail::fill_from_regions(
        group, device, reader ? reader->held() : nothing, targets,
        [&](size_t index, uint64_t from, std::span<char> to) { reader->read(index, from, to); });
  };
  Manifest manifest;
  try {
    manifest = detail::hand_on(group, root, contents, "the checkpoint in " + path_, parts,
                               optimizer, kept, fill);
  } catch (const Mismatch& error) {
    throw CheckpointMismatchError(error.what());
  } catch (const DamagedCheckpoint& error) {
    throw CheckpointDamagedError(error.what() + remedy);
  } catch (const std::runtime_error& error) {
    throw CheckpointFileError(error.what());
  }
  detail::note_sequence(path_, manifest.sequence);
  detail::set_saved_generators(device, manifest, *group);
  return TrainingProgress{manifest.step, manifest.sampler};
}

void write_parameters(const std::string& path, const torch::nn::Module& module) {
  const KeptValues nothing;
  const Parts parts(module, nothing);
  std::map<std::string, at::Tensor> tensors;
  for (const detail::Part& part : parts.list) {
    if (part.is_parameter) tensors[part.name] = part.whole();
  }
  write_tensors(path, tensors);
}

}  // namespace meshrun
