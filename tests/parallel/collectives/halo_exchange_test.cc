// Halos between real ranks against the unsharded tensor, which every rank has too.
#include "parallel/collectives/halo_exchange.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <string>
#include <vector>

#include "tests/parallel/collectives/worlds.h"
#include "tests/parallel/support/gradcheck.h"
#include "tests/parallel/support/rank_processes.h"

namespace meshrun {
namespace {

using at::Tensor;
using std::vector;
using torch::autograd::grad;

struct Case {
  vector<int64_t> sizes;
  int64_t low, high;
  bool periodic;

  int64_t whole() const {
    int64_t total = 0;
    for (const int64_t size : sizes) total += size;
    return total;
  }
  int64_t begin(int rank) const {
    int64_t begin = 0;
    for (int r = 0; r < rank; ++r) begin += sizes[static_cast<size_t>(r)];
    return begin;
  }
  int64_t size(int rank) const { return sizes[static_cast<size_t>(rank)]; }
  // The positions that a rank gets.
  Tensor positions(int rank) const {
    const Tensor all = at::arange(begin(rank) - low, begin(rank) + size(rank) + high, at::kLong);
    return periodic ? all.remainder(whole()) : all.masked_select(all.ge(0) & all.lt(whole()));
  }
};

vector<Case> cases(int p) {
  vector<vector<int64_t>> patterns = {vector<int64_t>(static_cast<size_t>(p), 3),
                                      vector<int64_t>(static_cast<size_t>(p), 1)};
  vector<int64_t> uneven, last(static_cast<size_t>(p), 0);
  for (int r = 0; r < p; ++r) uneven.push_back((r * 2 + 3) % 5);  // 3, 0, 2, 4
  last.back() = 5;
  patterns.push_back(uneven);
  patterns.push_back(last);
  vector<Case> all;
  for (const auto& sizes : patterns) {
    for (const bool periodic : {false, true}) {
      for (const auto& [low, high] : vector<std::pair<int64_t, int64_t>>{{1, 1}, {0, 2}, {3, 1}}) {
        const Case c{sizes, low, high, periodic};
        if (!periodic || std::max(low, high) <= c.whole()) all.push_back(c);
      }
    }
  }
  return all;
}

Tensor numbers(at::IntArrayRef shape, int64_t seed) {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return ((at::arange(count, at::kDouble) * 7 + seed) % 23 - 11).view(shape);
}

const bool kForward = register_rank_function("halo_forward", [] {
  const JoinedWorld world;
  for (const Case& c : cases(world.size)) {
    SCOPED_TRACE(c10::str(c.sizes, " width ", c.low, ", ", c.high, c.periodic ? " periodic" : ""));
    for (int64_t dim = 0; dim < 4; ++dim) {
      vector<int64_t> shape = {2, 3, 2, 3};
      shape[static_cast<size_t>(dim)] = c.whole();
      for (const auto type : {at::kDouble, at::kBFloat16, at::kShort}) {
        const Tensor whole = numbers(shape, 3).to(type);
        const Tensor piece = whole.narrow(dim, c.begin(world.rank), c.size(world.rank));
        const Tensor expected = whole.index_select(dim, c.positions(world.rank));
        const HaloWidth width{c.low, c.high};
        const Tensor result = halo_exchange(piece, dim, width, c.sizes, c.periodic);
        EXPECT_TRUE(at::equal(result, expected));
        EXPECT_FALSE(result.is_alias_of(piece));
        PendingHalo pending = halo_exchange_async(piece, dim - 4, width, c.sizes, c.periodic);
        EXPECT_TRUE(at::equal(pending.wait(), expected));
        EXPECT_TRUE(at::equal(pending.wait().narrow(dim, pending.low(), piece.size(dim)), piece));
      }
    }
  }
});
TEST(HaloExchangeTest, AddsWhatNeighboursHave) {
  run_in_worlds("halo_forward", {1, 2, 3, 4}, {"ucx"});
  run_in_worlds("halo_forward", {3}, {"gloo"});
}

const bool kGradients = register_rank_function("halo_gradients", [] {
  const JoinedWorld world;
  for (const Case& c : cases(world.size)) {
    SCOPED_TRACE(c10::str(c.sizes, " width ", c.low, ", ", c.high, c.periodic ? " periodic" : ""));
    for (const int64_t dim : {0, 1}) {
      vector<int64_t> shape = {2, 3};
      shape[static_cast<size_t>(dim)] = c.whole();
      const auto cotangent = [&](int rank) {
        vector<int64_t> extended = shape;
        extended[static_cast<size_t>(dim)] = c.positions(rank).size(0);
        return numbers(extended, 5 + rank);
      };
      Tensor all = at::zeros(shape, at::kDouble);
      for (int r = 0; r < world.size; ++r) all.index_add_(dim, c.positions(r), cotangent(r));
      const Tensor expected = all.narrow(dim, c.begin(world.rank), c.size(world.rank));
      for (const auto type : {at::kDouble, at::kBFloat16}) {
        const Tensor x = numbers(shape, 3)
                             .narrow(dim, c.begin(world.rank), c.size(world.rank))
                             .to(type)
                             .clone()
                             .requires_grad_();
        const Tensor v = cotangent(world.rank).to(type);
        const HaloWidth width{c.low, c.high};
        const Tensor y = halo_exchange(x, dim, width, c.sizes, c.periodic);
        EXPECT_TRUE(at::equal(grad({y}, {x}, {v})[0].to(at::kDouble), expected));
        PendingHalo pending = halo_exchange_async(x, dim, width, c.sizes, c.periodic);
        EXPECT_TRUE(at::equal(grad({pending.wait()}, {x}, {v})[0].to(at::kDouble), expected));
      }
    }
  }
});
TEST(HaloExchangeTest, GradientsOfHalosAreAddedToTheirPieces) {
  run_in_worlds("halo_gradients", {1, 2, 3, 4}, {"ucx"});
  run_in_worlds("halo_gradients", {3}, {"gloo"});
}

const bool kGradcheck = register_rank_function("halo_gradcheck", [] {
  const JoinedWorld world;
  vector<int64_t> sizes;
  for (int r = 0; r < world.size; ++r) sizes.push_back(r == 1 ? 0 : r + 1);
  for (const bool periodic : {false, true}) {
    const RankFunction function = [&](const vector<Tensor>& inputs) {
      const Tensor y = halo_exchange(inputs[0], 0, {1, 1}, sizes, periodic);
      return vector<Tensor>{y * y};
    };
    const Tensor x =
        (numbers({sizes[static_cast<size_t>(world.rank)], 2}, world.rank) / 11).requires_grad_();
    EXPECT_EQ(gradcheck(world.manager.world(), function, {x}), "");
    EXPECT_EQ(gradgradcheck(world.manager.world(), function, {x}), "");
  }
});
TEST(HaloExchangeTest, DerivativesAgreeWithDifferences) {
  run_in_worlds("halo_gradcheck", {1, 3}, {"ucx"});
}

// Windows of any kind: each rank computes its outputs from what it gathers.
const bool kRanges = register_rank_function("halo_ranges", [] {
  const JoinedWorld world;
  for (const Case& c : cases(world.size)) {
    for (const auto& [kernel, stride, padding] :
         vector<std::array<int64_t, 3>>{{3, 1, 1}, {4, 2, 1}, {2, 2, 0}, {1, 3, 0}, {3, 1, 4}}) {
      const int64_t outputs = sliding_outputs(c.whole(), kernel, stride, padding, padding, 1);
      if (outputs <= 0) continue;
      SCOPED_TRACE(c10::str(c.sizes, " kernel ", kernel, " stride ", stride, " pad ", padding));
      const auto windows = WindowedDim::sliding(outputs, kernel, stride, padding, 1);
      const RangeExchange exchange(1, c.sizes, windows.ranges(c.sizes));
      const Tensor whole = numbers({2, c.whole(), 3}, 1).requires_grad_();
      const auto compute = [&](const Tensor& padded) {
        return padded.unfold(1, kernel, stride).square().sum(-1);
      };
      const Tensor expected = compute(at::constant_pad_nd(whole, {0, 0, padding, padding}));
      const SplitRange own = windows.owned(c.sizes)[static_cast<size_t>(world.rank)];
      const Tensor x = whole.detach()
                           .narrow(1, c.begin(world.rank), c.size(world.rank))
                           .clone()
                           .requires_grad_();
      const Tensor gathered = exchange.gather(x);
      EXPECT_EQ(exchange.is_identity(), gathered.is_same(x));
      const Tensor y = own.size() > 0 ? compute(gathered) : (gathered * 0).narrow(1, 0, 0);
      EXPECT_TRUE(at::equal(y, expected.narrow(1, own.begin, own.size())));
      EXPECT_TRUE(at::equal(grad({y.square().sum()}, {x})[0],
                            grad({expected.square().sum()}, {whole})[0].narrow(
                                1, c.begin(world.rank), c.size(world.rank))));
    }
  }
});
TEST(HaloExchangeTest, EveryRankGathersWhatItsWindowsRead) {
  run_in_worlds("halo_ranges", {1, 2, 3, 4}, {"ucx"});
}

const bool kFormat = register_rank_function("halo_format", [] {
  const JoinedWorld world;
  const vector<int64_t> sizes(static_cast<size_t>(world.size), 4);
  const Tensor whole = numbers({2, 3, 4 * world.size, 5}, 3);
  const Tensor piece =
      whole.narrow(2, 4 * world.rank, 4).contiguous(at::MemoryFormat::ChannelsLast);
  const auto windows = WindowedDim::sliding(4 * world.size, 3, 1, 1, 1);
  const RangeExchange exchange(2, sizes, windows.ranges(sizes));
  const Tensor result = exchange.gather(piece);
  EXPECT_TRUE(result.is_contiguous(at::MemoryFormat::ChannelsLast));
  EXPECT_TRUE(
      at::equal(result, at::constant_pad_nd(whole, {0, 0, 1, 1}).narrow(2, 4 * world.rank, 6)));
});
TEST(HaloExchangeTest, ChannelsLastIsKept) { run_in_worlds("halo_format", {2}, {"ucx"}); }

const bool kWrong = register_rank_function("halo_wrong", [] {
  const JoinedWorld world;
  const bool odd = world.rank == 1;
  const Tensor x = at::ones({2, 3});
  const vector<int64_t> twos(static_cast<size_t>(world.size), 2);
  const auto expect = [&](const std::function<void()>& call, const char* part) {
    expect_error_on_all_ranks(call, part);
  };
  expect([&] { halo_exchange(odd ? Tensor() : x, 0, {1, 1}); }, "undefined");
  expect([&] { halo_exchange(x, odd ? 2 : 0, {1, 1}); }, "dim is 2");
  expect([&] { halo_exchange(x, 0, {odd ? -1 : 1, 1}); }, "width is -1 and 1");
  expect([&] { halo_exchange(x, 0, {1, 9}, twos, true); }, "width is 1 and 9");
  expect([&] { halo_exchange(x, 0, {1, odd ? 2 : 1}); }, "disagree");
  expect([&] { halo_exchange(x, 0, {1, 1}, twos, odd); }, "disagree");
  // Every rank gets as many positions as the others expect it to, from elsewhere.
  expect([&] { halo_exchange(x, 0, {odd ? 0 : 1, odd ? 2 : 1}, twos, true); }, "disagree");
  expect([&] { halo_exchange(x, odd ? 1 : 0, {1, 1}); }, "disagree");
  expect([&] { halo_exchange(odd ? at::ones({3, 3}) : x, 0, {1, 1}); }, "disagree");
  expect([&] { halo_exchange(odd ? at::ones({3, 3}) : x, 0, {1, 1}, twos); }, "sizes[1]");
  expect([&] { halo_exchange(odd ? x.to(at::kInt) : x, 0, {1, 1}); }, "disagree");
  expect([&] { halo_exchange(x, 0, {0, odd ? 1 : 0}); }, "disagree");
  expect([&] { halo_exchange(odd ? x.clone().requires_grad_() : x, 0, {1, 1}); }, "disagree");
  expect([&] { halo_exchange_async(odd ? Tensor() : x, 0, {1, 1}).wait(); }, "undefined");
  EXPECT_EQ(halo_exchange(x, 0, {1, 1}).size(0),
            world.rank == 0 || odd == (world.size == 2) ? 3 : 4);
});
TEST(HaloExchangeTest, AWrongCallIsAnErrorOnAllRanks) { run_in_worlds("halo_wrong", {2}); }

}  // namespace
}  // namespace meshrun
