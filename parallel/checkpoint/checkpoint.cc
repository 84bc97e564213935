#include "parallel/checkpoint/checkpoint.h"

#include <ATen/ATen.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>
#include <vector>

#include "core/mutex.h"
#include "parallel/base/digest.h"
#include "parallel/base/no_collectives.h"
#include "parallel/base/process.h"
#include "parallel/checkpoint/agreement.h"
#include "parallel/checkpoint/commit.h"
#include "parallel/checkpoint/contents.h"
#include "parallel/checkpoint/hand_on.h"
#include "parallel/checkpoint/kept_agreement.h"
#include "parallel/checkpoint/raised_by.h"
#include "parallel/checkpoint/random_streams.h"
#include "parallel/checkpoint/step_directories.h"
#include "parallel/checkpoint/stored_tensor.h"
#include "parallel/comm/interface/call_scope.h"
#include "parallel/manager/distributed_manager.h"
#include "parallel/nn/optimizer_state.h"
#include "parallel/nn/sharded_parameters.h"

namespace meshrun {
namespace {

using at::Tensor;
using detail::kKeptFile;
using detail::kModelFile;
using detail::kOptimizerFile;
using detail::kStepName;
using detail::Loaded;
using detail::Mismatch;
using detail::moment_key;
using detail::Part;
using detail::Parts;
using nlohmann::json;

// The end of a call as rank 0 saw it.
enum class Outcome { kDone, kNothing, kDamaged, kMismatch, kRefused, kFile };

struct Result {
  Outcome outcome = Outcome::kDone;
  std::string problem;
};

// Runs rank 0's part. Nothing escapes, since other ranks wait.
template <typename Work>
Result guarded(const Work& work) {
  try {
    return {work(), ""};
  } catch (const Mismatch& error) {
    return {Outcome::kMismatch, error.what()};
  } catch (const CommitRefused& error) {
    return {Outcome::kRefused, error.what()};
  } catch (const DamagedCheckpoint& error) {
    return {Outcome::kDamaged, error.what()};
  } catch (const SafetensorsError& error) {
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

CommitRight right_of(const std::string& path) {
  agent::Agent* const agent =
      DistributedManager::is_initialized() ? DistributedManager::get().agent() : nullptr;
  return CommitRight(agent, path);
}

StepWriter writer_of(const std::string& path) {
  const CommitRight right = right_of(path);
  return {right.writer(), right.generation(),
          [right](int64_t step, const std::string& digest, const std::string& temporary) {
            right.commit(step, digest, temporary);
          }};
}

// The job's newest checkpoint in a directory, as the coordinator knows it.
struct Committed {
  int64_t step = 0;
  // It has its own name here.
  bool is_here = false;
  // What this generation has written lay here: if it is not, the program has removed it.
  bool is_of_this_generation = false;
};

// Gives it its own name, if its writer died before it did. Absent: the coordinator knows of none.
std::optional<Committed> finish_committed(const std::string& path) {
  const CommitRight right = right_of(path);
  const auto newest = right.newest();
  if (!newest) return std::nullopt;
  return Committed{newest->step,
                   finish_step_directory(path, newest->step, newest->digest, newest->temporary),
                   newest->generation == right.generation()};
}

// The step to load; absent: the one that was written last. Raises where the job would go on from
// fewer steps than it has done: rank 0 of an earlier generation may have been on another host.
std::optional<int64_t> step_to_load(const std::string& path) {
  const auto committed = finish_committed(path);
  if (!committed) return std::nullopt;
  if (committed->is_here) return committed->step;
  if (committed->is_of_this_generation) return std::nullopt;
  const std::vector<StepDirectory> found = list_step_directories(path);
  throw std::runtime_error(
      "the job's newest checkpoint in " + path + ", of step " + std::to_string(committed->step) +
      ", is not on " + host_name() +
      ", where rank 0 is now: it is on another host, or was removed. The newest here is " +
      (found.empty() ? "none" : "that of step " + std::to_string(found.back().manifest.step)) +
      ". Use a directory that all hosts share; or copy step-" + std::to_string(committed->step) +
      " from the host that wrote it; to go on from what is here, submit a new job");
}

// The sequence of the newest checkpoint that this process has seen in a directory; 0: none. Ranks
// that live on bring it to a rank 0 on another host, whose next checkpoint is above it.
class SeenSequences {
 public:
  static int64_t of(const std::string& path) {
    const MutexLock lock(mu());
    return all()[path];
  }
  static void add(const std::string& path, int64_t sequence) {
    const MutexLock lock(mu());
    all()[path] = std::max(all()[path], sequence);
  }

 private:
  static Mutex& mu() {
    static auto& mu = *new Mutex;
    return mu;
  }
  static std::map<std::string, int64_t>& all() {
    static auto& all = *new std::map<std::string, int64_t>;
    return all;
  }
};

// Collective, where ranks save other values, or a rank has none to save. `unsaved`: why this one
// has none.
[[noreturn]] void refuse(c10d::ProcessGroup& group, c10::Device device, const std::string& unsaved,
                         const detail::Digests& own) {
  const std::string problem = common_problem(group, device, unsaved);
  if (!problem.empty()) throw CheckpointFileError(problem);
  C10_THROW_ERROR(ValueError, detail::difference_between_ranks(group, device, &own) +
                                  "; rank 0's values are saved, so all ranks must have the same");
}

// As they were saved.
void load_generators(c10::Device device, const Manifest& manifest,
                     const c10d::ProcessGroup& group) {
  const auto& by_rank = manifest.random_generators_by_rank;
  if (by_rank.empty()) {
    detail::set_generator_states(device, manifest.random_generators);
  } else if (by_rank.size() == static_cast<size_t>(group.getSize())) {
    detail::set_generator_states(device, by_rank[static_cast<size_t>(group.getRank())]);
  } else {
    detail::derive_generators(device, manifest.random_generators, group.getRank());
  }
}

}  // namespace

CheckpointDirectory::CheckpointDirectory(std::string path, CheckpointOptions options)
    : path_(std::move(path)), options_(std::move(options)) {
  TORCH_CHECK_VALUE(options_.keep >= 1, "A checkpoint directory keeps at least 1 checkpoint, not ",
                    static_cast<int64_t>(options_.keep));
}

// Collective over `shard_group`.
bool CheckpointDirectory::holds_rank_0(const GroupArgument::Handle& shard_group,
                                       c10::Device device) {
  if (shard_group->getSize() == 1) return options_.group.get()->getRank() == 0;
  const auto known = holds_rank_0_.find(shard_group);
  if (known != holds_rank_0_.end()) return known->second;
  const int64_t own = options_.group.get()->getRank();
  return holds_rank_0_[shard_group] = least(*shard_group, device, {own})[0] == 0;
}

void CheckpointDirectory::save(const torch::nn::Module& module, torch::optim::Optimizer& optimizer,
                               const TrainingProgress& progress, const KeptValues& kept) {
  const CallScope scope("CheckpointDirectory::save");
  check_collectives_allowed([] { return "CheckpointDirectory::save()"; });
  check_parameters_of(optimizer, module);
  kept.check_stepped(module);
  kept.list_moments();
  const GroupArgument::Handle group = options_.group.get();
  const bool writes = group->getRank() == 0;
  const Parts parts(module, kept);
  const c10::Device device = parts.device();
  Manifest manifest;
  manifest.optimizer = optimizer_kind(optimizer);
  manifest.step = progress.step;
  manifest.identity = options_.identity;
  manifest.sampler = progress.sampler;
  manifest.optimizer_options = group_options(optimizer);
  manifest.random_generators = detail::generator_states(device);
  // On every rank, since all must keep the same.
  std::string unsaved = detail::raised_by([&] { manifest.kept_values = kept.saved(); });
  if (!unsaved.empty()) unsaved = "the save function of a kept value raised: " + unsaved;
  detail::Digests alike = detail::digests_of_kept(manifest.kept_values);
  alike["the number of steps"] = static_cast<uint64_t>(progress.step);
  if (!unsaved.empty()) alike[unsaved] = 0;
  const std::vector<bool> equal = are_equal(
      *group, device,
      {detail::digest_of_states(manifest.random_generators), detail::digest_of_all(alike)});
  // Where all are equal, all ranks have the same problem, or none.
  if (!equal[1] || !unsaved.empty()) refuse(*group, device, unsaved, alike);
  if (!equal[0]) {
    manifest.random_generators_by_rank =
        detail::gather_states(*group, device, manifest.random_generators);
  }

  // The greatest of the ranks'.
  int64_t sequence = -least(*group, device, {-SeenSequences::of(path_)})[0];

  TensorFile model_file;
  TensorFile optimizer_file;
  TensorFile kept_file;
  Result result;
  // Only rank 0 can fail here, after which it still takes part in what is collective.
  const auto store = [&](TensorFile& file, const std::string& name, const Tensor& tensor) {
    if (!writes || result.outcome != Outcome::kDone) return;
    result = guarded([&] {
      file.tensors[name] = to_stored(tensor);
      return Outcome::kDone;
    });
  };
  const auto gathered = [&](const Tensor& tensor, const Part& part) {
    return part.shard == nullptr || part.shard->group->getSize() == 1
               ? tensor
               : unsharded(tensor, *part.shard);
  };
  const auto takes_part = [&](const Part& part) {
    return part.shard == nullptr ? writes : holds_rank_0(part.shard->group, device);
  };
  for (const Part& part : parts.kept) {
    if (takes_part(part)) store(kept_file, part.name, gathered(part.tensor, part));
  }
  for (const Part& part : parts.list) {
    // On every rank: it may be collective (ParameterStates).
    ParameterState state;
    if (part.is_parameter) state = parameter_state(optimizer, part.tensor);
    if (!takes_part(part)) continue;
    store(model_file, part.name, gathered(part.tensor, part));
    if (!part.is_parameter) continue;
    for (const std::string& moment : moment_names(optimizer)) {
      const auto own = state.moments.find(moment);
      const bool has = own != state.moments.end();
      // A rank without the moment must not leave others alone in the gathering.
      const Tensor whole = gathered(has ? own->second : at::zeros_like(part.tensor.detach()), part);
      if (has) store(optimizer_file, moment_key(moment, part.name), whole);
    }
    if (state.step) {
      store(optimizer_file, moment_key(kStepName, part.name),
            at::scalar_tensor(*state.step, at::kLong));
    }
  }
  if (writes && result.outcome == Outcome::kDone) {
    result = guarded([&] {
      finish_committed(path_);
      std::map<std::string, std::string> files;
      const auto encode = [&](const char* name, const TensorFile& file) {
        files[name] = encode_safetensors(path_ + "/" + name, file);
      };
      encode(kModelFile, model_file);
      encode(kOptimizerFile, optimizer_file);
      if (!kept_file.tensors.empty()) encode(kKeptFile, kept_file);
      manifest.sequence = sequence + 1;
      sequence = write_step_directory(path_, manifest, files, options_.keep, writer_of(path_));
      return Outcome::kDone;
    });
  }
  // The first character says which error it is, or that the rest is the sequence.
  constexpr char kWritten = 'w';
  const char kind = result.outcome == Outcome::kRefused ? 'r' : 'f';
  const std::string text = broadcast_text(
      *group, device,
      result.problem.empty() ? kWritten + std::to_string(sequence) : kind + result.problem);
  if (text[0] == kWritten) {
    SeenSequences::add(path_, std::stoll(text.substr(1)));
  } else {
    raise(text[0] == 'r' ? Outcome::kRefused : Outcome::kFile, text.substr(1));
  }
}

std::optional<TrainingProgress> CheckpointDirectory::load(torch::nn::Module& module,
                                                          torch::optim::Optimizer& optimizer,
                                                          const KeptValues& kept) {
  const CallScope scope("CheckpointDirectory::load");
  check_collectives_allowed([] { return "CheckpointDirectory::load()"; });
  check_parameters_of(optimizer, module);
  kept.check_stepped(module);
  kept.list_moments();
  const GroupArgument::Handle group = options_.group.get();
  const Parts parts(module, kept);
  const c10::Device device = parts.device();
  optimizer_kind(optimizer);  // raises for an unknown one

  std::optional<Loaded> loaded;
  json header;
  if (group->getRank() == 0) {
    const Result result = guarded([&] {
      loaded = detail::read_newest(path_, step_to_load(path_), options_.identity,
                                   options_.former_file, parts, optimizer, kept);
      return loaded ? Outcome::kDone : Outcome::kNothing;
    });
    header = {{"outcome", static_cast<int>(result.outcome)}, {"problem", result.problem}};
  }
  const std::string text =
      broadcast_text(*group, device, header.dump(-1, ' ', false, json::error_handler_t::replace));
  header = json::parse(text);
  const auto outcome = static_cast<Outcome>(header.at("outcome").get<int>());
  raise(outcome, header.at("problem").get<std::string>());
  if (outcome == Outcome::kNothing) return std::nullopt;

  Manifest manifest;
  try {
    manifest =
        detail::hand_on(group, 0, loaded, "the checkpoint in " + path_, parts, optimizer, kept);
  } catch (const Mismatch& error) {
    throw CheckpointMismatchError(error.what());
  }
  SeenSequences::add(path_, manifest.sequence);
  load_generators(device, manifest, *group);
  return TrainingProgress{manifest.step, manifest.sampler};
}

void write_parameters(const std::string& path, const torch::nn::Module& module) {
  TensorFile file;
  const KeptValues nothing;
  const Parts parts(module, nothing);
  for (const Part& part : parts.list) {
    if (!part.is_parameter) continue;
    file.tensors[part.name] =
        to_stored(part.shard == nullptr ? part.tensor : unsharded(part.tensor, *part.shard));
  }
  write_safetensors(path, file);
}

}  // namespace meshrun
