// What the collectives make around a backend: nodes, outputs, texts of problems. Without wire.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <limits>
#include <string>
#include <vector>

#include "parallel/base/collective_errors.h"
#include "parallel/collectives/collectives.h"
#include "parallel/kernels/row_kernels.h"
#include "tests/parallel/support/loopback_backend.h"

namespace meshrun {
namespace {

using at::Tensor;
using torch::autograd::grad;

class LoopbackTest : public testing::Test {
 protected:
  Tensor leaf(at::IntArrayRef shape) { return at::randn(shape, at::kDouble).requires_grad_(); }

  const c10::intrusive_ptr<c10d::ProcessGroup> group = LoopbackBackend::make_group(1, 3);
  LoopbackBackend& backend = LoopbackBackend::of(group);
};

TEST_F(LoopbackTest, AGatheredPieceKeepsItsPlaceAndItsGradient) {
  const Tensor x = leaf({3, 2});
  const Tensor y = all_gather_v(x, {2, 3, 4}, 0, true, group);
  EXPECT_EQ(y.sizes(), (std::vector<int64_t>{9, 2}));
  EXPECT_TRUE(at::equal(y.narrow(0, 2, 3), x));
  EXPECT_TRUE(backend.last_call().requires_grad);
  const Tensor v = at::randn({9, 2}, at::kDouble);
  EXPECT_TRUE(at::equal(grad({y}, {x}, {v})[0], v.narrow(0, 2, 3)));
  EXPECT_FALSE(backend.last_call().requires_grad);
}

TEST_F(LoopbackTest, NoNodeIsMadeWhereNoGradientIsWanted) {
  const Tensor x = leaf({3, 2});
  EXPECT_FALSE(all_gather_v(x.detach(), {2, 3, 4}, 0, true, group).requires_grad());
  EXPECT_FALSE(backend.last_call().requires_grad);
  EXPECT_FALSE(all_gather_v_wrapper(x, {2, 3, 4}, 0, group).requires_grad());
  EXPECT_FALSE(backend.last_call().requires_grad);
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(all_gather_v(x, {2, 3, 4}, 0, true, group).requires_grad());
}

// Every operation's backward again has a backward, which is the operation.
TEST_F(LoopbackTest, DerivativesOfHigherOrder) {
  const std::vector<int64_t> piece = {3, 2}, whole = {9, 2};
  const Sizes sizes = {2, 3, 4};
  const std::vector<Tensor> indices = {at::tensor({1}, at::kLong), at::tensor({0, 0}, at::kLong),
                                       at::empty({0}, at::kLong)};
  const IndexedAllToAllPlan plan(indices, {{0, 1, 0}, {1, 2, 0}, {0, 0, 0}}, 3, group);
  const auto check = [&](const char* name, at::IntArrayRef shape, const auto& function) {
    SCOPED_TRACE(name);
    const Tensor x = leaf(shape);
    const Tensor y = function(x);
    const Tensor v = leaf(y.sizes());
    const Tensor g = grad({y}, {x}, {v}, std::nullopt, /*create_graph=*/true)[0];
    EXPECT_EQ(g.sizes(), shape);
    ASSERT_TRUE(g.requires_grad());
    // <J' v, w> = <v, J w>, so its gradient by v is J w.
    const Tensor w = at::randn(shape, at::kDouble);
    EXPECT_TRUE(at::equal(grad({g}, {v}, {w}, true)[0], function(w)));
    EXPECT_TRUE(grad({g}, {v}, {leaf(shape)}, true, true)[0].requires_grad());
  };
  check("all_gather_v", piece,
        [&](const Tensor& x) { return all_gather_v(x, sizes, 0, true, group); });
  check("reduce_scatter_v", whole,
        [&](const Tensor& x) { return reduce_scatter_v(x, sizes, 0, true, group); });
  for (const int64_t root : {0, 1}) {
    check("gather_v", piece, [&](const Tensor& x) { return gather_v(x, sizes, 0, root, group); });
    check("scatter_v", whole, [&](const Tensor& x) { return scatter_v(x, sizes, 0, root, group); });
  }
  check("all_to_all_v", {6, 2}, [&](const Tensor& x) {
    return all_to_all_v(x, {1, 2, 3}, {4, 2, 0}, 0, 0, group);
  });
  check("transpose", {6, 2}, [&](const Tensor& x) {
    return all_to_all_v(x, {1, 2, 3}, {4, 2, 0}, 0, 1, group);
  });
  check("indexed_all_to_all_v", piece,
        [&](const Tensor& x) { return indexed_all_to_all_v(x, plan); });
}

TEST_F(LoopbackTest, OffTheRootResultsAreEmptyAndGradientsZero) {
  const Tensor x = leaf({3, 2});
  const Tensor y = gather_v(x, {2, 3, 4}, 0, 0, group);
  EXPECT_EQ(y.sizes(), (std::vector<int64_t>{0, 2}));
  const Tensor like = leaf({5, 2});  // of another extent than src's
  const Tensor z = scatter_v(like, {2, 3, 4}, 0, 0, group);
  EXPECT_EQ(z.sizes(), (std::vector<int64_t>{3, 2}));
  EXPECT_TRUE(at::equal(grad({z}, {like}, {at::ones_like(z)})[0], at::zeros_like(like)));
}

TEST_F(LoopbackTest, TieKeepsTheNodeAndReadsNoValue) {
  const Tensor x = leaf({3, 2});
  const Tensor y =
      all_gather_v(x, {2, 3, 4}, 0, true, group) * std::numeric_limits<double>::quiet_NaN();
  const Tensor loss = tie(at::full({}, 2.5f), y);
  EXPECT_EQ(loss.item<float>(), 2.5f);
  EXPECT_EQ(loss.scalar_type(), at::kFloat);
  const auto calls = backend.num_calls();
  const Tensor g = grad({loss}, {y}, {}, true, true)[0];
  EXPECT_TRUE(at::equal(g, at::zeros_like(y)));
  EXPECT_TRUE(g.requires_grad());
  grad({loss}, {x});
  EXPECT_EQ(backend.num_calls(), calls + 1);
  EXPECT_TRUE(tie(at::zeros({}), x.detach()).equal(at::zeros({})));
  EXPECT_THROW(tie(Tensor(), x), c10::ValueError);
}

TEST_F(LoopbackTest, AWrongCallIsMadeAllTheSame) {
  const auto expect = [&](const std::string& part, const auto& call) {
    const auto calls = backend.num_calls();
    try {
      call();
      ADD_FAILURE() << "no error with " << part;
    } catch (const CollectiveArgumentError& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
    EXPECT_EQ(backend.num_calls(), calls + 1);
  };
  const Tensor x = leaf({3, 2});
  expect("sizes[1] is 4", [&] { all_gather_v(x, {2, 4, 4}, 0, true, group); });
  expect("dim is 2", [&] { reduce_scatter_v(x, {}, 2, true, group); });
  expect("dst is 3", [&] { gather_v(x, {}, 0, 3, group); });
  expect("src is -1", [&] { scatter_v(x, {2, 3, 4}, 0, -1, group); });
  expect("src is -1", [&] { scatter_v(x, {}, 0, -1, group); });
  expect("input_sizes", [&] { all_to_all_v(x, {1, 1, 2}, {1, 1, 1}, 0, 0, group); });
  expect("output_sizes[1]", [&] { all_to_all_v(x, {1, 1, 1}, {1, 2, 1}, 0, 0, group); });
  expect("output_sizes[1] is 3 on rank 1, whose tensor has 2 along dim 1", [&] {
    all_to_all_v(x, {1, 1, 1}, {1, 3, 1}, 0, 1, group);
  });
  expect("undefined", [&] { all_gather_v(Tensor(), {}, 0, true, group); });
  expect("indices[0] is of dtype", [&] {
    indexed_all_to_all_v(x, {at::zeros({1}), at::zeros({1}), at::zeros({1})}, {}, true, 0, group);
  });
  const std::vector<Tensor> none(3, at::empty({0}, at::kLong));
  const std::vector<std::vector<int64_t>> nothing(3, std::vector<int64_t>(3, 0));
  expect("the plan is for 7",
         [&] { indexed_all_to_all_v(x, IndexedAllToAllPlan(none, nothing, 7, group)); });
  expect("dim is 5", [&] { indexed_all_to_all_v(x, none, nothing, true, 5, group); });
  AsyncTensor late = all_gather_v_async(x, {2, 4, 4}, 0, true, group);
  EXPECT_THROW(late.wait(), CollectiveArgumentError);
}

TEST_F(LoopbackTest, AsynchronousResultsCarryTheirGradient) {
  const Tensor x = leaf({3, 2});
  AsyncTensor pending = all_gather_v_async(x, {2, 3, 4}, 0, true, group);
  EXPECT_TRUE(backend.last_call().async);
  EXPECT_TRUE(pending.is_completed());
  const Tensor y = pending.wait();
  EXPECT_TRUE(at::equal(grad({y.sum()}, {x})[0], at::ones_like(x)));
  EXPECT_FALSE(AsyncTensor().wait().defined());
}

TEST_F(LoopbackTest, AnAsynchronousAllToAllIsTheSynchronousOne) {
  const std::vector<int64_t> rows = {1, 2, 3}, columns = {4, 2, 0};
  for (const int64_t output_dim : {0, 1}) {
    const Tensor x = leaf({6, 2});
    const Tensor expected = all_to_all_v(x, rows, columns, 0, output_dim, group);
    EXPECT_FALSE(backend.last_call().async);
    AsyncTensor pending = all_to_all_v_async(x, rows, columns, 0, output_dim, group);
    EXPECT_TRUE(backend.last_call().async);
    EXPECT_TRUE(backend.last_call().requires_grad);
    ASSERT_TRUE(pending.work());
    const Tensor y = pending.wait();
    EXPECT_TRUE(at::equal(y, expected));
    EXPECT_TRUE(pending.wait().is_same(y));
    const Tensor v = at::randn(y.sizes(), at::kDouble);
    EXPECT_TRUE(at::equal(grad({y}, {x}, {v})[0], grad({expected}, {x}, {v})[0]));
  }
  AsyncTensor wrong = all_to_all_v_async(leaf({6, 2}), rows, {4, 1, 0}, 0, 0, group);
  EXPECT_THROW(wrong.wait(), CollectiveArgumentError);
}

// The other ranks compare the one, and the other says who moves the call forward.
TEST_F(LoopbackTest, AnIndexedExchangeSaysWhetherItHasAGradientAndIsWaitedForLater) {
  const std::vector<Tensor> indices = {at::tensor({1}, at::kLong), at::tensor({0, 2}, at::kLong),
                                       at::empty({0}, at::kLong)};
  const IndexedAllToAllPlan plan(indices, {{0, 1, 0}, {1, 2, 0}, {0, 0, 0}}, 3, group);
  for (const bool has_gradient : {false, true}) {
    const Tensor x = at::randn({3, 2}, at::kDouble).requires_grad_(has_gradient);
    const Tensor y = indexed_all_to_all_v(x, plan);
    EXPECT_EQ(backend.last_call().requires_grad, has_gradient);
    EXPECT_FALSE(backend.last_call().async);
    EXPECT_TRUE(at::equal(indexed_all_to_all_v_async(x, plan).wait(), y));
    EXPECT_EQ(backend.last_call().requires_grad, has_gradient);
    EXPECT_TRUE(backend.last_call().async);
  }
}

TEST_F(LoopbackTest, TheFunctionsAreVisible) {
  const Tensor x = leaf({3, 2});
  const Sizes sizes = {2, 3, 4};
  const GroupArgument argument = group;
  EXPECT_TRUE(AllGatherVAutograd::apply(x, sizes, 0, true, argument).requires_grad());
  EXPECT_TRUE(GatherVAutograd::apply(x, sizes, 0, 2, argument).requires_grad());
  EXPECT_TRUE(ScatterVAutograd::apply(x, sizes, 0, 2, argument).requires_grad());
}

// The order of the send list: rank 0's entry, one's own, rank 2's.
TEST_F(LoopbackTest, OnesOwnSlicesNeverTravel) {
  const std::vector<Tensor> indices = {at::tensor({1}, at::kInt), at::tensor({2, 0, 2}, at::kLong),
                                       at::tensor({0}, at::kLong)};
  const IndexedAllToAllPlan plan(indices, {{0, 2, 0}, {1, 3, 1}, {0, 1, 0}}, 3, group);
  EXPECT_EQ(plan.num_received(), 6);
  for (const int64_t dim : {0, 1}) {
    const Tensor x = leaf({3, 3});
    const auto copied = backend.bytes_copied();
    const Tensor y = indexed_all_to_all_v(x, plan, true, dim);
    EXPECT_EQ(y.size(dim), 6);
    EXPECT_TRUE(at::equal(y.narrow(dim, 2, 3), x.index_select(dim, indices[1])));
    const Tensor v = at::randn(y.sizes(), at::kDouble);
    const Tensor expected =
        at::zeros({3, 3}, at::kDouble).index_add(dim, indices[1], v.narrow(dim, 2, 3));
    EXPECT_TRUE(at::equal(grad({y}, {x}, {v})[0], expected));
    EXPECT_EQ(backend.bytes_copied(), copied);
  }
}

TEST(RowKernelsTest, TheCpusAndAtensAgree) {
  const Tensor offsets = at::tensor({0, 2, 2, 5}, at::kLong);
  const Tensor positions = at::tensor({3, 1, 0, 0, 4}, at::kLong);
  const Tensor index = at::tensor({2, 0, 2}, at::kLong);
  const RowKernels& cpu = row_kernels(at::kCPU);
  const RowKernels& aten = aten_row_kernels();
  ASSERT_NE(&cpu, &aten);
  for (const auto dtype :
       {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kInt, at::kComplexFloat}) {
    for (int64_t dim = 0; dim < 3; ++dim) {
      for (const bool strided : {false, true}) {
        std::vector<int64_t> shape = {4, 5, 6};
        const auto make = [&](int64_t extent) {
          shape[static_cast<size_t>(dim)] = extent;
          Tensor t = at::randn(shape, dtype == at::kComplexFloat ? at::kComplexFloat : at::kFloat)
                         .mul(9)
                         .to(dtype);
          if (dtype == at::kComplexFloat) t = t.conj();
          return strided ? t.transpose(0, 2).contiguous().transpose(0, 2) : t;
        };
        const Tensor first = make(3), second = make(2);
        Tensor a = at::empty_like(make(3), at::MemoryFormat::Contiguous), b = a.clone();
        cpu.segmented_sum(a, first, second, offsets, positions, dim, true);
        aten.segmented_sum(b, first, second, offsets, positions, dim, true);
        EXPECT_TRUE(at::equal(a, b)) << dtype << " " << dim << " " << strided;
        cpu.gather_rows(a, first, index, dim);
        aten.gather_rows(b, first, index, dim);
        EXPECT_TRUE(at::equal(a, b)) << dtype << " " << dim << " " << strided;
      }
    }
  }
}

}  // namespace
}  // namespace meshrun
