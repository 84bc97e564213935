#include "parallel/checkpoint/contents.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string_view>

#include "parallel/base/sharded_key.h"
#include "parallel/checkpoint/step_directories.h"
#include "parallel/checkpoint/stored_tensor.h"
#include "parallel/nn/optimizer_state.h"

namespace meshrun::detail {
namespace {

std::string describe(const std::string& dtype, const std::vector<int64_t>& shape) {
  return c10::str(dtype, " ", at::IntArrayRef(shape));
}

void check_tensor(const std::string& file, const TensorFile& tensors, const std::string& name,
                  const StoredTensor& wanted) {
  const auto found = tensors.tensors.find(name);
  if (found == tensors.tensors.end()) throw Mismatch(file + " lacks " + name);
  const StoredTensor& stored = found->second;
  if (stored.dtype != wanted.dtype || stored.shape != wanted.shape) {
    throw Mismatch(file + " holds " + name + " as " + describe(stored.dtype, stored.shape) +
                   ", but this run's is " + describe(wanted.dtype, wanted.shape));
  }
}

void check_no_more(const std::string& file, const TensorFile& tensors,
                   const std::set<std::string>& known) {
  for (const auto& [name, tensor] : tensors.tensors) {
    if (!known.contains(name)) throw Mismatch(file + " holds " + name + ", which this run lacks");
  }
}

void check_parts(const std::string& file, const TensorFile& tensors,
                 const std::vector<Part>& parts) {
  std::set<std::string> known;
  for (const Part& part : parts) known.insert(part.name);
  const std::string hint = hint_on_wrapper(names_of(tensors.tensors), known);
  for (const Part& part : parts) {
    if (!hint.empty() && !tensors.tensors.contains(part.name)) {
      throw Mismatch(file + " lacks " + part.name + hint);
    }
    check_tensor(file, tensors, part.name, expected(part));
  }
  check_no_more(file, tensors, known);
}

void check_optimizer(const std::string& file, const TensorFile& tensors, const Parts& parts,
                     const torch::optim::Optimizer& optimizer) {
  std::set<std::string> known;
  for (const Part& part : parts.list) {
    if (!part.is_parameter) continue;
    std::set<std::string> found;
    for (const std::string& moment : moment_names(optimizer)) {
      const std::string key = moment_key(moment, part.name);
      if (!tensors.tensors.contains(key)) continue;
      check_tensor(file, tensors, key, expected(part));
      found.insert(moment);
      known.insert(key);
    }
    const std::string step = moment_key(kStepName, part.name);
    if (tensors.tensors.contains(step)) check_tensor(file, tensors, step, {"I64", {}, ""});
    known.insert(step);
    if (found.empty()) continue;
    std::vector<std::string> required = required_moments(optimizer);
    if (counts_steps(optimizer)) required.push_back(kStepName);
    for (const std::string& moment : required) {
      const std::string key = moment_key(moment, part.name);
      if (!tensors.tensors.contains(key)) throw Mismatch(file + " lacks " + key);
    }
  }
  check_no_more(file, tensors, known);
}

void check_identity(const StepDirectory& checkpoint,
                    const std::map<std::string, std::string>& identity, const std::string& kind) {
  const std::string what = "the checkpoint " + checkpoint.path + " was written with ";
  const std::string remedy = "; give the same flags, or another directory";
  const auto& theirs = checkpoint.manifest.identity;
  for (const auto& [flag, ours] : identity) {
    const auto found = theirs.find(flag);
    const std::string value = found == theirs.end() ? "nothing" : found->second;
    if (value != ours) {
      throw Mismatch(what + flag + " " + value + ", but this run has " + ours + remedy);
    }
  }
  for (const auto& [flag, value] : theirs) {
    if (!identity.contains(flag)) {
      throw Mismatch(what + flag + " " + value + ", but this run has nothing" + remedy);
    }
  }
  if (checkpoint.manifest.optimizer != kind) {
    throw Mismatch(what + "the optimizer " + checkpoint.manifest.optimizer + ", but this run has " +
                   kind);
  }
}

// Its parts are on ranks that the parameter alone does not name.
void refuse_sharded(const std::string& name, const at::Tensor& tensor) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !is_sharded(tensor), name,
      " is a ShardTensor, and checkpoints hold tensors that a rank has whole, or in the pieces of "
      "a ShardedParameters module: give a module whose ",
      name, " is the ShardTensor's full_tensor()");
}

}  // namespace

