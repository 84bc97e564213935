#include "parallel/checkpoint/training_memory.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <string_view>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>

#include "c10/util/Exception.h"
#include "parallel/base/digest.h"
#include "parallel/base/sharded_key.h"
#include "parallel/checkpoint/contents.h"
#include "parallel/checkpoint/hand_on.h"
#include "parallel/checkpoint/stored_tensor.h"
#include "parallel/comm/interface/call_scope.h"

namespace meshrun {
namespace {

// As read_newest would have it from a checkpoint.
detail::Loaded loaded_from(const TrainingMemory& memory, const torch::optim::Optimizer& optimizer) {
  detail::Loaded loaded;
  loaded.manifest.step = memory.step;
  loaded.manifest.optimizer = optimizer_kind(optimizer);
  loaded.manifest.random_generators = memory.generators;
  for (const auto& [name, tensor] : memory.tensors) loaded.model.tensors[name] = to_stored(tensor);
  for (const auto& [name, state] : memory.states) {
    for (const auto& [moment, tensor] : state.moments) {
      loaded.optimizer.tensors[detail::moment_key(moment, name)] = to_stored(tensor);
    }
    if (state.step) {
      loaded.optimizer.tensors[detail::moment_key(detail::kStepName, name)] =
          to_stored(at::scalar_tensor(*state.step, at::kLong));
    }
  }
  return loaded;
}

int64_t digest_of_bits(const at::Tensor& tensor) {
  const at::Tensor bits = tensor.detach().cpu().contiguous();
  return static_cast<int64_t>(
      digest_of(std::string_view(static_cast<const char*>(bits.const_data_ptr()), bits.nbytes())));
}

// Of everything that remember() keeps but the generators.
int64_t digest_of_state(const detail::Parts& parts, torch::optim::Optimizer& optimizer) {
  Digest digest;
  for (const detail::Part& part : parts.list) {
    digest.add(digest_of_bits(part.tensor));
    if (!part.is_parameter) continue;
    const ParameterState state = parameter_state(optimizer, part.tensor);
    digest.add(state.step.value_or(-1));
    for (const auto& [moment, tensor] : state.moments) digest.add(digest_of_bits(tensor));
  }
  return static_cast<int64_t>(digest.value());
}

}  // namespace

bool is_whole(const torch::nn::Module& module, const torch::optim::Optimizer& optimizer) {
  if (dynamic_cast<const ParameterStates*>(&optimizer) != nullptr) return false;
  for (const at::Tensor& tensor : module.parameters()) {
    if (is_sharded(tensor)) return false;
  }
  for (const at::Tensor& tensor : module.buffers()) {
    if (is_sharded(tensor)) return false;
  }
  const auto shards = parameter_shards(module);
  return std::all_of(shards.begin(), shards.end(),
                     [](const auto& shard) { return shard.second.group->getSize() == 1; });
}

std::map<std::string, std::string> generators_now(const torch::nn::Module& module) {
  const auto parameters = module.parameters();
  return detail::generator_states(parameters.empty() ? c10::Device(c10::kCPU)
                                                     : parameters.front().device());
}

TrainingMemory remember(const torch::nn::Module& module, torch::optim::Optimizer& optimizer,
                        IntArgument step, std::map<std::string, std::string> generators) {
  TrainingMemory memory;
  memory.step = step;
  memory.generators = std::move(generators);
  const detail::Parts parts(module);
  for (const detail::Part& part : parts.list) {
    memory.tensors[part.name] = part.tensor.detach();
    if (part.is_parameter) memory.states[part.name] = parameter_state(optimizer, part.tensor);
  }
  return memory;
}

int64_t spread_memory(const std::optional<TrainingMemory>& memory, IntArgument root_rank,
                      torch::nn::Module& module, torch::optim::Optimizer& optimizer,
                      const GroupArgument& group) {
  const CallScope scope("spread_memory");
  const GroupArgument::Handle handle = group.get();
  const int root = root_rank.to_int();
  const detail::Parts parts(module);
  std::optional<detail::Loaded> loaded;
  if (handle->getRank() == root) {
    TORCH_CHECK_VALUE(memory.has_value(), "rank ", root,
                      " has no memory of the training to spread");
    loaded = loaded_from(*memory, optimizer);
  }
  const Manifest manifest = detail::hand_on(handle, root, loaded, parts, optimizer);
  // The least and, negated, the greatest digest.
  const int64_t own = digest_of_state(parts, optimizer);
  std::vector<at::Tensor> ends = {at::tensor({own, ~own}, at::kLong).to(parts.device())};
  c10d::AllreduceOptions options;
  options.reduceOp = c10d::ReduceOp::MIN;
  handle->allreduce(ends, options)->wait();
  const at::Tensor seen = ends[0].cpu();
  TORCH_CHECK(seen[0].item<int64_t>() == ~seen[1].item<int64_t>(),
              "the ranks' model and optimizer differ after step ", manifest.step,
              " was copied from rank ", root, " to all: a rank runs another program");
  return manifest.step;
}

}  // namespace meshrun
