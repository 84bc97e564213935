#include "core/checkpoint/tensor_boxes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "core/checkpoint/box_runs.h"
#include "core/status.h"

namespace meshrun {
namespace {

using Boxes = std::vector<const TensorBox*>;

// Boxes of real checkpoints are separated by a cut or two in each dimension.
constexpr int kMostCuts = 64;

unsigned __int128 Volume(const TensorBox& box) {
  unsigned __int128 volume = 1;
  for (const int64_t size : box.sizes) volume *= static_cast<uint64_t>(size);
  return volume;
}

absl::Status Missing(const std::string& name, const TensorBox& part) {
  return absl::DataLossError(
      fmt::format("{} is damaged: no chunk has {}, or a part of it", name, part.Describe()));
}

// Whether `boxes`, all within `region`, cover it. Where a cut through all of the region separates
// boxes, each side is looked at by itself.
absl::Status CheckRegion(const std::string& name, const TensorBox& region, Boxes boxes, int cuts) {
  if (boxes.empty()) return Missing(name, region);
  if (boxes.size() == 1 && boxes[0]->sizes == region.sizes) return absl::OkStatus();
  for (size_t dim = 0; dim < region.begin.size() && cuts < kMostCuts; ++dim) {
    std::ranges::sort(boxes, {}, [&](const TensorBox* box) { return box->begin[dim]; });
    // Ends of the parts that cuts across this dimension make.
    std::vector<size_t> ends;
    int64_t covered = region.begin[dim];
    const auto gap = [&](int64_t until) {
      TensorBox part = region;
      part.begin[dim] = covered;
      part.sizes[dim] = until - covered;
      return Missing(name, part);
    };
    for (size_t k = 0; k < boxes.size(); ++k) {
      const int64_t begin = boxes[k]->begin[dim];
      if (begin > covered) return gap(begin);
      if (k > 0 && begin == covered) ends.push_back(k);
      covered = std::max(covered, begin + boxes[k]->sizes[dim]);
    }
    if (covered < region.begin[dim] + region.sizes[dim]) {
      return gap(region.begin[dim] + region.sizes[dim]);
    }
    if (ends.empty()) continue;
    ends.push_back(boxes.size());
    size_t first = 0;
    for (const size_t end : ends) {
      Boxes part(boxes.begin() + static_cast<std::ptrdiff_t>(first),
                 boxes.begin() + static_cast<std::ptrdiff_t>(end));
      TensorBox side = region;
      side.begin[dim] = part.front()->begin[dim];
      const int64_t until =
          end == boxes.size() ? region.begin[dim] + region.sizes[dim] : boxes[end]->begin[dim];
      side.sizes[dim] = until - side.begin[dim];
      MESHRUN_RETURN_IF_ERROR(CheckRegion(name, side, std::move(part), cuts + 1));
      first = end;
    }
    return absl::OkStatus();
  }
  unsigned __int128 volume = 0;
  for (const TensorBox* box : boxes) volume += Volume(*box);
  if (volume < Volume(region)) return Missing(name, region);
  if (volume > Volume(region)) {
    return absl::DataLossError(fmt::format("{} is damaged: {} chunks overlap within {}", name,
                                           boxes.size(), region.Describe()));
  }
  return absl::UnimplementedError(
      fmt::format("{}: its {} chunks within {} overlap or interlock, and only those that straight "
                  "cuts separate are read",
                  name, boxes.size(), region.Describe()));
}

}  // namespace

std::string TensorBox::Describe() const {
  std::vector<int64_t> end = begin;
  for (size_t k = 0; k < end.size() && k < sizes.size(); ++k) end[k] += sizes[k];
  return fmt::format("[{}] to [{}]", fmt::join(begin, ", "), fmt::join(end, ", "));
}

absl::Status CheckCover(const std::string& name, const std::vector<int64_t>& shape,
                        std::span<const TensorBox* const> boxes) {
  Boxes filled;
  for (const TensorBox* box : boxes) {
    bool inside = box->begin.size() == shape.size() && box->sizes.size() == shape.size();
    bool empty = false;
    for (size_t k = 0; inside && k < shape.size(); ++k) {
      inside = box->begin[k] >= 0 && box->sizes[k] >= 0 && box->sizes[k] <= shape[k] &&
               box->begin[k] <= shape[k] - box->sizes[k];
      empty = empty || box->sizes[k] == 0;
    }
    if (!inside) {
      return absl::DataLossError(fmt::format(
          "{} is damaged: a chunk at [{}] of the sizes [{}] is not within [{}]", name,
          fmt::join(box->begin, ", "), fmt::join(box->sizes, ", "), fmt::join(shape, ", ")));
    }
    if (!empty) filled.push_back(box);
  }
  if (std::ranges::find(shape, 0) != shape.end()) return absl::OkStatus();
  const TensorBox all = {.begin = std::vector<int64_t>(shape.size(), 0), .sizes = shape};
  return CheckRegion(name, all, std::move(filled), 0);
}

absl::Status ReadFromBox(const std::vector<int64_t>& shape, uint64_t element_bytes,
                         const TensorBox& box, uint64_t begin, std::span<char> to,
                         const ReadBox& read) {
  constexpr uint64_t kBuffer = uint64_t{1} << 20;
  const BoxRuns rows(shape, box.begin, box.sizes, element_bytes);
  const uint64_t end = begin + to.size();
  uint64_t row = rows.FirstEndingAfter(begin);
  const uint64_t end_row = rows.FirstFrom(end);
  std::string buffer;
  while (row < end_row) {
    const uint64_t count = std::min(end_row - row, std::max<uint64_t>(1, kBuffer / rows.length()));
    // One long row needs no buffer, and perhaps only a part of it is wanted.
    const bool direct = count == 1;
    if (!direct) {
      buffer.resize(count * rows.length());
      MESHRUN_RETURN_IF_ERROR(read(row * rows.length(), buffer));
    }
    for (uint64_t k = 0; k < count; ++k) {
      const uint64_t at = rows.Place(row + k);
      const uint64_t from = std::max(at, begin);
      const auto part = to.subspan(from - begin, std::min(at + rows.length(), end) - from);
      if (direct) {
        MESHRUN_RETURN_IF_ERROR(read((row + k) * rows.length() + (from - at), part));
      } else {
        std::memcpy(part.data(), buffer.data() + k * rows.length() + (from - at), part.size());
      }
    }
    row += count;
  }
  return absl::OkStatus();
}

}  // namespace meshrun
