// What autocast does to the operands of function handlers.
//
// Function handlers sit above autocast's dispatch keys, so LibTorch's autocast would see only the
// local operators inside them. Each call of a handler therefore asks here first. LibTorch's own
// policy of the operator always wins: its kernel casts the sharded operands and calls the operator
// again, without autocast. The table below says what holds where LibTorch has no policy for the
// operator itself.
//
// Corresponds to ATen/autocast_mode.h, CPU and CUDA. Internal to parallel/shard. Threads: any; the
// state of autocast is the thread's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "c10/core/DispatchKeySet.h"
#include "c10/core/impl/LocalDispatchKeySet.h"
#include "parallel/shard/tensor/shard_mesh.h"

namespace meshrun {

enum class CastPolicy : uint8_t {
  kLibTorchs,  // LibTorch casts: it has a policy for the operator on this device
  kFloat32,    // the operands become float32, as the operator's parts have it
  kParts,      // the operators inside the handler cast, as inside LibTorch's operator
  kNone,       // neither the operator nor its parts have a policy: nothing is cast
};

struct CastPolicies {
  CastPolicy cpu = CastPolicy::kParts;
  CastPolicy cuda = CastPolicy::kParts;
};

// Null where the table does not name the operator ("aten::sum.dim_IntList"): a program's own
// handler, inside which the operators cast.
const CastPolicies* cast_policies_of(const std::string& op);
// All names in the table.
std::vector<std::string> operators_with_cast_policies();

// Whether autocast is on for any device that a sharded tensor can be on.
inline bool any_autocast() {
  constexpr c10::DispatchKeySet kKeys(
      {c10::DispatchKey::AutocastCPU, c10::DispatchKey::AutocastCUDA});
  return !c10::impl::tls_local_dispatch_key_set().excluded_.has_all(kKeys);
}

// One call of a function handler under autocast.
class AutocastCall {
 public:
  // For each operand: the first sharded one says on which mesh and device the call is.
  void see(const at::Tensor& operand);

  // `stated`: may be null.
  CastPolicy policy(const c10::OperatorHandle& op, const CastPolicies* stated) const;
  // The key of autocast on the call's device.
  c10::DispatchKey key() const;

  // An operand as LibTorch's kernel may cast it: a plain one that wants a gradient is Replicate on
  // the mesh, so that ranks add its gradients in its own dtype.
  at::Tensor placed(const at::Tensor& operand) const;
  // In float32, where autocast casts such an operand at all.
  at::Tensor in_float32(const at::Tensor& operand) const;

 private:
  ShardMesh::Ptr mesh_;
  c10::DeviceType device_ = c10::DeviceType::CPU;
};

}  // namespace meshrun
