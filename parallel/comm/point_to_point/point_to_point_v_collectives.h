// The v-collectives over sends and receives: for every c10d::Backend that has none of its own.
//
// A slice that lies contiguous (along the first dim) is sent from and received into the tensor
// itself. Others go through one buffer and one copy for all of them (piece_kernels.h). Everything
// travels as bytes, so a backend without the dtype carries it. Empty slices send nothing, at either
// end; a rank's own slice is copied. Sums are taken here, in rank order, not by the backend.
//
//   startCoalescing() where the backend has it (NCCL): one group of sends and receives; on the
//                     current stream nothing is waited for, and a CUDA graph can capture it
//   else (Gloo)       isend and irecv of all
//
// NCCL: the group's communicator must be there already, since a rank may have nothing to send or
// to receive: make_process_group() connects it where options.device is given.
//
// The Work must be waited for: wait() also puts the result into place, on the current stream. An
// error in the arguments is raised by this rank alone, and its peers run into the backend's
// timeout, unless `compare` is given.
//
// Threads: as c10d::Backend. Errors, from the Work: CollectiveArgumentError, what `compare` raises,
// the backend's own.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "parallel/comm/interface/v_collectives.h"
#include "torch/csrc/distributed/c10d/Backend.hpp"

namespace meshrun {

class PointToPointVCollectives : public VCollectives {
 public:
  // Raises on every rank where ranks differ in `digest` or one has a problem:
  // CallComparer::compare.
  using Compare = std::function<WorkPtr(std::string what, uint64_t digest, VCall call)>;

  explicit PointToPointVCollectives(c10::intrusive_ptr<c10d::Backend> backend,
                                    Compare compare = nullptr);

  WorkPtr all_gather_v(const at::Tensor& output, const at::Tensor& input, at::IntArrayRef sizes,
                       int64_t dim, VCall call) override;
  WorkPtr reduce_scatter_v(const at::Tensor& output, const at::Tensor& input, at::IntArrayRef sizes,
                           int64_t dim, VCall call) override;
  WorkPtr gather_v(const at::Tensor& output, const at::Tensor& input, at::IntArrayRef sizes,
                   int64_t dim, int root, VCall call) override;
  WorkPtr scatter_v(const at::Tensor& output, const at::Tensor& input, at::IntArrayRef sizes,
                    int64_t dim, int root, VCall call) override;
  WorkPtr all_to_all_v(const at::Tensor& output, at::IntArrayRef output_sizes, int64_t output_dim,
                       const at::Tensor& input, at::IntArrayRef input_sizes, int64_t input_dim,
                       VCall call) override;

 private:
  struct Exchange;
  struct Agreed;
  // Raises where the call cannot go on.
  void agree(const Agreed& agreed, VCall& call, std::string problem) const;
  WorkPtr run(Exchange exchange, c10d::OpType type, const VCall& call) const;

  const c10::intrusive_ptr<c10d::Backend> backend_;
  const Compare compare_;
  const int rank_;
  const int size_;
};

}  // namespace meshrun
