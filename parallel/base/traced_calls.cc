#include "parallel/base/traced_calls.h"

#include <atomic>
#include <string>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/lift_fresh.h"
#include "ATen/ops/tensor.h"
#include "c10/core/impl/LocalDispatchKeySet.h"

namespace meshrun {
namespace {

std::atomic<CallTracer> call_tracer{nullptr};
thread_local int compiling_scopes = 0;

// As torch.tensor() makes its values.
template <typename Value>
at::Tensor constant_of(at::ArrayRef<Value> values, at::ScalarType dtype) {
  if (!c10::impl::dispatch_mode_enabled()) return at::tensor(values, dtype);
  at::Tensor made;
  {
    const c10::impl::ExcludeDispatchKeyGuard without_modes(
        c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot,
                             c10::DispatchKey::PythonDispatcher}));
    made = at::tensor(values, dtype);
  }
  return at::lift_fresh(made);
}

}  // namespace

void trace_call(const at::Tensor& output, const at::Tensor& input, TracedCall call,
                TracedOutput use) {
  const CallTracer tracer = call_tracer.load(std::memory_order_acquire);
  if (tracer == nullptr) {
    throw NotTraceableError("torch.compile traces collectives where meshrun.torch is imported");
  }
  const c10::NoGradGuard no_grad;
  output.copy_(tracer(output, use == TracedOutput::kReadAndWritten ? output : at::Tensor(), input,
                      std::move(call)));
}

void set_call_tracer(CallTracer tracer) { call_tracer.store(tracer, std::memory_order_release); }

at::Tensor constant(at::ArrayRef<int64_t> values) { return constant_of(values, at::kLong); }
at::Tensor constant(at::ArrayRef<double> values) { return constant_of(values, at::kDouble); }

CompilingScope::CompilingScope() { ++compiling_scopes; }
CompilingScope::~CompilingScope() { --compiling_scopes; }
bool is_compiling() { return compiling_scopes > 0; }

}  // namespace meshrun
