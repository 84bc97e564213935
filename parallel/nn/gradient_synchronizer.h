// What DistributedDataParallel does that does not depend on the type of the module it wraps.
#pragma once

#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace c10d {
class Reducer;
}

namespace meshrun {

struct DistributedDataParallelOptions {
  // At most one. Where the module is decides; this is what Python's recipes pass, so that one
  // program runs on the CPU, and where CUDA_VISIBLE_DEVICES gives each rank one GPU, number 0.
  std::vector<int64_t> device_ids;
  // Where the forward call's results are moved to; absent: left where they are.
  std::optional<c10::Device> output_device;
  // Broadcast rank 0's buffers before each forward call that follows a synchronised one.
  bool broadcast_buffers = true;
  // Search the graph of each forward call for parameters that take no part in it, which else would
  // be waited for. Costs a walk through the graph and one small all-reduce.
  bool find_unused_parameters = false;
  // The ranks that train together; null: the world of DistributedManager.
  c10::intrusive_ptr<c10d::ProcessGroup> process_group;
  // Gradients are all-reduced in buckets of about this size (MiB); the first one to be ready is of
  // at most 1 MiB, so that communication starts early.
  double bucket_cap_mb = 25;
  // Gradients are views into the buckets: saves their memory and a copy. They cannot be detached in
  // place then, which LibTorch's Optimizer::zero_grad() does: call the model's zero_grad() instead.
  bool gradient_as_bucket_view = false;
  // The same parameters take part in each iteration, in the same order: allows reentrant backward
  // passes and shared parameters used several times, and finds unused ones once, in the first
  // iteration.
  bool static_graph = false;
};

namespace detail {

class GradientSynchronizer {
 public:
  // Compares the ranks' modules and options, gives all of them rank 0's state, builds the reducer.
  // On an accelerator this runs on a side stream, which the current stream then waits for.
  GradientSynchronizer(const torch::nn::Module& module,
                       const DistributedDataParallelOptions& options);
  ~GradientSynchronizer();
  GradientSynchronizer(const GradientSynchronizer&) = delete;
  GradientSynchronizer& operator=(const GradientSynchronizer&) = delete;

  void before_forward(const torch::nn::Module& module);
  // `outputs` are all tensors of the result; may replace them by equal ones.
  void after_forward(const std::vector<at::Tensor*>& outputs);

  // Tensors come back on the module's device, all else as it is.
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

  DistributedDataParallelOptions options_;
  c10::Device device_ = c10::kCPU;
  std::shared_ptr<c10d::Reducer> reducer_;
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
