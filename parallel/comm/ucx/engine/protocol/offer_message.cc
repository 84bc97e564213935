#include "parallel/comm/ucx/engine/protocol/offer_message.h"

namespace meshrun::ucx {

void OfferMessage::describe(const Layout& piece, const Region& region) {
  bytes = region.bytes;
  if (piece.is_contiguous(region.offset, region.bytes)) return;
  row_bytes = piece.row_bytes;
  pitch = piece.pitch;
  skipped = region.offset % piece.row_bytes;
}

std::optional<Layout> OfferMessage::layout() const {
  if (row_bytes == 0 && skipped == 0) return Layout{1, bytes, bytes};
  constexpr int64_t kMost = int64_t{1} << 47;  // an address space
  if (bytes < 0 || bytes > kMost || row_bytes <= 0 || pitch < row_bytes || pitch > kMost ||
      skipped < 0 || skipped >= row_bytes) {
    return std::nullopt;
  }
  const int64_t rows = (skipped + bytes + row_bytes - 1) / row_bytes;
  if (rows > kMost / pitch) return std::nullopt;
  return Layout{rows, row_bytes, pitch};
}

}  // namespace meshrun::ucx
