#include "parallel/checkpoint/training_memory.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <set>
#include <span>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "c10/util/Exception.h"
#include "parallel/base/digest.h"
#include "parallel/base/sharded_key.h"
#include "parallel/checkpoint/agreement.h"
#include "parallel/checkpoint/contents.h"
#include "parallel/checkpoint/hand_on.h"
#include "parallel/checkpoint/kept_agreement.h"
#include "parallel/checkpoint/raised_by.h"
#include "parallel/checkpoint/random_streams.h"
#include "parallel/checkpoint/region_exchange.h"
#include "parallel/checkpoint/stored_values.h"
#include "parallel/comm/interface/call_scope.h"

namespace meshrun {
namespace {

// A memory as hand_on() takes it: what there is, and the values.
struct Remembered {
  detail::Contents contents;
  detail::ByFile<std::map<std::string, StoredValues>> tensors;
  std::set<std::string> parameters;
  // Those that are equal on all ranks that remember the step, and, `is_root`, all others.
  std::vector<detail::HeldRegion> held(bool is_root, const KeptValues& kept) const;
};

// Buffers are not equal: running statistics of a plain batch norm are each rank's own.
bool is_kept_buffer(const KeptValues& kept, const std::string& name) {
  const auto known = kept.tensors().find(name);
  return known != kept.tensors().end() && known->second.is_buffer;
}

// Raises for a dtype or an optimizer that checkpoints cannot hold.
Remembered remembered(const TrainingMemory& memory, const torch::optim::Optimizer& optimizer) {
  Remembered result;
  const auto add = [&](detail::FileKind kind, const std::string& name, const at::Tensor& tensor) {
    result.contents.outlines[kind][name] = stored_info(tensor);
    result.tensors[kind][name] = StoredValues(tensor);
  };
  Manifest manifest;
  manifest.step = memory.step;
  manifest.optimizer = optimizer_kind(optimizer);
  manifest.optimizer_options = memory.options;
  manifest.kept_values = memory.kept_values;
  manifest.random_generators = memory.generators;
  result.contents.manifest = EncodeManifest(manifest);
  for (const auto& [name, tensor] : memory.tensors) add(detail::kModel, name, tensor);
  for (const auto& [name, tensor] : memory.kept) {
    add(detail::kKept, name, tensor);
  }
  result.contents.kept_names =
      detail::kept_names(result.contents.outlines[detail::kKept], memory.kept_values);
  for (const auto& [name, state] : memory.states) {
    result.parameters.insert(name);
    for (const auto& [moment, tensor] : state.moments) {
      add(detail::kOptimizer, detail::moment_key(moment, name), tensor);
    }
    if (state.step) {
      add(detail::kOptimizer, detail::moment_key(detail::kStepName, name),
          at::scalar_tensor(*state.step, at::kLong));
    }
  }
  return result;
}

std::vector<detail::HeldRegion> Remembered::held(bool is_root, const KeptValues& kept) const {
  std::vector<detail::HeldRegion> regions;
  for (size_t kind = 0; kind < tensors.size(); ++kind) {
    for (const auto& [name, values] : tensors[kind]) {
      const bool is_alike = kind == detail::kOptimizer ||
                            (kind == detail::kModel && parameters.contains(name)) ||
                            (kind == detail::kKept && !is_kept_buffer(kept, name));
      if (!is_root && !is_alike) continue;
      const TensorInfo& info = contents.outlines[kind].at(name);
      regions.push_back(
          {static_cast<detail::FileKind>(kind), name, Region::whole(info.shape), values.bytes()});
    }
  }
  return regions;
}

// What a memory says must be equal on all ranks.
detail::Digests digests_of(const TrainingMemory& memory, const KeptValues& kept) {
  detail::Digests digests = detail::digests_of_kept(memory.kept_values);
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    digests[name] = static_cast<uint64_t>(digest_of_bits(tensor));
  };
  for (const auto& [name, state] : memory.states) {
    add("the parameter \"" + name + "\"", memory.tensors.at(name));
    for (const auto& [moment, tensor] : state.moments) {
      add(moment + " of the parameter \"" + name + "\"", tensor);
    }
  }
  for (const auto& [name, tensor] : memory.kept) {
    if (!is_kept_buffer(kept, name)) add("the kept value \"" + name + "\"", tensor);
  }
  return digests;
}

// Collective. Returns the root's step. Raises c10::ValueError on every rank where those that
// remember it have different values: the root's would replace the others'.
int64_t check_alike(c10d::ProcessGroup& group, int root, c10::Device device,
                    const std::optional<TrainingMemory>& memory, const KeptValues& kept) {
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  const int64_t step = least(group, device, {group.getRank() == root ? memory->step : kNone})[0];
  std::optional<detail::Digests> own;
  if (memory && memory->step == step) own = digests_of(*memory, kept);
  std::vector<int64_t> ends = {kNone, kNone};
  if (own) {
    const int64_t digest = detail::digest_of_all(*own);
    ends = {digest, ~digest};
  }
  ends = least(group, device, ends);
  if (ends[0] == ~ends[1]) return step;
  const std::string difference =
      detail::difference_between_ranks(group, device, own ? &*own : nullptr);
  C10_THROW_ERROR(ValueError, difference + ", which remember step " + std::to_string(step) +
                                  "; one rank's values are handed on, so all ranks must have the "
                                  "same");
}

// Collective. `root_states`: of the rank whose memory of `step` was spread.
void set_generators(c10d::ProcessGroup& group, int root, c10::Device device,
                    const std::optional<TrainingMemory>& memory, int64_t step,
                    const detail::GeneratorStates& root_states) {
  const int rank = group.getRank();
  const bool remembers = memory && memory->step == step;
  // The least and, inverted, the greatest digest of those that remember the step; what the root
  // says.
  std::vector<int64_t> own(3, std::numeric_limits<int64_t>::max());
  if (remembers) {
    own[0] = detail::digest_of_states(memory->generators);
    own[1] = ~own[0];
  }
  if (rank == root) own[2] = memory->draws_alike ? 1 : 0;
  const std::vector<int64_t> all = least(group, device, own);
  if (all[2] == 1 && all[0] == ~all[1]) {
    detail::set_generator_states(device, root_states);
  } else if (remembers && memory->rank == rank && memory->world_size == group.getSize()) {
    detail::set_generator_states(device, memory->generators);
  } else {
    detail::derive_generators(device, root_states, rank);
  }
}

}  // namespace

