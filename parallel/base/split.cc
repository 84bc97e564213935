#include "parallel/base/split.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace meshrun {

std::vector<int64_t> compute_split_shapes(IntArgument size, IntArgument num_chunks) {
  if (size < 0 || num_chunks < 1) {
    throw std::invalid_argument("compute_split_shapes: a dimension of size " +
                                std::to_string(size) + " cannot be split into " +
                                std::to_string(num_chunks) + " pieces");
  }
  int64_t chunk = size / num_chunks + (size % num_chunks != 0);
  int64_t last = size - chunk * (num_chunks - 1);
  if (last <= 0) {
    chunk = size / num_chunks;
    last = size - chunk * (num_chunks - 1);
  }
  std::vector<int64_t> sizes(num_chunks, chunk);
  sizes.back() = last;
  return sizes;
}

SplitRange split_range(IntArgument size, IntArgument num_chunks, IntArgument index) {
  const std::vector<int64_t> sizes = compute_split_shapes(size, num_chunks);
  if (index < 0 || index >= num_chunks) {
    throw std::invalid_argument("split_range: piece " + std::to_string(index) + " of " +
                                std::to_string(num_chunks) + " does not exist");
  }
  const int64_t begin = sizes.front() * index;
  return {begin, begin + sizes[index]};
}

}  // namespace meshrun
