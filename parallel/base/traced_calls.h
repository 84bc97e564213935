// What a program that torch.compile traces has in place of work on memory: a call that is made each
// time the program runs. Traced tensors have no memory, so a collective between ranks, or a drawing
// of random numbers, cannot be made while the program is traced.
//
//   if (is_traced(tensor)) return trace_call(output, input, [=](const at::Tensor& to,
//                                                               const at::Tensor& from) { ... });
//
// All calls of a program are kept, in the program's order, which is the same on all ranks.
// Threads: any. Internal to parallel/.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "ATen/core/Tensor.h"
#include "c10/core/DispatchKey.h"
#include "c10/core/impl/TorchDispatchModeTLS.h"
#include "c10/util/Exception.h"

namespace meshrun {

// Something that a compiled program cannot have; the program then runs as written.
class NotTraceableError : public c10::NotImplementedError {
 public:
  explicit NotTraceableError(std::string message) : NotImplementedError({}, std::move(message)) {}
};

// Whether PyTorch records what happens to the tensor. Tensors of a class of Python's are no traced
// ones where no mode records.
inline bool is_traced(const at::Tensor& tensor) {
  return tensor.defined() && tensor.key_set().has(c10::DispatchKey::Python) &&
         c10::impl::dispatch_mode_enabled();
}

// Writes all of `output`, contiguous memory of the shape and dtype that the traced one has, from
// `input`; null: there is none. Called on the thread that runs the program. Owns what it needs.
using TracedCall = std::function<void(const at::Tensor& output, const at::Tensor& input)>;

enum class TracedOutput : bool { kWritten, kReadAndWritten };

// Gives the traced `output` the values that the call will write. `input` may be undefined, or the
// output itself. Raises NotTraceableError where no compiler is there.
void trace_call(const at::Tensor& output, const at::Tensor& input, TracedCall call,
                TracedOutput use = TracedOutput::kWritten);

// The compiler's side (python/extension): a traced tensor like `output` with the call's values;
// `before`: what the output holds, undefined where nothing reads it.
using CallTracer = at::Tensor (*)(const at::Tensor& output, const at::Tensor& before,
                                  const at::Tensor& input, TracedCall call);
void set_call_tracer(CallTracer tracer);

// at::tensor() of these values, on the CPU; in a traced program a constant of it.
at::Tensor constant(at::ArrayRef<int64_t> values);
at::Tensor constant(at::ArrayRef<double> values);

// While one lives, this thread compiles a program. What would count or draw at once raises.
class CompilingScope {
 public:
  CompilingScope();
  ~CompilingScope();
  CompilingScope(const CompilingScope&) = delete;
  CompilingScope& operator=(const CompilingScope&) = delete;
};
bool is_compiling();

}  // namespace meshrun
