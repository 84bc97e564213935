#include "parallel/comm/point_to_point/slices.h"

#include <algorithm>

#include "ATen/ops/empty.h"
#include "c10/core/ScalarTypeToTypeMeta.h"
#include "c10/core/TensorImpl.h"

namespace meshrun::point_to_point {
namespace {

// Packed slices begin where 16-byte accesses can.
constexpr int64_t kAlignment = 16;

int64_t aligned(int64_t elements, int64_t element_size) {
  const int64_t unit = std::max<int64_t>(kAlignment / element_size, 1);
  return (elements + unit - 1) / unit * unit;
}

at::Tensor byte_view(const at::Tensor& tensor, int64_t begin, int64_t count) {
  return memory_view(tensor, c10::kByte, begin, count);
}

}  // namespace

at::Tensor memory_view(const at::Tensor& tensor, c10::ScalarType type, int64_t begin,
                       int64_t count) {
  auto view =
      c10::make_intrusive<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(tensor.storage()),
                                           tensor.key_set(), c10::scalarTypeToTypeMeta(type));
  const auto size = static_cast<int64_t>(c10::elementSize(type));
  view->set_storage_offset(tensor.storage_offset() * tensor.element_size() / size + begin);
  view->set_sizes_contiguous({count});
  return at::Tensor(std::move(view));
}

bool can_travel(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

at::Tensor slice_of(const at::Tensor& tensor, const Cut& cut, int rank) {
  return tensor.narrow(cut.dim, cut.begin(rank), cut.of(rank));
}

void copy_own(const at::Tensor& output, const at::Tensor& input) {
  const bool is_there = output.const_data_ptr() == input.const_data_ptr() &&
                        output.strides() == input.strides() &&
                        output.is_conj() == input.is_conj() && output.is_neg() == input.is_neg();
  if (output.numel() > 0 && !is_there) output.copy_(input);
}

void copy_own_into_bytes(const at::Tensor& bytes, const at::Tensor& input) {
  if (can_travel(input) && input.const_data_ptr() == bytes.const_data_ptr()) return;
  memory_view(bytes, input.scalar_type(), 0, input.numel()).view(input.sizes()).copy_(input);
}

Slices::Slices(const at::Tensor& tensor, const Cut& cut, int skipped, Place place)
    : tensor(tensor), dim(cut.dim), bytes(cut.sizes.size()) {
  const Extents& sizes = cut.sizes;
  const int64_t element = tensor.element_size();
  int64_t outer = 1, inner = 1;
  for (int64_t d = 0; d < dim; ++d) outer *= tensor.size(d);
  for (int64_t d = dim + 1; d < tensor.dim(); ++d) inner *= tensor.size(d);
  const bool is_plain = can_travel(tensor);
  if (is_plain && outer == 1) {
    int64_t begin = 0;
    for (size_t rank = 0; rank < sizes.size(); ++rank) {
      const int64_t count = sizes[rank] * inner * element;
      if (count > 0 && static_cast<int>(rank) != skipped) {
        bytes[rank] = byte_view(tensor, begin, count);
      }
      begin += count;
    }
    if (place == Place::kOneBlock) block = tensor;
    return;
  }

  std::vector<size_t> ranks;
  int64_t begin = 0, elements = 0;
  for (size_t rank = 0; rank < sizes.size(); begin += sizes[rank++]) {
    const int64_t count = outer * sizes[rank] * inner;
    if (count == 0 || static_cast<int>(rank) == skipped) continue;
    // A slice of a plain tensor with rows before it lies together where it is all of it.
    if (place == Place::kWhereTheyLie && (!is_plain || sizes[rank] == tensor.size(dim))) {
      const at::Tensor slice = tensor.narrow(dim, begin, sizes[rank]);
      if (can_travel(slice)) {
        bytes[rank] = byte_view(slice, 0, count * element);
        continue;
      }
    }
    ranks.push_back(rank);
    packed.push_back({begin, sizes[rank], elements});
    elements += place == Place::kOneBlock ? count : aligned(count, element);
  }
  if (packed.empty()) return;
  buffer = at::empty({elements}, tensor.options());
  if (place == Place::kOneBlock) block = buffer;
  for (size_t i = 0; i < packed.size(); ++i) {
    bytes[ranks[i]] =
        byte_view(buffer, packed[i].offset * element, outer * packed[i].size * inner * element);
  }
}

Slices whole(const at::Tensor& tensor, int64_t dim) {
  return {tensor, Cut{dim, {tensor.size(dim)}}, -1};
}

}  // namespace meshrun::point_to_point
