#include "parallel/shard/operators/lookup.h"

#include <algorithm>

#include "ATen/ops/_assert_async.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/where.h"
#include "fmt/format.h"

namespace meshrun {
namespace {

at::Tensor from_front(const at::Tensor& index, const PieceOf& piece, bool wraps) {
  if (index.is_cpu() && index.numel() > 0) {
    const auto low = index.min().item<int64_t>();
    const auto high = index.max().item<int64_t>();
    TORCH_CHECK_INDEX(low >= (wraps ? -piece.whole : 0) && high < piece.whole, "index ",
                      high < piece.whole ? low : high,
                      " is out of bounds for a dimension with size ", piece.whole);
  }
  at::Tensor positions = wraps ? at::where(index < 0, index + piece.whole, index) : index;
  if (!index.is_cpu()) assert_in_range(positions, piece.whole);
  return positions;
}

}  // namespace

Lookup lookup(const at::Tensor& index, const PieceOf& piece, bool wraps) {
  const at::Tensor own = from_front(index, piece, wraps) - piece.offset;
  return {own.clamp(0, std::max<int64_t>(piece.extent - 1, 0)),
          own.lt(0).bitwise_or(own.ge(piece.extent))};
}

at::Tensor with_spare_row(const at::Tensor& local, int64_t dim) {
  std::vector<int64_t> shape = local.sizes().vec();
  shape[static_cast<size_t>(dim)] = 1;
  const at::Tensor spare = local.new_zeros(shape);
  if (local.dim() > 1) return at::cat({local, spare}, dim);
  // cat() drops the history of a vector without elements.
  return at::cat({local.unsqueeze(1), spare.unsqueeze(1)}, 0).squeeze(1);
}

at::Tensor index_or_spare(const at::Tensor& index, const PieceOf& piece, bool wraps) {
  const at::Tensor own = from_front(index, piece, wraps) - piece.offset;
  return at::where(own.lt(0).bitwise_or(own.ge(piece.extent)), piece.extent, own);
}

void assert_in_range(const at::Tensor& from_front, int64_t whole) {
  if (from_front.numel() == 0) return;
  // CUDA takes at most 254 characters of a message.
  at::_assert_async(from_front.ge(0).bitwise_and(from_front.lt(whole)).all(),
                    fmt::format("an index is out of bounds for a dimension with size {}", whole));
}

}  // namespace meshrun
