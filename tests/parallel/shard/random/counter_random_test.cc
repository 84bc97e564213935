#include "parallel/shard/random/counter_random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"

namespace meshrun {
namespace {

using at::Tensor;
using Fill = std::function<void(const Tensor&, const RandomBox&)>;

const RandomOperation kOperation{12, 5};

struct Case {
  const char* name;
  at::ScalarType dtype;
  Fill fill;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    all.push_back({"uniform", dtype, [](const Tensor& t, const RandomBox& b) {
                     fill_uniform(t, b, kOperation, -1, 2);
                   }});
    all.push_back({"normal", dtype, [](const Tensor& t, const RandomBox& b) {
                     fill_normal(t, b, kOperation, 1, 2);
                   }});
    all.push_back({"log_normal", dtype, [](const Tensor& t, const RandomBox& b) {
                     fill_log_normal(t, b, kOperation, 0, 1);
                   }});
  }
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kLong, at::kBool, at::kByte}) {
    all.push_back({"bernoulli", dtype, [](const Tensor& t, const RandomBox& b) {
                     fill_bernoulli(t, b, kOperation, 0.3);
                   }});
    all.push_back({"integers", dtype, [](const Tensor& t, const RandomBox& b) {
                     fill_integers(t, b, kOperation, 0, 100);
                   }});
  }
  all.push_back({"exponential", at::kFloat, [](const Tensor& t, const RandomBox& b) {
                   fill_exponential(t, b, kOperation, 2);
                 }});
  all.push_back({"cauchy", at::kDouble,
                 [](const Tensor& t, const RandomBox& b) { fill_cauchy(t, b, kOperation, 0, 1); }});
  all.push_back({"geometric", at::kLong, [](const Tensor& t, const RandomBox& b) {
                   fill_geometric(t, b, kOperation, 0.25);
                 }});
  return all;
}

TEST(CounterRandomTest, PiecesAreThoseOfTheWhole) {
  const std::vector<int64_t> sizes = {5, 7, 300};
  const std::vector<int64_t> zeros = {0, 0, 0};
  for (const Case& c : cases()) {
    SCOPED_TRACE(c10::str(c.name, " ", c.dtype));
    const Tensor whole = at::empty(sizes, c.dtype);
    c.fill(whole, {sizes, zeros});
    for (const std::vector<int64_t>& cut : {std::vector<int64_t>{0, 0, 0, 2, 7, 300},
                                            {2, 3, 0, 3, 4, 300},
                                            {1, 2, 17, 3, 1, 211},
                                            {4, 0, 299, 1, 7, 1},
                                            {0, 7, 0, 5, 0, 300}}) {
      const std::vector<int64_t> offsets(cut.begin(), cut.begin() + 3);
      const std::vector<int64_t> local(cut.begin() + 3, cut.end());
      const Tensor piece = at::empty(local, c.dtype);
      c.fill(piece, {sizes, offsets});
      Tensor expected = whole;
      for (int64_t dim = 0; dim < 3; ++dim) {
        expected = expected.narrow(dim, offsets[static_cast<size_t>(dim)],
                                   local[static_cast<size_t>(dim)]);
      }
      EXPECT_TRUE(piece.equal(expected));
      const Tensor strided = at::empty({local[2], local[1], local[0]}, c.dtype).permute({2, 1, 0});
      c.fill(strided, {sizes, offsets});
      EXPECT_TRUE(strided.equal(expected));
    }
  }
}

TEST(CounterRandomTest, ManyThreadsGiveTheSameNumbers) {
  const std::vector<int64_t> sizes = {100, 3000};
  const std::vector<int64_t> zeros = {0, 0};
  const int threads = at::get_num_threads();
  Tensor filled[2] = {at::empty(sizes), at::empty(sizes)};
  at::set_num_threads(1);
  fill_normal(filled[0], {sizes, zeros}, kOperation);
  at::set_num_threads(4);
  fill_normal(filled[1], {sizes, zeros}, kOperation);
  at::set_num_threads(threads);
  EXPECT_TRUE(filled[0].equal(filled[1]));
}

