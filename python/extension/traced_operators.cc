// torch.ops.meshrun.traced_call: what a compiled program has in place of a call that it makes each
// time it runs (parallel/base/traced_calls.h): collectives between the ranks of sharded tensors,
// and their random numbers.
//
//   traced_call(Tensor like, Tensor? before, Tensor? input, int call) -> Tensor
//
// The result: contiguous, of the shape and dtype of `like`, whose values are not read. `before`:
// what it holds before the call. `call` is a number of this process: a kernel that the compiler has
// kept calls by the number of the graph that was traced here.
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "ATen/core/Tensor.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/empty.h"
#include "c10/util/Exception.h"
#include "parallel/base/traced_calls.h"
#include "parallel/collectives/call/output_memory.h"
#include "python/extension/operators.h"
#include "torch/library.h"

namespace meshrun::python {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using TracedCallOperator = Tensor(const Tensor& like, const OptionalTensor& before,
                                  const OptionalTensor& input, int64_t call);

// All calls of this process's programs, for ever: a backward pass may run a program that nobody
// else has any more. Each holds a description, and no memory of tensors.
class TracedCalls {
 public:
  int64_t add(TracedCall call) {
    const std::lock_guard lock(mutex_);
    calls_.push_back(std::move(call));
    return static_cast<int64_t>(calls_.size()) - 1;
  }
  const TracedCall& at(int64_t number) {
    const std::lock_guard lock(mutex_);
    TORCH_CHECK(number >= 0 && number < static_cast<int64_t>(calls_.size()),
                "traced_call: this process has no call ", number,
                ": a compiled program of another process was loaded");
    return calls_[static_cast<size_t>(number)];
  }

 private:
  std::mutex mutex_;
  std::deque<TracedCall> calls_;  // whose elements stay where they are
};

TracedCalls& traced_calls() {
  static auto* const all = new TracedCalls;
  return *all;
}

Tensor traced_call_kernel(const Tensor& like, const OptionalTensor& before,
                          const OptionalTensor& input, int64_t call) {
  const c10::NoGradGuard no_grad;
  const Tensor output = empty_output(like.sizes(), like.options());
  if (before) output.copy_(*before);
  traced_calls().at(call)(output, input.value_or(Tensor()));
  return output;
}

Tensor traced_call_meta(const Tensor& like, const OptionalTensor& /*before*/,
                        const OptionalTensor& /*input*/, int64_t /*call*/) {
  return at::empty_symint(like.sym_sizes(), like.options());
}

OptionalTensor if_defined(const Tensor& tensor) {
  return tensor.defined() ? OptionalTensor(tensor) : OptionalTensor();
}

Tensor trace_in_graph(const Tensor& output, const Tensor& before, const Tensor& input,
                      TracedCall call) {
  static const auto traced_call = find_operator<TracedCallOperator>("meshrun::traced_call");
  return traced_call.call(output, if_defined(before), if_defined(input),
                          traced_calls().add(std::move(call)));
}

const bool kTraces = [] {
  set_call_tracer(&trace_in_graph);
  return true;
}();

}  // namespace

TORCH_LIBRARY_FRAGMENT(meshrun, m) {
  m.def("traced_call(Tensor like, Tensor? before, Tensor? input, int call) -> Tensor",
        {at::Tag::pt2_compliant_tag, at::Tag::cudagraph_unsafe});
}

TORCH_LIBRARY_IMPL(meshrun, CPU, m) { m.impl("traced_call", TORCH_FN(traced_call_kernel)); }
TORCH_LIBRARY_IMPL(meshrun, CUDA, m) { m.impl("traced_call", TORCH_FN(traced_call_kernel)); }
TORCH_LIBRARY_IMPL(meshrun, Meta, m) { m.impl("traced_call", TORCH_FN(traced_call_meta)); }

}  // namespace meshrun::python
