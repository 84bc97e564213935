// ProcessGroupNCCL, with calls that are only queued (stream_calls.h).
//
// c10d's watchdog ends a group whose calls take too long or whose peers are lost, and knows the
// group by the Works that it is given. To make one takes as long as a call of NCCL. So a call only
// records an event, and every 100 ms, which is how often the watchdog looks, the last event becomes
// a Work: what is waited for on one stream is through when the last of it is.
//
// Protected members of ProcessGroupNCCL are used: look at them again with each LibTorch.
// Threads: as ProcessGroupNCCL. Errors: c10::DistBackendError, with NCCL's words.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "ATen/cuda/CUDAEvent.h"
#include "core/mutex.h"
#include "nccl.h"
#include "parallel/comm/interface/stream_calls.h"
#include "torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp"

namespace meshrun {

class NcclGroup final : public c10d::ProcessGroupNCCL, public StreamCalls {
 public:
  NcclGroup(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
            c10::intrusive_ptr<Options> options);
  ~NcclGroup() override;

  // No for a profiler, where c10d's records are asked for (TORCH_FR_BUFFER_SIZE) and with its other
  // debug switches; and before c10d has made the communicator.
  bool takes_calls(c10::Device device) override;
  void all_gather(c10::Device device, void* all, Piece own) override;
  void reduce_scatter(c10::Device device, void* sum, const void* all, size_t count,
                      c10::ScalarType type) override;
  void send_and_receive(c10::Device device, std::span<const Piece> sends,
                        std::span<const Piece> receives) override;
  void broadcast_each(c10::Device device, std::span<const Piece> pieces, const void* own) override;

 private:
  class Watched;
  // The last call that no Work covers.
  struct Tail {
    std::shared_ptr<c10d::NCCLComm> communicator;
    c10::Device device;
    std::shared_ptr<at::cuda::CUDAEvent> end;
    c10::Stream stream;
    c10d::OpType type;
    uint64_t sequence_number;
  };

  template <typename Calls>
  void call(c10::Device device, c10d::OpType type, const Calls& calls);
  template <typename Calls>
  void grouped(c10::Device device, c10d::OpType type, const Calls& calls);
  void note(c10::Device device, c10d::OpType type, const c10::Stream& stream)
      MESHRUN_EXCLUDES(tail_mu_);
  std::shared_ptr<c10d::NCCLComm> communicator_of(c10::Device device);
  // Every 100 ms.
  void watch_tail() MESHRUN_EXCLUDES(tail_mu_);
  void watch(Tail tail);

  const bool records_are_asked_for_;
  Mutex tail_mu_;
  std::optional<Tail> tail_ MESHRUN_GUARDED_BY(tail_mu_);
};

}  // namespace meshrun
