#include "parallel/checkpoint/regions.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>

#include "core/checkpoint/box_runs.h"

namespace meshrun {
namespace {

BoxRuns runs_of(const Region& region) { return {region.shape, region.begin, region.size}; }

int64_t count_before(const BoxRuns& runs, int64_t element) {
  const auto length = static_cast<int64_t>(runs.length());
  const uint64_t index = runs.FirstEndingAfter(static_cast<uint64_t>(element));
  const int64_t whole = static_cast<int64_t>(index) * length;
  if (index == runs.count()) return whole;
  return whole + std::max<int64_t>(0, element - static_cast<int64_t>(runs.Place(index)));
}

// Regions of one shape.
bool overlap(const Region& one, const Region& other) {
  for (size_t d = 0; d < one.shape.size(); ++d) {
    const int64_t begin = std::max(one.begin[d], other.begin[d]);
    const int64_t end = std::min(one.begin[d] + one.size[d], other.begin[d] + other.size[d]);
    if (begin >= end) return false;
  }
  return true;
}

// Each element is in one region at most.
bool are_apart(const std::vector<Region>& regions) {
  for (auto one = regions.begin(); one != regions.end(); ++one) {
    if (std::any_of(std::next(one), regions.end(),
                    [&](const Region& other) { return overlap(*one, other); })) {
      return false;
    }
  }
  return true;
}

// Appends the boxes of the elements [first, last) of the part of `box` that its dimensions from
// `dim` on are; those before have one index.
void add_boxes(const Region& box, size_t dim, int64_t first, int64_t last,
               std::vector<Region>& boxes) {
  if (dim == box.shape.size()) return boxes.push_back(box);
  int64_t row = 1;
  for (size_t d = dim + 1; d < box.shape.size(); ++d) row *= box.shape[d];
  const auto rows = [&](int64_t begin, int64_t end) {
    Region part = box;
    part.begin[dim] = begin;
    part.size[dim] = end - begin;
    return part;
  };
  // A part of one row.
  const auto within = [&](int64_t at, int64_t begin, int64_t end) {
    if (begin < end) add_boxes(rows(at, at + 1), dim + 1, begin, end, boxes);
  };
  const int64_t begin = (first + row - 1) / row;
  const int64_t end = last / row;
  if (begin > end) return within(end, first - end * row, last - end * row);
  within(begin - 1, first - (begin - 1) * row, row);
  if (begin < end) boxes.push_back(rows(begin, end));
  within(end, 0, last - end * row);
}

}  // namespace

Region Region::whole(std::vector<int64_t> shape) {
  std::vector<int64_t> begin(shape.size(), 0);
  std::vector<int64_t> size = shape;
  return {std::move(shape), std::move(begin), std::move(size)};
}

Region Region::flat(int64_t elements, int64_t first, int64_t count) {
  return {{elements}, {first}, {count}};
}

int64_t Region::elements() const {
  return std::accumulate(size.begin(), size.end(), int64_t{1}, std::multiplies<>());
}

int64_t run_count(const Region& region) { return static_cast<int64_t>(runs_of(region).count()); }

void visit_runs(const Region& region, int64_t first, int64_t last,
                const std::function<void(const RegionRun&)>& visit) {
  const BoxRuns runs = runs_of(region);
  const auto length = static_cast<int64_t>(runs.length());
  for (uint64_t i = runs.FirstEndingAfter(static_cast<uint64_t>(first)); i < runs.count(); ++i) {
    const auto place = static_cast<int64_t>(runs.Place(i));
    if (place >= last) return;
    const int64_t begin = std::max(place, first);
    const int64_t end = std::min(place + length, last);
    visit({begin, static_cast<int64_t>(i) * length + (begin - place), end - begin});
  }
}

std::vector<Region> boxes_of(const Region& region, const std::vector<int64_t>& shape) {
  if (region.shape == shape) return {region};
  std::vector<Region> boxes;
  visit_runs(region, 0, std::numeric_limits<int64_t>::max(), [&](const RegionRun& run) {
    add_boxes(Region::whole(shape), 0, run.in_tensor, run.in_tensor + run.count, boxes);
  });
  return boxes;
}

void visit_common_runs(const Region& one, const Region& other, int64_t first, int64_t last,
                       const std::function<void(const CommonRun&)>& visit) {
  visit_runs(one, first, last, [&](const RegionRun& run) {
    visit_runs(other, run.in_tensor, run.in_tensor + run.count, [&](const RegionRun& common) {
      visit({common.in_tensor, run.in_region + (common.in_tensor - run.in_tensor), common.in_region,
             common.count});
    });
  });
}

bool cover_tensor(std::vector<Region> regions) {
  if (regions.empty()) return false;
  const Region whole = Region::whole(regions.front().shape);
  if (std::ranges::any_of(regions, &Region::is_whole)) return true;
  std::vector<Region> distinct;
  int64_t elements = 0;
  for (Region& region : regions) {
    if (region.shape != whole.shape) return false;
    if (region.elements() == 0 || std::ranges::find(distinct, region) != distinct.end()) continue;
    elements += region.elements();
    distinct.push_back(std::move(region));
  }
  return elements == whole.elements() && are_apart(distinct);
}

int64_t count_before(const Region& region, int64_t element) {
  return count_before(runs_of(region), element);
}

int64_t count_within(const Region& region, int64_t first, int64_t last) {
  if (last <= first) return 0;
  const BoxRuns runs = runs_of(region);
  return count_before(runs, last) - count_before(runs, first);
}

}  // namespace meshrun
