// The part of DistributedDataParallel that does not depend on the type of the wrapped module.
#pragma once

#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "parallel/base/arguments.h"

namespace c10d {
class Reducer;
}

namespace meshrun {

struct DistributedDataParallelOptions {
  // At most one, and not used: the module's device decides. Python's recipes pass it, and the same
  // program also runs on the CPU, and with CUDA_VISIBLE_DEVICES giving each rank one GPU, number 0.
  std::vector<int64_t> device_ids;
  // The device for the forward call's results; absent: they stay on theirs.
  std::optional<c10::Device> output_device;
  // Broadcast rank 0's buffers before each forward call that follows a synchronised one.
  BoolArgument broadcast_buffers = true;
  // Search the graph of each forward call for parameters outside it; otherwise the backward pass
  // would wait for their gradients. Costs a walk through the graph and one small all-reduce.
  BoolArgument find_unused_parameters = false;
  // The ranks that train together; null: the world of DistributedManager.
  c10::intrusive_ptr<c10d::ProcessGroup> process_group;
  // Gradients are all-reduced in buckets of about this size (MiB); the first one has at most 1 MiB,
  // so that communication starts early.
  double bucket_cap_mb = 25;
  // Gradients are views into the buckets, which saves their memory and a copy. They cannot be
  // detached in place, as LibTorch's Optimizer::zero_grad() does: call the model's zero_grad()
  // instead.
  BoolArgument gradient_as_bucket_view = false;
  // Promises that the same parameters take part in each iteration, in the same order. This allows
  // reentrant backward passes and parameters used several times; unused ones are found once, in the
  // first iteration.
  BoolArgument static_graph = false;
  // Gradients travel as bfloat16, which has 8 bits of a float32's 24: half the bytes. ucx
  // adds in float32 and rounds on each host and at the end. All parameters must be float32, and
  // stay so.
  BoolArgument bfloat16_gradients = false;
};

namespace detail {

class StepTrace;

class GradientSynchronizer {
 public:
  // Compares the ranks' modules and options, gives all of them rank 0's state, builds the reducer.
  GradientSynchronizer(const torch::nn::Module& module,
                       const DistributedDataParallelOptions& options);
  ~GradientSynchronizer();
  GradientSynchronizer(const GradientSynchronizer&) = delete;
  GradientSynchronizer& operator=(const GradientSynchronizer&) = delete;

  void before_forward(const torch::nn::Module& module);
  // `outputs` are all tensors of the result; may replace them by equal ones.
  void after_forward(const torch::nn::Module& module, const std::vector<at::Tensor*>& outputs);

  // Returns tensors on the module's device, all else unchanged.
  template <typename T>
  decltype(auto) place(T&& argument) const {
    if constexpr (std::is_same_v<std::remove_cvref_t<T>, at::Tensor>) {
      return device_.is_cpu() || !argument.defined() ? at::Tensor(std::forward<T>(argument))
                                                     : argument.to(device_);
    } else {
      return std::forward<T>(argument);
    }
  }

  // Returns what was set before.
  bool set_synchronise_backward(bool on) { return std::exchange(synchronise_backward_, on); }

 private:
  void build_reducer(const torch::nn::Module& module);
  void broadcast_from_rank_0(const std::vector<at::Tensor>& tensors);
  // SharedModuleError where gradients of a marked module would not be averaged.
  void check_marks(const torch::nn::Module& module) const;

  DistributedDataParallelOptions options_;
  c10::Device device_ = c10::kCPU;
  std::shared_ptr<StepTrace> trace_;  // null: nobody asks for one
  std::shared_ptr<c10d::Reducer> reducer_;
  // Names of the parameters, by index in the reducer's order.
  std::unordered_map<size_t, std::string> names_;
  // False within no_sync().
  bool synchronise_backward_ = true;
  // The last forward call was synchronised, so ranks may broadcast buffers.
  bool synchronise_buffers_ = true;
  // Shared with the graph of the first iteration, where static_graph asks for it.
  std::shared_ptr<bool> delayed_all_reduce_queued_ = std::make_shared<bool>(false);
};

template <typename T>
concept TupleLike = requires {
  std::tuple_size<T>::value;
};

// Appends the tensors in `value`: a tensor; an optional, tuple, pair, array or container of such;
// numbers and strings hold none. For a struct, return a tuple instead.
template <typename T>
void collect_tensors(T& value, std::vector<at::Tensor*>& tensors) {
  using Value = std::remove_const_t<T>;
  if constexpr (std::is_same_v<T, at::Tensor>) {
    tensors.push_back(&value);
  } else if constexpr (std::is_arithmetic_v<Value>) {
  } else if constexpr (TupleLike<Value>) {
    std::apply([&](auto&... parts) { (collect_tensors(parts, tensors), ...); }, value);
  } else if constexpr (requires { value.has_value(); }) {
    if (value.has_value()) collect_tensors(*value, tensors);
  } else {
    static_assert(
        requires { value.begin(); },
        "DistributedDataParallel finds no tensors in what this module's forward() returns");
    for (auto& part : value) collect_tensors(part, tensors);
  }
}

}  // namespace detail

// Keeps DistributedDataParallel from averaging gradients while it lives; guards may nest.
class NoSyncGuard {
 public:
  explicit NoSyncGuard(detail::GradientSynchronizer& synchronizer)
      : synchronizer_(synchronizer), before_(synchronizer.set_synchronise_backward(false)) {}
  ~NoSyncGuard() { synchronizer_.set_synchronise_backward(before_); }
  NoSyncGuard(const NoSyncGuard&) = delete;
  NoSyncGuard& operator=(const NoSyncGuard&) = delete;

 private:
  detail::GradientSynchronizer& synchronizer_;
  const bool before_;
};

}  // namespace meshrun
