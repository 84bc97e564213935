// Boxes that together are a tensor: the chunks of torch.distributed.checkpoint.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace meshrun {

struct TensorBox {
  std::vector<int64_t> begin;
  std::vector<int64_t> sizes;

  // "[0, 4] to [2, 8]", the end excluded.
  std::string Describe() const;
  bool operator==(const TensorBox&) const = default;
};

// Whether the boxes cover the tensor, and each element once. Boxes without elements do not matter.
// DATA_LOSS: a box is outside, a part is missing, or boxes overlap. UNIMPLEMENTED: no straight cut
// separates them, as those of a pinwheel. `name` is the subject of the text. Requires that the
// product of `shape` does not overflow.
absl::Status CheckCover(const std::string& name, const std::vector<int64_t>& shape,
                        std::span<const TensorBox* const> boxes);

// Reads bytes of a box as a tensor by itself, row-major.
using ReadBox = std::function<absl::Status(uint64_t begin, std::span<char> to)>;

// Fills those bytes of `to` that lie in the box; `to` has the bytes of the tensor from `begin` on.
// Calls `read` only if there are any. Requires that the box is inside and has elements. Memory:
// 1 MiB, or less.
absl::Status ReadFromBox(const std::vector<int64_t>& shape, uint64_t element_bytes,
                         const TensorBox& box, uint64_t begin, std::span<char> to,
                         const ReadBox& read);

}  // namespace meshrun
