// The v-collectives for every c10d::Backend that has none of its own: over sends and receives, and
// over whole collectives where the backend groups calls.
//
// A slice that lies contiguous (along the first dim) is sent from and received into the tensor
// itself. Others go through one buffer and one copy for all of them (slices.h). Everything that is
// only moved travels as bytes, so a backend without the dtype carries it. Empty slices send
// nothing, at either end.
//
//   startCoalescing() where the backend has it (NCCL): one group of calls; on the current stream
//                     nothing is waited for, and a CUDA graph can capture it. all_gather_v is one
//                     all-gather of equal pieces, and a broadcast for each where they are very
//                     uneven (gather_route.h); reduce_scatter_v of equal pieces is one
//                     reduce-scatter, where the backend adds the dtype and order does not matter or
//                     MESHRUN_REDUCTION_ORDER lets it be the backend's
//   else (Gloo)       isend and irecv of all
//
// All other sums are taken here, in rank order.
//
// A caller that waits at once is served by the backend's StreamCalls where it has them: the same
// calls of NCCL on the current stream, without c10d's part. Such a call has no Work of c10d's, so
// its own is complete once it is queued, as a call of c10d's with asyncOp false.
//
// NCCL: the group's communicator must be there already, since a rank may have nothing to send or
// to receive: make_process_group() connects it where options.device is given.
//
// The result comes about whether or not the Work is waited for (point_to_point_work.h). An error in
// the arguments is raised by this rank alone, and its peers run into the backend's timeout, unless
// `compare` is given. An all_to_all_v over a backend that does not group calls is compared in any
// case, by an all-gather (gathered_comparison.h): other sizes on other ranks would leave them
// waiting for each other.
//
// Threads: as c10d::Backend. Errors, from the Work: CollectiveArgumentError, what `compare` raises,
// the backend's own; BackendError for another MESHRUN_REDUCTION_ORDER than there is.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "parallel/comm/interface/call_comparer.h"
#include "parallel/comm/interface/stream_calls.h"
#include "parallel/comm/interface/v_collectives.h"
#include "torch/csrc/distributed/c10d/Backend.hpp"

namespace meshrun {

class PointToPointVCollectives : public VCollectives {
 public:
  // Raises on every rank where ranks differ, or one has a problem: CallComparer::compare.
  using Compare = std::function<WorkPtr(Comparison comparison)>;

  // `stream_calls`: the backend's; null: it has none.
  explicit PointToPointVCollectives(c10::intrusive_ptr<c10d::Backend> backend,
                                    Compare compare = nullptr, StreamCalls* stream_calls = nullptr);

  WorkPtr run(const at::Tensor& output, const at::Tensor& input, CollectiveSpec spec) override;

 private:
  struct Transfer;
  // Raises where the call cannot go on.
  void check(CollectiveSpec& spec, const at::Tensor& output, const at::Tensor& input) const;
  // Asks the backend once whether the call goes by its StreamCalls: the answer may change from one
  // moment to the next.
  Transfer begin(c10::Device device, const CollectiveSpec& spec) const;
  WorkPtr send_and_receive(Transfer transfer, const CollectiveSpec& spec) const;
  WorkPtr work_of(std::vector<WorkPtr> parts, Transfer transfer, const CollectiveSpec& spec) const;
  // Each kind, with arguments that are right.
  WorkPtr all_gather(const at::Tensor& output, const at::Tensor& input,
                     const CollectiveSpec& spec) const;
  WorkPtr reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                         const CollectiveSpec& spec) const;
  WorkPtr gather(const at::Tensor& output, const at::Tensor& input,
                 const CollectiveSpec& spec) const;
  WorkPtr scatter(const at::Tensor& output, const at::Tensor& input,
                  const CollectiveSpec& spec) const;
  WorkPtr all_to_all(const at::Tensor& output, const at::Tensor& input,
                     const CollectiveSpec& spec) const;
  // By c10d's collectives.
  WorkPtr gather_equal(const at::Tensor& output, const at::Tensor& input,
                       const CollectiveSpec& spec) const;
  WorkPtr gather_by_broadcasts(const at::Tensor& output, const at::Tensor& input,
                               const CollectiveSpec& spec) const;
  WorkPtr reduce_scatter_equal(const at::Tensor& output, const at::Tensor& input,
                               const CollectiveSpec& spec) const;

  const c10::intrusive_ptr<c10d::Backend> backend_;
  StreamCalls* const stream_calls_;
  const Compare compare_;
  const int rank_;
  const int size_;
  const bool groups_calls_;
};

}  // namespace meshrun
