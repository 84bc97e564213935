// The v-collectives of a process group, whatever its backend.
//
// Threads and order: those of c10d::Backend.
#pragma once

#include <memory>

#include "ATen/core/Tensor.h"
#include "c10/core/DeviceType.h"
#include "c10/util/intrusive_ptr.h"
#include "parallel/comm/interface/v_collectives.h"

namespace c10d {
class Backend;
class ProcessGroup;
}  // namespace c10d

namespace meshrun {

// The v-collectives of a group for tensors on `device`: its backend's own, or those put together
// from c10d's. Holds the backend. Made per call: costs two look-ups.
class VCollectivesOf {
 public:
  // Raises BackendError where the group has no backend for the device, CollectiveForbiddenError
  // (no_collectives.h).
  VCollectivesOf(const c10::intrusive_ptr<c10d::ProcessGroup>& group, c10::DeviceType device);
  ~VCollectivesOf();
  VCollectivesOf(VCollectivesOf&&) noexcept;

  VCollectives* operator->() const { return collectives_; }
  VCollectives& operator*() const { return *collectives_; }

 private:
  c10::intrusive_ptr<c10d::Backend> backend_;
  std::unique_ptr<VCollectives> adapter_;  // absent where the backend has its own
  VCollectives* collectives_ = nullptr;
};

// One call. In a program that is being traced (parallel/base/traced_calls.h) it becomes a part of
// the program, and the Work is done at once.
VCollectives::WorkPtr run_v_collective(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                       c10::DeviceType device, const at::Tensor& output,
                                       const at::Tensor& input, CollectiveSpec spec);

// A traced program's group, where it has not ended. Raises RuntimeError.
using WeakGroup = c10::weak_intrusive_ptr<c10d::ProcessGroup>;
c10::intrusive_ptr<c10d::ProcessGroup> living(const WeakGroup& group);

// What a call with this tensor communicates from: the tensor's device; where the tensor is
// undefined, what the group's other ranks most likely use: its first accelerator, else the CPU.
c10::DeviceType device_of(const at::Tensor& tensor, const c10d::ProcessGroup& group);

}  // namespace meshrun
