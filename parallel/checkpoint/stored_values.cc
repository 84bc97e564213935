#include "parallel/checkpoint/stored_values.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "core/checkpoint/xxh3.h"
#include "parallel/checkpoint/regions.h"
#include "parallel/comm/interface/carried.h"

namespace meshrun {
namespace {

using at::Tensor;

// Memory that a copy of a tensor without row-major memory takes at a time.
constexpr uint64_t kBlock = uint64_t{4} << 20;
// A tensor of so few bytes is copied as a whole.
constexpr uint64_t kSmall = 4096;

struct Dtype {
  at::ScalarType type;
  const char* name;
};

constexpr Dtype kDtypes[] = {{at::kBool, "BOOL"},
                             {at::kByte, "U8"},
                             {at::kChar, "I8"},
                             {at::kUInt16, "U16"},
                             {at::kShort, "I16"},
                             {at::kUInt32, "U32"},
                             {at::kInt, "I32"},
                             {at::kUInt64, "U64"},
                             {at::kLong, "I64"},
                             {at::kFloat8_e4m3fn, "F8_E4M3"},
                             {at::kFloat8_e5m2, "F8_E5M2"},
                             {at::kFloat8_e8m0fnu, "F8_E8M0"},
                             {at::kHalf, "F16"},
                             {at::kBFloat16, "BF16"},
                             {at::kFloat, "F32"},
                             {at::kDouble, "F64"},
                             {at::kComplexFloat, "C64"}};

const char* dtype_name(at::ScalarType type) {
  const auto* const found = std::ranges::find(kDtypes, type, &Dtype::type);
  TORCH_CHECK_TYPE(found != std::end(kDtypes), "the safetensors format has no ", type);
  return found->name;
}

bool is_plain(const Tensor& tensor) { return tensor.is_cpu() && tensor.is_contiguous(); }

// Calls visit(block, first) with tensors that together have the bytes [from, from + count) and a
// little more: `block` begins at byte `first`. Each is plain, or at most kBlock, or one element.
void visit_blocks(const Tensor& tensor, uint64_t first, uint64_t from, uint64_t count,
                  const std::function<void(const Tensor& block, uint64_t first)>& visit) {
  if (count == 0) return;
  const uint64_t bytes = tensor.nbytes();
  if (is_plain(tensor) || bytes <= kSmall || tensor.dim() == 0) return visit(tensor, first);
  if (tensor.is_contiguous() && tensor.dim() > 1) {
    return visit_blocks(tensor.view({-1}), first, from, count, visit);
  }
  const auto rows = static_cast<uint64_t>(tensor.size(0));
  const uint64_t row_bytes = bytes / rows;
  const uint64_t group = std::max<uint64_t>(1, kBlock / row_bytes);
  // Behind the last row that is asked for.
  const uint64_t last = std::min(rows, (from + count - first + row_bytes - 1) / row_bytes);
  for (uint64_t row = (from - first) / row_bytes; row < last;) {
    const uint64_t begin = first + row * row_bytes;
    const uint64_t size = std::min(group, last - row);
    const Tensor part = size == 1 && tensor.dim() > 1 ? tensor.select(0, static_cast<int64_t>(row))
                                                      : tensor.narrow(0, static_cast<int64_t>(row),
                                                                      static_cast<int64_t>(size));
    const uint64_t low = std::max(begin, from);
    const uint64_t high = std::min(begin + size * row_bytes, from + count);
    // One row may be larger than a block, or than what is asked for.
    if (size > 1) {
      visit(part, begin);
    } else {
      visit_blocks(part, begin, low, high - low, visit);
    }
    row += size;
  }
}

}  // namespace

TensorInfo stored_info(at::ScalarType dtype, std::vector<int64_t> shape) {
  if (dtype != at::kComplexDouble) return {dtype_name(dtype), std::move(shape)};
  shape.push_back(2);
  return {dtype_name(at::kDouble), std::move(shape)};
}

uint64_t stored_bytes(const TensorInfo& info) {
  return static_cast<uint64_t>(Region::whole(info.shape).elements()) *
         ElementBytes(info.dtype).value();
}

at::ScalarType dtype_of(const TensorInfo& info) {
  const auto* const found =
      std::ranges::find_if(kDtypes, [&](const Dtype& dtype) { return dtype.name == info.dtype; });
  TORCH_CHECK_TYPE(found != std::end(kDtypes), "LibTorch has no ", info.dtype);
  return found->type;
}

StoredValues::StoredValues(const Tensor& tensor) {
  const at::NoGradGuard no_grad;
  dtype_name(tensor.scalar_type() == at::kComplexDouble ? at::kDouble : tensor.scalar_type());
  values_ = carried(tensor.detach().resolve_conj().resolve_neg());
  bytes_ = values_.nbytes();
}

const char* StoredValues::memory() const {
  return is_plain(values_) ? static_cast<const char*>(values_.const_data_ptr()) : nullptr;
}

char* StoredValues::mutable_memory() const {
  return is_plain(values_) ? static_cast<char*>(values_.mutable_data_ptr()) : nullptr;
}

Tensor StoredValues::bytes() const {
  char* const memory = mutable_memory();
  if (memory == nullptr) return {};
  return at::from_blob(
      memory, {static_cast<int64_t>(bytes_)}, [held = values_](void*) {}, at::kByte);
}

void StoredValues::read(uint64_t from, std::span<char> to) const {
  const at::NoGradGuard no_grad;
  visit_blocks(values_, 0, from, to.size(), [&](const Tensor& block, uint64_t first) {
    const Tensor plain = is_plain(block) ? block : block.contiguous().cpu();
    const uint64_t begin = std::max(first, from);
    const uint64_t end = std::min(first + plain.nbytes(), from + to.size());
    std::memcpy(to.data() + (begin - from),
                static_cast<const char*>(plain.const_data_ptr()) + (begin - first), end - begin);
  });
}

void StoredValues::write(uint64_t from, std::string_view bytes) const {
  const at::NoGradGuard no_grad;
  visit_blocks(values_, 0, from, bytes.size(), [&](const Tensor& block, uint64_t first) {
    const uint64_t begin = std::max(first, from);
    const uint64_t end = std::min(first + block.nbytes(), from + bytes.size());
    const Tensor plain = is_plain(block) ? block : block.contiguous().cpu();
    std::memcpy(static_cast<char*>(plain.mutable_data_ptr()) + (begin - first),
                bytes.data() + (begin - from), end - begin);
    if (!is_plain(block)) block.copy_(plain);
  });
}

uint64_t StoredValues::sample() const {
  constexpr int64_t kWhole = 16384;
  constexpr int64_t kPage = 4096;
  constexpr int64_t kLine = 64;
  const at::NoGradGuard no_grad;
  // In the order of memory, which differs between ranks only where strides do.
  const Tensor dense = values_.is_non_overlapping_and_dense()
                           ? values_.as_strided({values_.numel()}, {1})
                           : values_.contiguous().view({-1});
  const auto hash = [](const Tensor& plain) {
    return Xxh3({static_cast<const char*>(plain.const_data_ptr()), plain.nbytes()}).low;
  };
  const auto size = static_cast<int64_t>(bytes_);
  if (size <= kWhole) return hash(dense.cpu());
  const int64_t pages = size / kPage;
  if (!dense.is_cpu()) {
    const Tensor paged = dense.view(at::kByte).narrow(0, 0, pages * kPage).view({pages, kPage});
    return hash(paged.narrow(1, 0, kLine).contiguous().cpu());
  }
  std::vector<char> lines(static_cast<size_t>(pages * kLine));
  const auto* const memory = static_cast<const char*>(dense.const_data_ptr());
  for (int64_t page = 0; page < pages; ++page) {
    std::memcpy(lines.data() + page * kLine, memory + page * kPage, kLine);
  }
  return Xxh3({lines.data(), lines.size()}).low;
}

}  // namespace meshrun
