#include "parallel/checkpoint/regions.h"

#include <algorithm>
#include <functional>
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
  if (std::ranges::find_if(regions, [](const Region& each) {
        return each.elements() == Region::whole(each.shape).elements();
      }) != regions.end()) {
    return true;
  }
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