int64_t digest_of_state(const torch::nn::Module& module, torch::optim::Optimizer& optimizer,
                        const KeptValues& kept) {
  const detail::Parts parts(module, kept);
  Digest digest;
  for (const detail::Part& part : parts.list) {
    if (part.cut != nullptr || !part.is_parameter) continue;
    digest.add(digest_of_bits(part.tensor));
    const ParameterState state = parameter_state(optimizer, part.tensor);
    digest.add(state.step.value_or(-1));
    for (const auto& [moment, tensor] : state.moments) digest.add(digest_of_bits(tensor));
  }
  for (const detail::Part& part : parts.kept) {
    if (part.cut == nullptr && part.is_parameter) digest.add(digest_of_bits(part.tensor));
  }
  return static_cast<int64_t>(digest.value());
}

bool is_whole(const torch::nn::Module& module, const torch::optim::Optimizer& optimizer) {
  if (dynamic_cast<const ParameterStates*>(&optimizer) != nullptr) return false;
  const auto are_plain = [](const std::vector<at::Tensor>& tensors) {
    return std::none_of(tensors.begin(), tensors.end(), is_sharded);
  };
  if (!are_plain(module.parameters()) || !are_plain(module.buffers())) return false;
  const auto shards = parameter_shards(module);
  return std::all_of(shards.begin(), shards.end(),
                     [](const auto& shard) { return shard.second.group->getSize() == 1; });
}

SpreadMemory spread_memory(const std::optional<TrainingMemory>& memory, IntArgument root_rank,
                           torch::nn::Module& module, torch::optim::Optimizer& optimizer,
                           const GroupArgument& group, const KeptValues& kept) {
  const CallScope scope("spread_memory");
  const GroupArgument::Handle handle = group.get();
  const int root = root_rank.to_int();
  const detail::Parts parts(module, kept);
  const c10::Device device = parts.device();
  std::optional<Remembered> whole;
  std::string problem;
  if (handle->getRank() == root) {
    problem = detail::raised_by([&] {
      TORCH_CHECK_VALUE(memory.has_value(), "rank ", root,
                        " has no memory of the training to spread");
      whole = remembered(*memory, optimizer);
    });
  }
  problem = common_problem(*handle, device, problem);
  TORCH_CHECK_VALUE(problem.empty(), problem);
  const int64_t step = check_alike(*handle, root, device, memory, kept);
  const bool is_root = handle->getRank() == root;
  const bool remembers = memory && memory->step == step;
  if (remembers && !whole) whole = remembered(*memory, optimizer);
  const std::vector<int64_t> by_rank = number_by_rank(*handle, device, remembers ? 1 : 0);
  // A broadcast is a tree; else each of the others gets all from one that remembers.
  const bool is_broadcast = 2 * std::ranges::count(by_rank, 1) < handle->getSize();
  Manifest manifest;
  try {
    manifest = detail::hand_on(
        handle, root, is_root ? std::optional(whole->contents) : std::nullopt,
        "the memory of rank " + std::to_string(root), parts, optimizer, kept,
        [&](std::vector<detail::Target>& targets) {
          if (is_broadcast) {
            detail::broadcast_targets(
                handle, root, device, targets,
                [&](const detail::Target& target, uint64_t from, std::span<char> to) {
                  whole->tensors[target.kind()].at(target.name()).read(from, to);
                });
            return;
          }
          std::vector<detail::HeldRegion> held;
          if (whole) held = whole->held(is_root, kept);
          detail::fill_from_regions(handle, device, held, targets,
                                    [&](size_t index, uint64_t from, std::span<char> to) {
                                      const detail::HeldRegion& region = held[index];
                                      whole->tensors[region.kind].at(region.name).read(from, to);
                                    });
        });
  } catch (const detail::Mismatch& error) {
    C10_THROW_ERROR(ValueError, error.what());
  }
  set_generators(*handle, root, device, memory, manifest.step, manifest.random_generators);
  // The least and, inverted, the greatest digest.
  const int64_t own = digest_of_state(module, optimizer, kept);
  const std::vector<int64_t> ends = least(*handle, device, {own, ~own});
  TORCH_CHECK(ends[0] == ~ends[1], "the ranks' model and optimizer differ after step ",
              manifest.step, " was copied from rank ", root,
              " to all: a rank runs another program");
  return {manifest.step, own};
}

}  // namespace meshrun
