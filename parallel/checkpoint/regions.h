// Regions of a row-major tensor, and where their elements lie in it and in the region's own memory.
// Without LibTorch; pure, no errors.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace meshrun {

// The elements [begin[d], begin[d] + size[d]) along each dimension d of a tensor of `shape`.
struct Region {
  std::vector<int64_t> shape;
  std::vector<int64_t> begin;
  std::vector<int64_t> size;

  static Region whole(std::vector<int64_t> shape);
  // Elements [first, first + count) of a tensor that has `elements`, flattened.
  static Region flat(int64_t elements, int64_t first, int64_t count);
  int64_t elements() const;
  bool is_whole() const { return elements() == whole(shape).elements(); }
  bool operator==(const Region&) const = default;
};

// Elements that follow one another in the tensor and in the region.
struct RegionRun {
  int64_t in_tensor = 0;
  int64_t in_region = 0;
  int64_t count = 0;
};

// Number of runs of the region; 0 for one without elements.
int64_t run_count(const Region& region);

// Calls `visit` with the runs of the region in order, cut to the tensor's elements [first, last).
void visit_runs(const Region& region, int64_t first, int64_t last,
                const std::function<void(const RegionRun&)>& visit);

// Elements that two regions of a tensor have in common, and that follow one another in both.
struct CommonRun {
  int64_t in_tensor = 0;
  int64_t in_first = 0;
  int64_t in_second = 0;
  int64_t count = 0;
};

// Calls `visit` with what two regions have in common, in order, cut to the tensor's elements
// [first, last). The tensor may have one shape in one region and another in the other.
void visit_common_runs(const Region& one, const Region& other, int64_t first, int64_t last,
                       const std::function<void(const CommonRun&)>& visit);

// Whether each element of the tensor is in exactly one of the regions, which have one shape, or all
// are in one of them. Regions that are equal count once.
bool cover_tensor(std::vector<Region> regions);

// The region in a tensor of `shape`, which has the same elements in the same order: as it is, or,
// for one run of the flattened tensor, up to two boxes for each dimension. Their elements follow
// one another in the region's own memory, too.
std::vector<Region> boxes_of(const Region& region, const std::vector<int64_t>& shape);

// Elements of the region before the element `element` of the tensor: where it is, or would be, in
// the region's own memory.
int64_t count_before(const Region& region, int64_t element);

// Elements of the region among the elements [first, last) of the tensor. Takes the time of some
// divisions, not that of the runs.
int64_t count_within(const Region& region, int64_t first, int64_t last);

}  // namespace meshrun
