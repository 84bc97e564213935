#include "parallel/checkpoint/regions.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "core/checkpoint/box_runs.h"

namespace meshrun {
namespace {

BoxRuns runs_of(const Region& region) { return {region.shape, region.begin, region.size}; }

// Elements of the region before the element `element` of the tensor.
int64_t count_before(const BoxRuns& runs, int64_t element) {
  const auto length = static_cast<int64_t>(runs.length());
  const uint64_t index = runs.FirstEndingAfter(static_cast<uint64_t>(element));
  const int64_t whole = static_cast<int64_t>(index) * length;
  if (index == runs.count()) return whole;
  return whole + std::max<int64_t>(0, element - static_cast<int64_t>(runs.Place(index)));
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

int64_t count_within(const Region& region, int64_t first, int64_t last) {
  if (last <= first) return 0;
  const BoxRuns runs = runs_of(region);
  return count_before(runs, last) - count_before(runs, first);
}

}  // namespace meshrun
