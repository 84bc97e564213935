// Says where bytes lie in the heap of the rank that sends it (shared_heap.h). A receiver sends it
// before a message, so that the sender can write the message straight there. A sender sends it in
// place of a message, so that the receiver can read the message there; the receiver sends it back
// when it is done. On the wire as it stands. Pure; no errors.
#pragma once

#include <cstdint>
#include <optional>

#include "parallel/base/strided_span.h"
#include "parallel/comm/ucx/engine/planning/schedule.h"

namespace meshrun::ucx {

struct OfferMessage {
  static constexpr uint64_t kNone = ~uint64_t{0};
  uint64_t sequence = 0;
  uint64_t offset = kNone;  // in the heap; kNone: they are not in there
  int64_t bytes = 0;        // that the receiver expects, or the sender sends; of an answer: read
  // Where they lie in rows: of what length, how far apart, and how many bytes of the row at
  // `offset` come before them. A row of 0 bytes: they are one run.
  int64_t row_bytes = 0, pitch = 0, skipped = 0;

  // A region of `piece`; `offset` is where its row begins.
  void describe(const Layout& piece, const Region& region);
  // Rows that the bytes lie in; absent: these numbers describe none.
  std::optional<Layout> layout() const;
};

}  // namespace meshrun::ucx
