// The backend "meshrun" of a group whose members change: c10d's reconfigure().
//
//   init_process_group(enable_reconfigure=True) --> no world --reconfigure()--> a world
//                                                                               |      ^
//                                                                               +------+
//                                                                             reconfigure()
//
// A shell over the UcxBackend of the world that the group has now. reconfigure() waits until all
// members of the next world have come (membership.h). Where one does not come, the group keeps its
// world. Else that world's operations that are under way fail with GroupAbortedError, here and on
// the ranks that are left out, and the next world's engine is started. Rank and size are then the
// next world's. Where that fails, the group has no world until the next reconfigure().
//
// Groups that were made of the old world keep its engine, and its ranks, until they are destroyed.
// CPU tensors only: c10d reconfigures groups of one backend alone.
//
// Threads: as UcxBackend, but no other call of the group starts while reconfigure() runs. Works may
// be waited for meanwhile. Errors: as UcxBackend and membership.h; BackendError where the group has
// no world.
#pragma once

#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "c10/util/intrusive_ptr.h"
#include "core/mutex.h"
#include "parallel/comm/ucx/backend.h"
#include "python/extension/backend.h"
#include "python/extension/membership.h"
#include "third_party/libtorch/reconfigure.h"

namespace meshrun::python {

class ReconfigurableBackend : public libtorch::BackendOfManyWorlds,
                              public VCollectives,
                              public CallComparer,
                              public RoundedSum {
 public:
  using VCollectives::WorkPtr;
  using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
  using Tensors = std::vector<at::Tensor>;
  using Sizes = std::vector<int64_t>;

  // Nobody is waited for. `call` says what all its worlds have alike; its store is not used.
  explicit ReconfigurableBackend(GroupCall call);

  bool supportsReconfigure() const override { return true; }
  // The same for as long as this backend lives.
  libtorch::ReconfigureHandle get_reconfigure_handle() const override;
  // Done when it returns.
  WorkPtr reconfigure(const libtorch::ReconfigureOptions& options) override;

  const std::string getBackendName() const override { return "ucx"; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override;
  void setTimeout(std::chrono::milliseconds timeout) override;
  bool supportsSplitting() const override { return true; }
  bool supportsCoalescing() const override { return true; }
  bool supportsTensorAlloc(c10::DeviceIndex index) override;
  bool takes_fill() const override;
  void setSequenceNumberForGroup() override {}
  c10d::ErrorType getError() override;
  void abort() override;
  void shutdown() override;

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, Sizes& output_splits,
                        Sizes& input_splits, const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs,
                   const c10d::AllToAllOptions& options) override;
  WorkPtr send(Tensors& tensors, int dst, int tag) override;
  WorkPtr recv(Tensors& tensors, int src, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;
  WorkPtr run(const at::Tensor& output, const at::Tensor& input, CollectiveSpec spec) override;
  WorkPtr compare(Comparison comparison) override;
  NodeNumber next_node_number() override;
  WorkPtr all_reduce_rounded(const at::Tensor& tensor) override;
  void startCoalescing() override;
  WorkPtr endCoalescing() override;
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;
  BackendPtr split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                   const c10::intrusive_ptr<c10d::Backend::Options>& options) override;
  uint64_t getSequenceNumberForGroup() override;

 private:
  c10::intrusive_ptr<UcxBackend> world_or_null() const;
  // Raises BackendError where there is none.
  c10::intrusive_ptr<UcxBackend> world() const;
  const MeetingPlace& place() const;
  std::chrono::milliseconds timeout() const;

  const GroupCall call_;
  mutable Mutex mu_;
  // Made when its handle is asked for.
  mutable std::unique_ptr<MeetingPlace> place_ MESHRUN_GUARDED_BY(mu_);
  c10::intrusive_ptr<UcxBackend> world_ MESHRUN_GUARDED_BY(mu_);
  std::chrono::milliseconds timeout_ MESHRUN_GUARDED_BY(mu_);
  // A uuid may serve once.
  std::set<int64_t> used_ MESHRUN_GUARDED_BY(mu_);
};

}  // namespace meshrun::python
