#include "parallel/collectives/transpose.h"

#include <gtest/gtest.h>

#include <vector>

#include "ATen/ATen.h"
#include "parallel/base/split.h"
#include "tests/parallel/collectives/worlds.h"
#include "tests/parallel/support/rank_processes.h"
#include "torch/csrc/autograd/autograd.h"

namespace meshrun {
namespace {

using at::Tensor;

// A tensor that all know, this rank's piece of dim1 before, and of dim0 after.
struct Case {
  std::vector<int64_t> shape;
  int64_t dim0, dim1;
  std::vector<int64_t> extents1;

  Tensor whole(int seed = 1) const {
    int64_t count = 1;
    for (const int64_t extent : shape) count *= extent;
    return ((at::arange(count, at::kDouble) * 7 + seed) % 23 - 11).view(shape);
  }
  Tensor before(const Tensor& tensor, int rank) const {
    int64_t begin = 0;
    for (int r = 0; r < rank; ++r) begin += extents1[static_cast<size_t>(r)];
    return tensor.narrow(dim1, begin, extents1[static_cast<size_t>(rank)]);
  }
  Tensor after(const Tensor& tensor, int rank) const {
    const auto p = static_cast<int64_t>(extents1.size());
    const SplitRange range = split_range(tensor.size(dim0), p, rank);
    return tensor.narrow(dim0, range.begin, range.size());
  }
};

std::vector<Case> cases(int p) {
  std::vector<Case> all;
  for (const bool skewed : {false, true}) {
    std::vector<int64_t> extents;
    int64_t total = 0;
    for (int r = 0; r < p; ++r) {
      extents.push_back(skewed ? (r == 1 ? 0 : 2 * r + 1) : 2);
      total += extents.back();
    }
    all.push_back({{5, total}, 0, 1, extents});
    all.push_back({{total, 5}, -1, 0, extents});
    all.push_back({{2, 8, 3, total}, 1, -1, extents});
    all.push_back({{2, total, 3, 7, 2}, 3, 1, extents});
    all.push_back({{3, total, 2}, 0, 1, extents});  // fewer than ranks
  }
  return all;
}

const bool kTranspose = register_rank_function("transpose", [] {
  const JoinedWorld world;
  for (const Case& c : cases(world.size)) {
    SCOPED_TRACE(c10::str("shape ", at::IntArrayRef(c.shape), " dims ", c.dim0, " ", c.dim1));
    for (const at::ScalarType type : {at::kDouble, at::kBFloat16, at::kShort}) {
      const Tensor whole = c.whole().to(type);
      const Tensor piece = c.before(whole, world.rank);  // strided
      const Tensor copy = piece.clone();
      const auto [result, work] = distributed_transpose(piece, c.dim0, c.dim1);
      EXPECT_TRUE(work == nullptr);
      EXPECT_TRUE(at::equal(result, c.after(whole, world.rank)));
      EXPECT_TRUE(result.is_contiguous());
      EXPECT_TRUE(at::equal(piece, copy));
    }
    const Tensor piece = c.before(c.whole(), world.rank);
    const auto [known, none] = distributed_transpose(piece, c.dim0, c.dim1, {}, false, c.extents1);
    EXPECT_TRUE(at::equal(known, c.after(c.whole(), world.rank)));
    // And back, which is the same with the dims exchanged where pieces are those of the split rule.
    if (c.extents1 == compute_split_shapes(c.whole().size(c.dim1), world.size)) {
      EXPECT_TRUE(at::equal(distributed_transpose(known, c.dim1, c.dim0).first, piece));
    }
  }
});

TEST(TransposeTest, SplitsTheOtherDimension) { run_in_worlds("transpose"); }

const bool kGradients = register_rank_function("transpose_gradients", [] {
  const JoinedWorld world;
  for (const Case& c : cases(world.size)) {
    const Tensor x = c.before(c.whole(), world.rank).clone().requires_grad_();
    const Tensor weights = c.after(c.whole(5), world.rank);
    const Tensor own = c.before(c.whole(5), world.rank);
    const Tensor y = distributed_transpose(x, c.dim0, c.dim1).first;
    const Tensor first =
        torch::autograd::grad({(y.pow(3) * weights).sum()}, {x}, {}, true, true)[0];
    EXPECT_TRUE(at::equal(first, 3 * x * x * own));
    const Tensor second = torch::autograd::grad({first.square().sum()}, {x})[0];
    EXPECT_TRUE(at::equal(second, 36 * x.pow(3) * own * own));
  }
});

TEST(TransposeTest, GradientsAreTransposedBack) { run_in_worlds("transpose_gradients"); }

const bool kAsync = register_rank_function("transpose_async", [] {
  const JoinedWorld world;
  const Case c = cases(world.size)[3];
  const auto start = [&](bool extents_known) {
    const Tensor piece = c.before(c.whole(), world.rank).clone().requires_grad_();
    return distributed_transpose(piece, c.dim0, c.dim1, {}, /*async_op=*/true,
                                 extents_known ? std::optional(c.extents1) : std::nullopt);
  };
  // The inputs are gone already; several are under way, one of them dropped, which Gloo's sends do
  // not allow.
  const auto [first, first_work] = start(true);
  const auto [second, second_work] = start(false);
  if (DistributedManager::get().backend() == "ucx") start(true);
  ASSERT_TRUE(first_work != nullptr);
  second_work->wait();
  first_work->wait();
  EXPECT_TRUE(at::equal(first, c.after(c.whole(), world.rank)));
  EXPECT_TRUE(at::equal(second, first));
  EXPECT_FALSE(first.requires_grad());
});

TEST(TransposeTest, AsynchronousFormHoldsItsMemory) { run_in_worlds("transpose_async", {1, 3}); }

const bool kWrong = register_rank_function("transpose_wrong", [] {
  const JoinedWorld world;
  const bool odd = world.rank == 1;
  const Tensor x = at::ones({4, 2, 3});
  const std::vector<int64_t> twos(static_cast<size_t>(world.size), 2);
  std::vector<int64_t> wrong = twos;
  wrong[0] = 3;
  const auto expect = [&](const std::function<void()>& call, const char* part) {
    expect_error_on_all_ranks(call, part);
  };
  expect([&] { distributed_transpose(x, 0, odd ? 0 : 1); }, "two dimensions");
  expect([&] { distributed_transpose(x, odd ? 3 : 0, 1); }, "dim0");
  expect([&] { distributed_transpose(x, 0, -4); }, "dim1");
  expect([&] { distributed_transpose(odd ? Tensor() : x, 0, 1); }, "undefined");
  expect([&] { distributed_transpose(x, 0, odd ? 2 : 1); }, "disagree");
  expect([&] { distributed_transpose(odd ? at::ones({4, 2, 5}) : x, 0, 1); }, "disagree");
  expect([&] { distributed_transpose(odd ? at::ones({5, 2, 3}) : x, 0, 1); }, "disagree");
  expect([&] { distributed_transpose(odd ? x.to(at::kInt) : x, 0, 1); }, "disagree");
  expect([&] { distributed_transpose(x, 0, 1, {}, false, odd ? std::vector<int64_t>{2} : twos); },
         "dim1_sizes");
  expect([&] { distributed_transpose(x, 0, 1, {}, false, wrong); }, "dim1_sizes");
  expect(
      [&] {
        const Tensor own = odd ? x : at::ones({4, world.rank == 0 ? 3 : 2, 3});
        auto [result, work] = distributed_transpose(own, 0, 1, {}, true, odd ? twos : wrong);
        work->wait();
      },
      "disagree");
  expect([&] { distributed_transpose(odd ? x.clone().requires_grad_() : x, 0, 1); }, "disagree");
  EXPECT_EQ(distributed_transpose(x, 0, 1).first.size(1), 2 * world.size);
});

TEST(TransposeTest, AWrongCallIsAnErrorOnAllRanks) {
  run_in_worlds("transpose_wrong", {2, 3}, {"ucx"});
}

}  // namespace
}  // namespace meshrun
