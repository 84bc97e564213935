#include "parallel/nn/flat_buckets.h"

#include <algorithm>
#include <map>

namespace meshrun::detail {

SplitRange FlatBucket::piece(int64_t i, int64_t num_ranks, int64_t rank) const {
  const auto at = static_cast<size_t>(i);
  const SplitRange slice = split_range(numel(), num_ranks, rank);
  const int64_t begin = std::clamp(slice.begin, begins[at], begins[at + 1]);
  const int64_t end = std::clamp(slice.end, begin, begins[at + 1]);
  return {begin - begins[at], end - begins[at]};
}

std::vector<FlatBucket> make_flat_buckets(const std::vector<FlatTensor>& tensors,
                                          int64_t bucket_bytes) {
  std::vector<FlatBucket> buckets;
  std::map<int64_t, size_t> open;  // by kind
  for (size_t i = 0; i < tensors.size(); ++i) {
    const FlatTensor& tensor = tensors[i];
    const auto known = open.find(tensor.kind);
    const bool fits =
        known != open.end() &&
        (buckets[known->second].numel() + tensor.numel) * tensor.element_bytes <= bucket_bytes;
    if (!fits) {
      open[tensor.kind] = buckets.size();
      buckets.emplace_back().kind = tensor.kind;
    }
    FlatBucket& bucket = buckets[open[tensor.kind]];
    bucket.tensors.push_back(static_cast<int64_t>(i));
    bucket.begins.push_back(bucket.numel() + tensor.numel);
  }
  return buckets;
}

}  // namespace meshrun::detail
