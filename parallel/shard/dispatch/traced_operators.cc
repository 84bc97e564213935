// Operators on sharded tensors in a program that PyTorch traces. The modes that trace come before
// the keys of sharded tensors, and know nothing of them. So such a call leaves the modes out: what
// the handlers do with local tensors is what they record.
#include "ATen/core/dispatch/Dispatcher.h"
#include "c10/core/impl/LocalDispatchKeySet.h"
#include "parallel/shard/dispatch/operator_signature.h"
#include "parallel/shard/tensor/shard_tensor_impl.h"
#include "torch/library.h"

namespace meshrun {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;

// The modes; and what handlers leave to the operators on local tensors, as the bits of plain
// operands.
constexpr DispatchKeySet kLeftOut({DispatchKey::Python, DispatchKey::PythonTLSSnapshot,
                                   DispatchKey::PythonDispatcher, DispatchKey::PreDispatch,
                                   DispatchKey::Functionalize, DispatchKey::Conjugate,
                                   DispatchKey::Negative, DispatchKey::ZeroTensor, kTracedKey});

// Keys that pass a call on where the operator has no kernel for them. The dispatcher leaves them
// out before a call, but not in a redispatch.
constexpr DispatchKeySet kPassOn =
    DispatchKeySet({kFunctionKey, DispatchKey::ADInplaceOrView, DispatchKey::BackendSelect}) |
    c10::autocast_dispatch_keyset;

void leave_modes_out(const c10::OperatorHandle& op, DispatchKeySet /*unused*/,
                     torch::jit::Stack* stack) {
  // Not the set that comes: where PyTorch's dispatcher in Python is on, it has one key.
  DispatchKeySet keys;
  for_each_tensor(*stack, op.schema().arguments().size(),
                  [&](const at::Tensor& tensor) { keys = keys | tensor.key_set(); });
  const c10::impl::LocalDispatchKeySet of_thread = c10::impl::tls_local_dispatch_key_set();
  keys = ((keys | of_thread.included_) - of_thread.excluded_) - kLeftOut;
  const DispatchKeySet passed_on = keys & kPassOn;
  for (const DispatchKey key : passed_on) {
    if (!op.hasKernelForDispatchKey(key)) keys = keys.remove(key);
  }
  op.redispatchBoxed(keys, stack);
}

}  // namespace

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericWrapper, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&leave_modes_out>());
}

}  // namespace meshrun
