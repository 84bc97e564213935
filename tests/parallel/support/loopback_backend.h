// A backend of one rank of a group of any size, without wire: the other ranks take part at once and
// contribute nothing. For what a collective costs on its own rank, and for tests of what is made
// around the backend, where no process is to be started.
//
//   all_gather_v, gather_v     the other pieces are zeros
//   reduce_scatter_v           the other ranks add zero
//   scatter_v                  off the root, the piece is zeros
//   all_to_all_v               what comes from the others is zeros
//   allreduce                  the other ranks have the neutral element
//
// So each is the adjoint of its backward, as with real ranks. A call with a problem, or with sizes
// that do not fit its tensors, ends with CollectiveArgumentError from its Work. Everything is
// counted, and the last CollectiveSpec is kept.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallel/comm/interface/v_collectives.h"
#include "torch/csrc/distributed/c10d/Backend.hpp"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun {

class LoopbackBackend : public c10d::Backend, public VCollectives {
 public:
  LoopbackBackend(int rank, int size);

  // A group with this backend for CPU tensors.
  static c10::intrusive_ptr<c10d::ProcessGroup> make_group(int rank, int size);
  static LoopbackBackend& of(const c10::intrusive_ptr<c10d::ProcessGroup>& group);

  const std::string getBackendName() const override { return "loopback"; }

  WorkPtr run(const at::Tensor& output, const at::Tensor& input, CollectiveSpec spec) override;

  WorkPtr allreduce(std::vector<at::Tensor>& tensors,
                    const c10d::AllreduceOptions& options) override;

  // From now on copies are tensor operators, which a RecordFunction sees.
  void copy_by_operators() { by_operators_ = true; }

  int64_t num_calls() const { return num_calls_; }
  int64_t bytes_copied() const { return bytes_copied_; }
  // To other ranks, in all_to_all_v.
  int64_t bytes_sent() const { return bytes_sent_; }
  // From other ranks, in v-collectives; what is added up counts once for each rank that has it.
  int64_t bytes_received() const { return bytes_received_; }
  // This rank's, in allreduce: what such a call sends is the backend's.
  int64_t bytes_reduced() const { return bytes_reduced_; }
  const CollectiveSpec& last_call() const { return last_call_; }

 private:
  // Slice `rank` of `to` = `from`; the rest of `to` = 0.
  void write_own(const at::Tensor& to, const Cut& cut, const at::Tensor& from);
  void exchange(const at::Tensor& output, const at::Tensor& input, const CollectiveSpec& spec);
  void copy(const at::Tensor& to, const at::Tensor& from);

  WorkPtr done_;
  bool by_operators_ = false;
  int64_t num_calls_ = 0;
  int64_t bytes_copied_ = 0;
  int64_t bytes_sent_ = 0;
  int64_t bytes_received_ = 0;
  CollectiveSpec last_call_;
  int64_t bytes_reduced_ = 0;
};

}  // namespace meshrun