// Mean and variance of n independent numbers within five standard errors.
void expect_moments(const Tensor& drawn, double mean, double variance) {
  const Tensor wide = drawn.to(at::kDouble);
  const auto n = static_cast<double>(wide.numel());
  EXPECT_NEAR(wide.mean().item<double>(), mean, 5 * std::sqrt(variance / n));
  const double kurtosis = (wide - mean).pow(4).mean().item<double>();
  EXPECT_NEAR((wide - mean).pow(2).mean().item<double>(), variance,
              5 * std::sqrt((kurtosis - variance * variance) / n) + 1e-12);
}

TEST(CounterRandomTest, HasTheMomentsOfItsDistribution) {
  const std::vector<int64_t> sizes = {400'000};
  const std::vector<int64_t> zeros = {0};
  const RandomBox box{sizes, zeros};
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kHalf}) {
    SCOPED_TRACE(c10::toString(dtype));
    const Tensor x = at::empty(sizes, dtype);
    fill_uniform(x, box, kOperation, -1, 3);
    const double rounded = dtype == at::kHalf ? 1e-3 : 0;
    EXPECT_NEAR(x.to(at::kDouble).mean().item<double>(), 1,
                5 * std::sqrt(16.0 / 12 / 4e5) + rounded);
    EXPECT_GE(x.min().item<double>(), -1);
    EXPECT_LE(x.max().item<double>(), 3);
    fill_normal(x, box, kOperation, 2, 3);
    expect_moments(x, 2, 9);
  }
  const Tensor x = at::empty(sizes);
  fill_uniform(x, box, kOperation);
  EXPECT_LT(x.max().item<double>(), 1);
  fill_exponential(x, box, kOperation, 4);
  expect_moments(x, 0.25, 1.0 / 16);
  EXPECT_GT(x.min().item<double>(), 0);
  fill_geometric(x, box, kOperation, 0.25);
  expect_moments(x, 4, 12);
  EXPECT_GE(x.min().item<double>(), 1);
  fill_bernoulli(x, box, kOperation, 0.3);
  expect_moments(x, 0.3, 0.21);
  fill_integers(x, box, kOperation, -5, 11);
  expect_moments(x, 0, 10);
  fill_log_normal(x, box, kOperation, 0, 0.5);
  EXPECT_NEAR(x.log().mean().item<double>(), 0, 5 * 0.5 / std::sqrt(4e5));
  fill_cauchy(x, box, kOperation, 1, 2);
  EXPECT_NEAR(x.median().item<double>(), 1, 0.05);
  // Neighbours and operations are independent.
  fill_normal(x, box, kOperation);
  EXPECT_NEAR((x.slice(0, 1) * x.slice(0, 0, -1)).mean().item<double>(), 0, 5 / std::sqrt(4e5));
  const Tensor y = at::empty(sizes);
  fill_normal(y, box, {kOperation.seed, kOperation.counter + 1});
  EXPECT_NEAR((x * y).mean().item<double>(), 0, 5 / std::sqrt(4e5));
}

