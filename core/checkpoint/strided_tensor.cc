#include "core/checkpoint/strided_tensor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "core/status.h"

namespace meshrun {
namespace {

constexpr uint64_t kLargestBuffer = uint64_t{1} << 20;
// A read of its own costs about as much as these bytes in a longer one.
constexpr uint64_t kBytesPerRead = 2048;

// Where runs of a tensor's elements lie one after another in the storage. Dimensions of extent 1 do
// not count.
struct Runs {
  std::vector<int64_t> shape;    // outer dimensions, which number the runs
  std::vector<int64_t> strides;  // elements
  uint64_t elements = 1;         // one run's
};

Runs FindRuns(const StridedTensor& tensor) {
  Runs runs;
  size_t outer = tensor.shape.size();
  while (outer > 0 && (tensor.shape[outer - 1] == 1 ||
                       static_cast<uint64_t>(tensor.strides[outer - 1]) == runs.elements)) {
    runs.elements *= static_cast<uint64_t>(tensor.shape[--outer]);
  }
  runs.shape.assign(tensor.shape.begin(), tensor.shape.begin() + static_cast<int64_t>(outer));
  runs.strides.assign(tensor.strides.begin(), tensor.strides.begin() + static_cast<int64_t>(outer));
  return runs;
}

std::vector<int64_t> IndexOf(const Runs& runs, uint64_t run) {
  std::vector<int64_t> index(runs.shape.size());
  for (size_t k = index.size(); k-- > 0;) {
    const uint64_t extent = static_cast<uint64_t>(runs.shape[k]);
    index[k] = static_cast<int64_t>(run % extent);
    run /= extent;
  }
  return index;
}

// Offset of that run in the storage, in elements.
int64_t OffsetOf(const StridedTensor& tensor, const Runs& runs, const std::vector<int64_t>& index) {
  int64_t offset = tensor.offset;
  for (size_t k = 0; k < index.size(); ++k) offset += index[k] * runs.strides[k];
  return offset;
}

// Changes signs in `bytes`, which are those of the tensor from `begin` on.
void Negate(const StridedTensor& tensor, uint64_t begin, std::span<char> bytes) {
  const bool complex = tensor.info.dtype == "C64" || tensor.element_bytes == 16;
  const uint64_t number = tensor.element_bytes / (complex ? 2 : 1);
  // The sign is in the last byte of each number.
  for (uint64_t k = (number - 1) - begin % number; k < bytes.size(); k += number) {
    const bool second = complex && (begin + k) / number % 2 == 1;
    if (second ? tensor.negates_second : tensor.negates_first) {
      bytes[k] = static_cast<char>(bytes[k] ^ 0x80);
    }
  }
}

// Runs whose indices are a box.
struct Box {
  std::vector<int64_t> begin;
  std::vector<int64_t> extents;
};

// The largest box that begins with the run `first` and has no more than `most` runs, all of them
// one after another in the tensor.
Box BoxFrom(const Runs& runs, uint64_t first, uint64_t most) {
  Box box = {.begin = IndexOf(runs, first), .extents = std::vector<int64_t>(runs.shape.size(), 1)};
  for (size_t k = runs.shape.size(); k-- > 0;) {
    const uint64_t left = static_cast<uint64_t>(runs.shape[k] - box.begin[k]);
    const uint64_t extent = std::min(left, most);
    box.extents[k] = static_cast<int64_t>(extent);
    if (box.begin[k] != 0 || extent != left) break;
    most /= extent;
    if (most < 2) break;
  }
  return box;
}

// Fills `to` with the runs of a box. It follows the dimension whose runs are nearest to each other
// in the storage, and reads what is near together, with what lies between.
absl::Status ReadBoxOfRuns(const StridedTensor& tensor, const Runs& runs, const Box& box,
                           std::span<char> to) {
  const size_t dims = box.extents.size();
  const uint64_t run_bytes = runs.elements * tensor.element_bytes;
  std::vector<uint64_t> places(dims);  // bytes in `to` from one index to the next
  uint64_t place = run_bytes;
  size_t along = dims;
  for (size_t k = dims; k-- > 0;) {
    places[k] = place;
    place *= static_cast<uint64_t>(box.extents[k]);
    const bool nearer = along == dims || runs.strides[k] < runs.strides[along];
    if (box.extents[k] > 1 && nearer) along = k;
  }
  std::vector<int64_t> index = box.begin;
  uint64_t count = 1;
  uint64_t step = 0;
  uint64_t at_once = 1;
  if (along < dims) {
    count = static_cast<uint64_t>(box.extents[along]);
    step = static_cast<uint64_t>(runs.strides[along]) * tensor.element_bytes;
    if (step <= kBytesPerRead && run_bytes < kLargestBuffer) {
      at_once = step == 0 ? count : std::min(count, (kLargestBuffer - run_bytes) / step + 1);
    }
  }
  std::string buffer(at_once > 1 ? (at_once - 1) * step + run_bytes : 0, '\0');
  while (true) {
    const uint64_t from =
        static_cast<uint64_t>(OffsetOf(tensor, runs, index)) * tensor.element_bytes;
    uint64_t target = 0;
    for (size_t k = 0; k < dims; ++k) {
      target += static_cast<uint64_t>(index[k] - box.begin[k]) * places[k];
    }
    for (uint64_t k = 0; k < count; k += at_once) {
      const uint64_t now = std::min(at_once, count - k);
      if (at_once == 1) {
        const uint64_t skip = along < dims ? k * places[along] : 0;
        MESHRUN_RETURN_IF_ERROR(
            tensor.storage.Read(from + k * step, to.subspan(target + skip, run_bytes)));
        continue;
      }
      const std::span<char> part = std::span(buffer).first((now - 1) * step + run_bytes);
      MESHRUN_RETURN_IF_ERROR(tensor.storage.Read(from + k * step, part));
      char* out = to.data() + target + k * places[along];
      for (uint64_t run = 0; run < now; ++run, out += places[along]) {
        std::memcpy(out, part.data() + run * step, run_bytes);
      }
    }
    // The next index of the other dimensions.
    size_t k = dims;
    while (k-- > 0) {
      if (k == along) continue;
      if (++index[k] < box.begin[k] + box.extents[k]) break;
      index[k] = box.begin[k];
    }
    if (k == SIZE_MAX) return absl::OkStatus();
  }
}

absl::Status ReadRuns(const StridedTensor& tensor, const Runs& runs, uint64_t begin,
                      std::span<char> to) {
  const uint64_t run_bytes = runs.elements * tensor.element_bytes;
  uint64_t run = begin / run_bytes;
  uint64_t skip = begin % run_bytes;
  while (!to.empty()) {
    if (skip != 0 || to.size() < run_bytes) {
      // A part of a run, at an end of the range.
      const auto part = to.first(std::min<uint64_t>(to.size(), run_bytes - skip));
      const auto at = static_cast<uint64_t>(OffsetOf(tensor, runs, IndexOf(runs, run)));
      MESHRUN_RETURN_IF_ERROR(tensor.storage.Read(at * tensor.element_bytes + skip, part));
      to = to.subspan(part.size());
      ++run;
      skip = 0;
      continue;
    }
    const Box box = BoxFrom(runs, run, to.size() / run_bytes);
    uint64_t count = 1;
    for (const int64_t extent : box.extents) count *= static_cast<uint64_t>(extent);
    MESHRUN_RETURN_IF_ERROR(ReadBoxOfRuns(tensor, runs, box, to.first(count * run_bytes)));
    to = to.subspan(count * run_bytes);
    run += count;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckStrides(const StridedTensor& tensor, const std::string& name) {
  const auto damaged = [&](std::string_view reason) {
    return absl::DataLossError(fmt::format("{} is damaged: {}, {}, {}", tensor.storage.Describe(),
                                           name, DescribeTensor(tensor.info), reason));
  };
  if (tensor.strides.size() != tensor.shape.size()) {
    return damaged(fmt::format("has {} strides", tensor.strides.size()));
  }
  // The place of the last element. Strides of an empty tensor do not matter.
  int64_t last = tensor.offset;
  bool fits = last >= 0;
  bool empty = false;
  for (size_t k = 0; k < tensor.shape.size(); ++k) {
    int64_t distance = 0;
    if (tensor.strides[k] < 0 || tensor.shape[k] < 0) {
      return damaged("has a negative stride or extent");
    }
    empty = empty || tensor.shape[k] == 0;
    fits = fits && !__builtin_mul_overflow(tensor.shape[k] - 1, tensor.strides[k], &distance) &&
           !__builtin_add_overflow(last, distance, &last);
  }
  const uint64_t elements = tensor.storage.size() / tensor.element_bytes;
  if (empty || (fits && static_cast<uint64_t>(last) < elements)) return absl::OkStatus();
  return damaged(fmt::format("is not within its storage of {} elements", elements));
}

absl::Status ReadStrided(const StridedTensor& tensor, uint64_t begin, std::span<char> to) {
  if (to.empty()) return absl::OkStatus();
  MESHRUN_RETURN_IF_ERROR(ReadRuns(tensor, FindRuns(tensor), begin, to));
  if (tensor.negates_first || tensor.negates_second) Negate(tensor, begin, to);
  return absl::OkStatus();
}

}  // namespace meshrun