std::string hint_on_wrapper(const std::set<std::string>& theirs,
                            const std::set<std::string>& ours) {
  constexpr std::string_view kPrefix = "module.";
  // Whether all that `some` have beyond `others` has the prefix, and is theirs without it. Buffers
  // may be missing altogether.
  const auto are_wrapped = [&](const std::set<std::string>& some,
                               const std::set<std::string>& others) {
    bool is_any = false;
    for (const std::string& name : some) {
      if (others.contains(name)) continue;
      if (!name.starts_with(kPrefix)) return false;
      is_any = is_any || others.contains(name.substr(kPrefix.size()));
    }
    return is_any;
  };
  if (are_wrapped(ours, theirs)) {
    return "; this module's names begin with \"module.\", as a DistributedDataParallel's do: pass "
           "the wrapped module";
  }
  if (are_wrapped(theirs, ours)) {
    return "; its names begin with \"module.\", as a DistributedDataParallel's do: write the "
           "wrapped module, or pass the wrapper here";
  }
  return "";
}

StoredTensor expected(const Part& part) {
  // Tensor without elements, but with the dtype and the number of dimensions that storing gives.
  StoredTensor stored = to_stored(at::empty({0}, part.tensor.options().device(at::kCPU)));
  const bool is_pair = stored.shape.size() == 2;
  stored.shape = part.global_shape();
  if (is_pair) stored.shape.push_back(2);
  return stored;
}

std::string moment_key(const std::string& moment, const std::string& parameter) {
  return moment + "." + parameter;
}

Parts::Parts(const torch::nn::Module& module, const KeptValues& kept_values)
    : shards(parameter_shards(module)) {
  for (const auto& item : module.named_parameters()) {
    refuse_sharded(item.key(), item.value());
    const auto shard = shards.find(item.key());
    list.push_back({item.key(), item.value(), shard == shards.end() ? nullptr : &shard->second,
                    /*is_parameter=*/true});
  }
  for (const auto& item : module.named_buffers()) {
    // A norm without running statistics registers some that are undefined.
    if (!item.value().defined()) continue;
    refuse_sharded(item.key(), item.value());
    list.push_back({item.key(), item.value()});
  }
  for (const auto& [name, value] : kept_values.tensors()) {
    kept.push_back({name, value.tensor, value.shard ? &*value.shard : nullptr});
  }
}

c10::Device Parts::device() const {
  return list.empty() ? c10::Device(c10::kCPU) : list.front().tensor.device();
}

std::vector<std::string> Loaded::kept_names() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : kept.tensors) names.push_back(name);
  for (const auto& [name, bytes] : manifest.kept_values) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

namespace {

// What to do where the newest is damaged. Nothing falls back by itself: steps would be lost unseen.
std::string older_one_of(const std::vector<StepDirectory>& checkpoints) {
  if (checkpoints.size() < 2) return "";
  const StepDirectory& older = checkpoints[checkpoints.size() - 2];
  return "; to go on from the one before, " + older.path + ", remove " + checkpoints.back().path +
         " and submit a new job";
}

}  // namespace

std::optional<Loaded> read_newest(const std::string& directory, std::optional<int64_t> step,
                                  const std::map<std::string, std::string>& identity,
                                  const std::string& former_file, const Parts& parts,
                                  const torch::optim::Optimizer& optimizer,
                                  const KeptValues& kept) {
  std::vector<StepDirectory> checkpoints = list_step_directories(directory);
  if (checkpoints.empty()) {
    const auto former = std::filesystem::path(directory) / former_file;
    if (!former_file.empty() && std::filesystem::exists(former)) {
      throw Mismatch(former.string() +
                     " is a checkpoint in the format of an earlier version, which this one does "
                     "not read; delete it, or give another directory, to start anew");
    }
    return std::nullopt;
  }
  if (step) {  // which one of them has
    std::ranges::stable_partition(
        checkpoints, [&](const StepDirectory& one) { return one.manifest.step != *step; });
  }
  const StepDirectory& newest = checkpoints.back();
  check_identity(newest, identity, optimizer_kind(optimizer));
  const auto file = [&](const char* name) {
    try {
      return decode_safetensors(newest.path + "/" + name, read_verified(newest, name));
    } catch (const DamagedCheckpoint& error) {
      throw DamagedCheckpoint(error.what() + older_one_of(checkpoints));
    }
  };
  Loaded loaded{newest.manifest, file(kModelFile), file(kOptimizerFile), {}};
  if (newest.manifest.files.contains(kKeptFile)) loaded.kept = file(kKeptFile);
  const std::string difference =
      difference_of_names("the checkpoint " + newest.path, loaded.kept_names(), kept.names());
  if (!difference.empty()) throw Mismatch(difference);
  const std::string kinds =
      difference_of_kinds("the checkpoint " + newest.path, names_of(loaded.kept.tensors), kept);
  if (!kinds.empty()) throw Mismatch(kinds);
  check_parts(newest.path + "/" + kModelFile, loaded.model, parts.list);
  check_parts(newest.path + "/" + kKeptFile, loaded.kept, parts.kept);
  check_optimizer(newest.path + "/" + kOptimizerFile, loaded.optimizer, parts, optimizer);
  return loaded;
}

}  // namespace meshrun::detail
