#include "parallel/comm/ucx/failure_exception.h"

#include "parallel/base/collective_errors.h"

namespace meshrun {

std::exception_ptr to_exception(const ucx::Failure& failure) {
  using ucx::FailureKind;
  const std::string& text = failure.message;
  switch (failure.kind) {
    case FailureKind::kInvalidArgument:
      return std::make_exception_ptr(CollectiveArgumentError(text));
    case FailureKind::kMismatch:
      return std::make_exception_ptr(CollectiveMismatchError(text));
    case FailureKind::kDeadlock:
      return std::make_exception_ptr(CollectiveDeadlockError(text));
    case FailureKind::kPeerLeft:
      return std::make_exception_ptr(PeerLeftError(text));
    case FailureKind::kPeerLost:
      return std::make_exception_ptr(PeerLostError(text));
    case FailureKind::kTimeout:
      return std::make_exception_ptr(CollectiveTimeoutError(text));
    case FailureKind::kAborted:
      return std::make_exception_ptr(GroupAbortedError(text));
    case FailureKind::kTransport:
      return std::make_exception_ptr(TransportError(text));
  }
  return std::make_exception_ptr(GroupAbortedError(text));
}

}  // namespace meshrun
