// Bytes of tensors of any strides, read and written in any ranges.
#include "parallel/checkpoint/stored_values.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace meshrun {
namespace {

using at::Tensor;

std::string bytes_of(const Tensor& tensor) {
  const Tensor plain = tensor.contiguous();
  return {static_cast<const char*>(plain.const_data_ptr()), plain.nbytes()};
}

// Up to some MiB, with dimensions in any order, and perhaps every other element of one.
Tensor draw_strided(std::mt19937& random) {
  const auto drawn = [&](int64_t most) {
    return std::uniform_int_distribution<int64_t>(1, most)(random);
  };
  std::vector<int64_t> shape;
  const int64_t dims = drawn(4);
  const auto extent = static_cast<int64_t>(std::pow(2'000'000.0, 1.0 / static_cast<double>(dims)));
  for (int64_t d = 0; d < dims; ++d) shape.push_back(drawn(d == 0 ? 2 * extent : extent));
  std::vector<int64_t> order(shape.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::shuffle(order, random);
  Tensor tensor = at::randint(100, shape, at::kShort).permute(order);
  if (drawn(2) == 1) {
    const int64_t dim = drawn(dims) - 1;
    tensor = tensor.slice(dim, 0, tensor.size(dim), 2);
  }
  return tensor;
}

TEST(StoredValuesTest, AnyRangeOfAnyTensorIsReadAndWritten) {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    std::mt19937 random(seed);
    const Tensor tensor = draw_strided(random);
    const std::string expected = bytes_of(tensor);
    const StoredValues values(tensor);
    ASSERT_EQ(values.size(), expected.size());
    Tensor other = at::zeros_like(tensor);
    const StoredValues written(other);
    for (uint64_t from = 0; from < expected.size();) {
      const uint64_t most = random() % 3 == 0 ? expected.size() : 5000;
      const uint64_t count = std::min(expected.size() - from, random() % most + 1);
      std::string read(count, '?');
      values.read(from, read);
      ASSERT_EQ(read, expected.substr(from, count)) << "seed " << seed << " from " << from;
      written.write(from, read);
      from += count;
    }
    EXPECT_TRUE(at::equal(other, tensor)) << "seed " << seed;
  }
}

}  // namespace
}  // namespace meshrun
