// What a backend queues on a GPU's current stream for a caller that waits at once, without what
// c10d makes of each call for one that waits later: a future, a record, events between streams.
//
// A rank's own choice: each function calls what c10d's method of the same name calls, so that a
// peer may use that. Everything but sums is bytes. Calls can be captured in a CUDA graph. They
// count as c10d's do for the watchdog, which ends the group where a call takes longer than
// `timeout` or a peer is lost.
//
// Threads: as c10d::Backend. Errors: the backend's own.
#pragma once

#include <chrono>
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
  struct Where {
    c10::Device device;
    std::chrono::milliseconds timeout;  // not positive: the group's
  };

  virtual ~StreamCalls() = default;

  // Whether the next call may go this way; else c10d's method has something to add.
  virtual bool takes_next(c10::Device device) = 0;
  // `all` has as many bytes from each rank as `own`.
  virtual void all_gather(const Where& where, void* all, Piece own) = 0;
  // `sum` has `count` numbers, `all` as many for each rank.
  virtual void reduce_scatter(const Where& where, void* sum, const void* all, size_t count,
                              c10::ScalarType type) = 0;
  // By rank; a rank's own piece is copied, and has to be in both or in neither.
  virtual void send_and_receive(const Where& where, std::span<const Piece> sends,
                                std::span<const Piece> receives) = 0;
  // By the rank that has it.
  virtual void broadcast_each(const Where& where, std::span<const Piece> pieces) = 0;
};

}  // namespace meshrun
