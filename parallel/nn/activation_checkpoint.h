// Activation checkpointing: what a function computes within is not kept for the backward pass but
// computed again there. Memory falls to the function's inputs and outputs; it runs twice.
//
//   x = checkpoint([&](const Tensor& x) { return block->forward(x); }, x);
//   std::vector<Tensor> y = checkpoint([&](const Tensor& a, const Tensor& b) {
//     return std::vector<Tensor>{a * b, a + b}; }, a, b);
//
// Shapes, dtypes: the function's own. It takes tensors and returns one tensor or a vector of them.
// Gradients equal those of the plain call bit for bit: for the inputs that require one, and for
// parameters that the function captures, also where no input requires a gradient. The second run
// sees the inputs, the default generators (CPU, and the inputs' devices) and the autocast state of
// the first; so dropout drops the same. Calls nest.
//
// Limits. The function must compute the same twice, and may change nothing outside itself; what it
// captures lives until the graph is freed. Floating-point outputs require a gradient whenever grad
// mode is on. backward() only: torch::autograd::grad() and backward(inputs) raise
// c10::NotImplementedError, as the parameters' gradients would be lost; so does create_graph.
// Inside DistributedDataParallel give static_graph, as for any reentrant backward pass.
// Without grad mode it is a plain call.
//
// Threads: any. Errors: c10::ValueError for an undefined input, or if the second run returns other
// outputs; what the function throws.
//
// Corresponds to torch.utils.checkpoint.checkpoint(use_reentrant=True).
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace meshrun {

namespace detail {

using CheckpointedFunction =
    std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;

std::vector<at::Tensor> checkpoint(CheckpointedFunction function, std::vector<at::Tensor> inputs);

}  // namespace detail

template <typename Function, std::convertible_to<at::Tensor>... Inputs>
std::invoke_result_t<Function&, const Inputs&...> checkpoint(Function function,
                                                             const Inputs&... inputs) {
  using Result = std::invoke_result_t<Function&, const Inputs&...>;
  constexpr bool kIsVector = std::is_same_v<Result, std::vector<at::Tensor>>;
  static_assert(kIsVector || std::is_same_v<Result, at::Tensor>,
                "A checkpointed function returns a tensor, or a vector of them");
  detail::CheckpointedFunction on_vectors =
      [function = std::move(function)](const std::vector<at::Tensor>& all) mutable {
        return [&]<size_t... I>(std::index_sequence<I...>)->std::vector<at::Tensor> {
          return {function(all[I]...)};
        }
        (std::index_sequence_for<Inputs...>());
      };
  std::vector<at::Tensor> outputs =
      detail::checkpoint(std::move(on_vectors), std::vector<at::Tensor>{inputs...});
  if constexpr (kIsVector) {
    return outputs;
  } else {
    return std::move(outputs[0]);
  }
}

}  // namespace meshrun
