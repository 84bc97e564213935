// What a caller sees of ProcessGroupNCCL, for CPU and meta tensors and without wire: the dtypes
// that NCCL has and no others, groups of calls, and no Work for a call that is waited for at once
// (asyncOp false). The other ranks contribute zeros. Every call is written down: "all_gather Byte
// 12 of 36"; one by StreamCalls as "queued all_gather 12 of 36", in bytes.
//
// Threads: one at a time.
#pragma once

#include <string>
#include <vector>

#include "parallel/comm/interface/stream_calls.h"
#include "torch/csrc/distributed/c10d/Backend.hpp"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun {

class NcclStandIn : public c10d::Backend, public StreamCalls {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;

  using Backend::Backend;
  // A group with this backend for CPU tensors.
  static c10::intrusive_ptr<c10d::ProcessGroup> make_group(int rank, int size);
  static NcclStandIn& of(const c10::intrusive_ptr<c10d::ProcessGroup>& group);

  // Whether it takes StreamCalls; at first it does not.
  void take_stream_calls(bool takes) { takes_stream_calls_ = takes; }
  // What was called since the last time.
  std::vector<std::string> calls();

  const std::string getBackendName() const override { return "nccl stand-in"; }
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override;
  WorkPtr endCoalescing() override;

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  // Always with a Work.
  WorkPtr send(Tensors& tensors, int dst, int tag) override;
  WorkPtr recv(Tensors& tensors, int src, int tag) override;

  bool takes_calls(c10::Device device) override;
  void all_gather(c10::Device device, void* all, Piece own) override;
  void reduce_scatter(c10::Device device, void* sum, const void* all, size_t count,
                      c10::ScalarType type) override;
  void send_and_receive(c10::Device device, std::span<const Piece> sends,
                        std::span<const Piece> receives) override;
  void broadcast_each(c10::Device device, std::span<const Piece> pieces, const void* own) override;

 private:
  // Notes the call; its Work, or null.
  WorkPtr called(const std::string& what, const at::Tensor& tensor, bool async,
                 const std::string& rest = "");

  std::vector<std::string> calls_;
  bool is_grouping_ = false;
  bool group_is_async_ = false;
  bool takes_stream_calls_ = false;
};

}  // namespace meshrun
