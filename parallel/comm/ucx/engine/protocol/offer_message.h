// What a receiver tells, before a message that the sender may write straight into its memory
// (shared_heap.h): where the bytes belong. On the wire as it stands. Pure; no errors.
#pragma once

#include <cstdint>
#include <optional>

#include "parallel/base/strided_span.h"
#include "parallel/comm/ucx/engine/planning/schedule.h"

namespace meshrun::ucx {

struct OfferMessage {
  static constexpr uint64_t kNone = ~uint64_t{0};
  uint64_t sequence = 0;
  uint64_t offset = kNone;  // in the receiver's heap; kNone: it is not in there
  int64_t bytes = 0;        // that the receiver expects
  // Where they lie in rows: of what length, how far apart, and how many bytes of the row at
  // `offset` come before them. A row of 0 bytes: they are one run.
  int64_t row_bytes = 0, pitch = 0, skipped = 0;

  // A region of `piece`; `offset` is where its row begins.
  void describe(const Layout& piece, const Region& region);
  // Rows that the bytes lie in; absent: these numbers describe none.
  std::optional<Layout> layout() const;
};

}  // namespace meshrun::ucx
