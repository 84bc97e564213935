// What a backend queues on a GPU's current stream for a caller that waits at once, without what
// c10d makes of each call for one that waits later: a Work, a future, a record, events between
// streams.
//
// Each rank chooses for itself: between two ranks these are the same calls of NCCL, of the same
// sizes and in the same order, as through c10d's methods. Everything but sums is bytes. A CUDA
// graph can capture the calls; nobody watches its replays. Else the backend ends the process where
// a call takes longer than the group's timeout or a peer is lost, as it does for c10d's calls.
//
// The caller keeps the memory until the stream is past the call. Threads: as c10d::Backend. Errors:
// the backend's own.
#pragma once

#include <cstddef>
#include <span>

#include "c10/core/Device.h"
#include "c10/core/ScalarType.h"

namespace meshrun {

class StreamCalls {
 public:
  struct Piece {
    void* data = nullptr;
    size_t bytes = 0;  // 0: nothing travels
  };

  virtual ~StreamCalls() = default;

  // Whether calls may go this way now; else c10d's methods have something to add.
  virtual bool takes_calls(c10::Device device) = 0;
  // `all` has as many bytes from each rank as `own`.
  virtual void all_gather(c10::Device device, void* all, Piece own) = 0;
  // `sum` has `count` numbers, `all` as many for each rank.
  virtual void reduce_scatter(c10::Device device, void* sum, const void* all, size_t count,
                              c10::ScalarType type) = 0;
  // By rank; a rank's own piece is copied, and has to be in both or in neither.
  virtual void send_and_receive(c10::Device device, std::span<const Piece> sends,
                                std::span<const Piece> receives) = 0;
  // By the rank that has it; this rank's comes from `own`, which may be its place in `pieces`.
  virtual void broadcast_each(c10::Device device, std::span<const Piece> pieces,
                              const void* own) = 0;
};

}  // namespace meshrun