TEST(CounterRandomTest, TakesTheWholeRangesOfIntegers) {
  const std::vector<int64_t> sizes = {10'000};
  const std::vector<int64_t> zeros = {0};
  const Tensor x = at::empty(sizes, at::kLong);
  fill_integers(x, {sizes, zeros}, kOperation, std::numeric_limits<int64_t>::min(), 0);
  EXPECT_LT(x.min().item<int64_t>(), -(int64_t{1} << 62));
  EXPECT_GT(x.max().item<int64_t>(), int64_t{1} << 62);
  fill_integers(x, {sizes, zeros}, kOperation, 3, 1);
  EXPECT_TRUE((x == 3).all().item<bool>());
}

// As LibTorch's: a variance of 1 in all, a half in each part; uniform numbers in both parts.
TEST(CounterRandomTest, ComplexNumbersHaveTwoParts) {
  const std::vector<int64_t> sizes = {20'000};
  const std::vector<int64_t> zeros = {0};
  const Tensor x = at::empty(sizes, at::kComplexFloat);
  fill_normal(x, {sizes, zeros}, kOperation);
  const Tensor parts = at::view_as_real(x);
  EXPECT_NEAR(x.abs().square().mean().item<double>(), 1, 5 / std::sqrt(2e4));
  for (const int64_t part : {0, 1}) {
    EXPECT_NEAR(parts.select(1, part).var().item<double>(), 0.5, 5 * std::sqrt(0.5 / 2e4));
  }
  EXPECT_NEAR((parts.select(1, 0) * parts.select(1, 1)).mean().item<double>(), 0,
              5 * 0.5 / std::sqrt(2e4));
  fill_uniform(x, {sizes, zeros}, kOperation, 1, 3);
  EXPECT_GE(parts.min().item<double>(), 1);
  EXPECT_LT(parts.max().item<double>(), 3);
  EXPECT_NEAR(parts.mean().item<double>(), 2, 5 * std::sqrt(4.0 / 12 / 4e4));

  // A part of it, of any place.
  const Tensor own = at::empty({7}, at::kComplexFloat);
  const std::vector<int64_t> offset = {11};
  fill_uniform(own, {sizes, offset}, kOperation, 1, 3);
  EXPECT_TRUE(at::equal(own, x.narrow(0, 11, 7)));
}

TEST(CounterRandomTest, ProbabilitiesMayDifferByElement) {
  const std::vector<int64_t> sizes = {3, 20'000};
  const std::vector<int64_t> zeros = {0, 0};
  const Tensor p = at::tensor({0.0, 0.25, 1.0}).unsqueeze(1).expand(sizes);
  const Tensor x = at::empty(sizes);
  fill_bernoulli(x, {sizes, zeros}, kOperation, p);
  EXPECT_EQ(x[0].sum().item<double>(), 0);
  EXPECT_NEAR(x[1].mean().item<double>(), 0.25, 5 * std::sqrt(0.1875 / 2e4));
  EXPECT_EQ(x[2].sum().item<double>(), 20'000);
}

TEST(CounterRandomTest, RefusesWhatHasNoMeaning) {
  const std::vector<int64_t> sizes = {4};
  const std::vector<int64_t> zeros = {0};
  const std::vector<int64_t> ones = {1};
  const Tensor x = at::empty(sizes);
  const RandomBox box{sizes, zeros};
  EXPECT_THROW(fill_uniform(x, {sizes, ones}, kOperation), c10::ValueError);
  EXPECT_THROW(fill_uniform(x, box, kOperation, 1, 0), c10::ValueError);
  EXPECT_THROW(fill_normal(x, box, kOperation, 0, -1), c10::ValueError);
  EXPECT_THROW(fill_bernoulli(x, box, kOperation, 1.5), c10::ValueError);
  EXPECT_THROW(fill_bernoulli(x, box, kOperation, std::nan("")), c10::ValueError);
  EXPECT_THROW(fill_exponential(x, box, kOperation, 0), c10::ValueError);
  EXPECT_THROW(fill_geometric(x, box, kOperation, 1), c10::ValueError);
  EXPECT_THROW(fill_normal(at::empty(sizes, at::kLong), box, kOperation), c10::Error);
}

TEST(RandomOperationTest, CountsFromEachNewSeed) {
  at::manual_seed(100);
  EXPECT_EQ(next_random_operation(), (RandomOperation{100, 0}));
  // Plain numbers do not count.
  at::rand({3});
  EXPECT_EQ(next_random_operation(), (RandomOperation{100, 1}));
  at::manual_seed(100);
  EXPECT_EQ(random_state(), (RandomOperation{100, 2}));
  at::manual_seed(101);
  EXPECT_EQ(next_random_operation(), (RandomOperation{101, 0}));
  reseed(101);
  EXPECT_EQ(next_random_operation(), (RandomOperation{101, 0}));
}

TEST(RandomOperationTest, IsRepeatedFromItsState) {
  reseed(7);
  next_random_operation();
  const RandomOperation kept = random_state();
  EXPECT_EQ(next_random_operation(), kept);
  next_random_operation();
  set_random_state(kept);
  EXPECT_EQ(next_random_operation(), kept);
  EXPECT_THROW(set_random_state({8, 0}), c10::ValueError);
}

TEST(RandomOperationTest, AGeneratorOfItsOwnAdvances) {
  at::Generator generator = at::detail::createCPUGenerator(5);
  at::Generator same = at::detail::createCPUGenerator(5);
  const RandomOperation first = next_random_operation(generator);
  EXPECT_EQ(first, next_random_operation(same));
  EXPECT_EQ(first.seed, 5U);
  EXPECT_NE(first, next_random_operation(generator));
}

}  // namespace
}  // namespace meshrun
