#include "parallel/checkpoint/regions.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace meshrun {
namespace {

int64_t product(std::vector<int64_t>::const_iterator begin,
                std::vector<int64_t>::const_iterator end) {
  return std::accumulate(begin, end, int64_t{1}, std::multiplies<>());
}

// A region as equal runs: `outer` dimensions of the region number them.
class Runs {
 public:
  explicit Runs(const Region& region) : region_(region) {
    const size_t dims = region.shape.size();
    strides_.assign(dims, 1);
    for (size_t d = dims; d-- > 1;) strides_[d - 1] = strides_[d] * region.shape[d];
    // Trailing dimensions that the region has whole join the one before them.
    size_t joined = dims;
    while (joined > 0 && region.begin[joined - 1] == 0 &&
           region.size[joined - 1] == region.shape[joined - 1]) {
      --joined;
    }
    outer_ = joined > 0 ? joined - 1 : 0;
    length_ = product(region.size.begin() + static_cast<int64_t>(outer_), region.size.end());
    count_ = length_ == 0
                 ? 0
                 : product(region.size.begin(), region.size.begin() + static_cast<int64_t>(outer_));
    for (size_t d = 0; d < dims; ++d) first_ += region.begin[d] * strides_[d];
  }

  int64_t count() const { return count_; }
  int64_t length() const { return length_; }
  // Place of run `index` in the tensor; increases with the index.
  int64_t place(int64_t index) const {
    int64_t at = first_;
    for (size_t d = outer_; d-- > 0;) {
      at += index % region_.size[d] * strides_[d];
      index /= region_.size[d];
    }
    return at;
  }
  // The first run that ends after the element `element`.
  int64_t first_after(int64_t element) const {
    int64_t low = 0;
    int64_t high = count_;
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (place(middle) + length_ > element) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  }
  // Elements of the region before the element `element` of the tensor.
  int64_t before(int64_t element) const {
    const int64_t index = first_after(element);
    if (index == count_) return count_ * length_;
    return index * length_ + std::max<int64_t>(0, element - place(index));
  }

 private:
  const Region& region_;
  std::vector<int64_t> strides_;
  size_t outer_ = 0;
  int64_t length_ = 0;
  int64_t count_ = 0;
  int64_t first_ = 0;
};

}  // namespace

Region Region::whole(std::vector<int64_t> shape) {
  std::vector<int64_t> begin(shape.size(), 0);
  std::vector<int64_t> size = shape;
  return {std::move(shape), std::move(begin), std::move(size)};
}

Region Region::flat(int64_t elements, int64_t first, int64_t count) {
  return {{elements}, {first}, {count}};
}

int64_t Region::elements() const { return product(size.begin(), size.end()); }

int64_t run_count(const Region& region) { return Runs(region).count(); }

void visit_runs(const Region& region, int64_t first, int64_t last,
                const std::function<void(const RegionRun&)>& visit) {
  const Runs runs(region);
  for (int64_t i = runs.first_after(first); i < runs.count(); ++i) {
    const int64_t place = runs.place(i);
    if (place >= last) return;
    const int64_t begin = std::max(place, first);
    const int64_t end = std::min(place + runs.length(), last);
    visit({begin, i * runs.length() + (begin - place), end - begin});
  }
}

int64_t count_within(const Region& region, int64_t first, int64_t last) {
  if (last <= first) return 0;
  const Runs runs(region);
  return runs.before(last) - runs.before(first);
}

}  // namespace meshrun
