#include "parallel/collectives/fused_all_reduce.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "parallel/base/collective_errors.h"
#include "parallel/base/no_collectives.h"
#include "tests/parallel/collectives/worlds.h"
#include "tests/parallel/support/rank_processes.h"

namespace meshrun {
namespace {

using at::Tensor;
using c10d::ReduceOp;
using Tensors = std::vector<Tensor>;

// Closed forms: rank k contributes k + 1.
const bool kOperations = register_rank_function("fused_operations", [] {
  const JoinedWorld world;
  const double p = world.size;
  const Tensor own = at::full({2, 3}, world.rank + 1.0, at::kFloat);
  const auto all_are = [](const Tensor& tensor, double value) {
    return at::allclose(tensor, at::full_like(tensor, value));
  };
  EXPECT_TRUE(all_are(fused_all_reduce(own), p * (p + 1) / 2));
  EXPECT_TRUE(all_are(fused_all_reduce(own, {.op = ReduceOp::AVG}), (p + 1) / 2));
  EXPECT_TRUE(all_are(fused_all_reduce(own, {.op = ReduceOp::MAX}), p));
  EXPECT_TRUE(all_are(fused_all_reduce(own, {.op = ReduceOp::MIN}), 1));
  EXPECT_TRUE(all_are(fused_all_reduce(own, {.op = ReduceOp::AVG, .weight = world.rank + 1.0}),
                      (2 * p + 1) / 3));
  EXPECT_TRUE(all_are(own, world.rank + 1.0));

  // A rank without samples counts for nothing.
  const double weight = world.rank == 0 ? 2.0 : 0.0;
  EXPECT_TRUE(all_are(fused_all_reduce(own, {.op = ReduceOp::AVG, .weight = weight}), 1));
  // Its mean of no samples is not a number.
  for (const double nothing : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    const Tensor mean = world.rank == 0 ? own : at::full_like(own, nothing);
    EXPECT_TRUE(all_are(fused_all_reduce(mean, {.op = ReduceOp::AVG, .weight = weight}), 1));
  }
  // A rank that counts keeps its own.
  const Tensor broken = at::full_like(own, std::nan(""));
  const Tensor kept =
      fused_all_reduce(world.rank == 0 ? broken : own, {.op = ReduceOp::AVG, .weight = 1.0});
  EXPECT_TRUE(at::isnan(kept).all().item<bool>());
});

TEST(FusedAllReduceTest, GivesTheClosedFormsOfEachOperation) { run_in_worlds("fused_operations"); }

const bool kStructures = register_rank_function("fused_structures", [] {
  const JoinedWorld world;
  const double p = world.size;
  const double sum = p * (p + 1) / 2;
  const double k = world.rank + 1;

  const Tensors list = fused_all_reduce(Tensors{at::full({}, k, at::kFloat),
                                                at::full({2, 2}, 10 * k, at::kDouble).t(),
                                                at::empty({0, 3}), at::full({1}, k, at::kHalf)});
  ASSERT_EQ(list.size(), 4u);
  EXPECT_TRUE(at::equal(list[0], at::full({}, sum, at::kFloat)));
  EXPECT_TRUE(at::equal(list[1], at::full({2, 2}, 10 * sum, at::kDouble)));
  EXPECT_EQ(list[2].sizes(), at::IntArrayRef({0, 3}));
  EXPECT_TRUE(at::equal(list[3], at::full({1}, sum, at::kHalf)));

  const TensorMap map = fused_all_reduce(
      TensorMap{{"b", at::full({1}, k, at::kInt)}, {"a", at::full({2}, -k, at::kInt)}});
  ASSERT_EQ(map.size(), 2u);
  EXPECT_TRUE(at::equal(map.at("a"), at::full({2}, -sum, at::kInt)));
  EXPECT_TRUE(at::equal(map.at("b"), at::full({1}, sum, at::kInt)));

  // Inserted in unlike orders on unlike ranks: it is the keys that count.
  c10::Dict<std::string, Tensor> inner;
  const std::vector<std::string> keys = {"x", "yy", "z"};
  for (size_t i = 0; i < keys.size(); ++i) {
    const size_t place = (i + static_cast<size_t>(world.rank)) % keys.size();
    inner.insert(keys[place], at::full({static_cast<int64_t>(place) + 1}, k * (place + 1.0)));
  }
  const c10::IValue tree =
      c10::ivalue::Tuple::create({c10::IValue(inner), c10::IValue(Tensors{at::full({1}, 7 * k)})});
  const c10::IValue reduced = fused_all_reduce(tree);
  const auto& parts = reduced.toTupleRef().elements();
  ASSERT_EQ(parts.size(), 2u);
  auto entry = parts[0].toGenericDict();
  for (size_t i = 0; i < keys.size(); ++i) {
    EXPECT_TRUE(at::equal(entry.at(keys[i]).toTensor(),
                          at::full({static_cast<int64_t>(i) + 1}, sum * (i + 1.0))));
  }
  EXPECT_EQ(entry.begin()->key().toStringRef(), keys[static_cast<size_t>(world.rank) % 3]);
  EXPECT_TRUE(at::equal(parts[1].toTensorVector()[0], at::full({1}, 7 * sum)));

  EXPECT_TRUE(fused_all_reduce(Tensors{}).empty());
});

TEST(FusedAllReduceTest, KeepsStructureShapesAndDtypes) {
  run_in_worlds("fused_structures", {1, 3});
}

const bool kDtypes = register_rank_function("fused_dtypes", [] {
  const JoinedWorld world;
  const int64_t p = world.size;
  // Integers are exact.
  const int64_t large = (int64_t{1} << 53) + 1;
  EXPECT_EQ(fused_all_reduce(at::full({1}, large, at::kLong)).item<int64_t>(), p * large);
  // 16-bit floats are added in float32: 256 + 1 is 256 in bfloat16.
  const Tensor steps = at::full({1}, world.rank == 0 ? 256 : 1, at::kBFloat16);
  EXPECT_EQ(fused_all_reduce(steps).item<float>(),
            at::full({1}, 255.0 + static_cast<double>(p), at::kBFloat16).item<float>());
  // "Any" and "all", also beyond what a byte counts to.
  const Tensor flags = at::tensor({1, world.rank == 0 ? 1 : 0, 0}).to(at::kBool);
  EXPECT_TRUE(at::equal(fused_all_reduce(flags), at::tensor({1, 1, 0}).to(at::kBool)));
  EXPECT_TRUE(at::equal(fused_all_reduce(flags, {.op = ReduceOp::MIN}),
                        at::tensor({1, p == 1 ? 1 : 0, 0}).to(at::kBool)));
  // Mixed, when it is meant.
  const Tensors mixed = fused_all_reduce(Tensors{at::full({1}, 3, at::kLong), at::full({1}, 0.5)},
                                         {.buffer_dtype = at::kDouble});
  EXPECT_EQ(mixed[0].item<int64_t>(), 3 * p);
  EXPECT_EQ(mixed[1].item<float>(), 0.5f * static_cast<float>(p));
  const Tensor z = at::complex(at::full({2}, 1.0), at::full({2}, -2.0));
  EXPECT_TRUE(at::equal(fused_all_reduce(z), z * p));
  // Values, not gradients.
  EXPECT_FALSE(fused_all_reduce(at::ones({1}).requires_grad_()).requires_grad());
});

TEST(FusedAllReduceTest, ReducesInATypeThatHoldsTheSums) { run_in_worlds("fused_dtypes", {1, 3}); }

const bool kAsync = register_rank_function("fused_async", [] {
  const JoinedWorld world;
  const double sum = world.size * (world.size + 1) / 2.0;
  Tensor own = at::full({3}, world.rank + 1.0);
  auto first = fused_all_reduce_async(own);
  auto second = fused_all_reduce_async(TensorMap{{"a", own}}, {.op = ReduceOp::AVG});
  own.zero_();  // what was given counts
  EXPECT_TRUE(at::equal(second.wait().at("a"), at::full({3}, sum / world.size)));
  const Tensor reduced = first.wait();
  EXPECT_TRUE(first.is_completed());
  EXPECT_TRUE(at::equal(reduced, at::full({3}, sum)));
  EXPECT_TRUE(first.wait().is_same(reduced));
  { auto dropped = fused_all_reduce_async(own); }
  EXPECT_TRUE(at::equal(fused_all_reduce(own), at::zeros({3})));
});

TEST(FusedAllReduceTest, AsynchronousResultsExistWhenTheyAreWaitedFor) {
  run_in_worlds("fused_async", {1, 2});
}

const bool kWrong = register_rank_function("fused_wrong", [] {
  const JoinedWorld world;
  const bool odd = world.rank == 1;
  const Tensor own = at::ones({2});
  const Tensor whole = at::ones({2}, at::kInt);
  const auto expect = [](const std::function<void()>& call, const char* part) {
    expect_error_on_all_ranks(call, part);
  };
  // A rank's own mistake.
  expect([&] { fused_all_reduce(Tensors{own, odd ? whole : own}); }, "buffer_dtype");
  expect([&] { fused_all_reduce(Tensors{own, odd ? Tensor() : own}); }, "undefined");
  expect([&] { fused_all_reduce(own, {.op = ReduceOp::AVG, .weight = odd ? -1 : 1}); }, "weight");
  expect([&] { fused_all_reduce(own, {.op = odd ? ReduceOp::PRODUCT : ReduceOp::SUM}); },
         "SUM, AVG");
  expect([&] { fused_all_reduce_async(odd ? whole : own, {.op = ReduceOp::AVG}).wait(); },
         "average");
  expect([&] { fused_all_reduce(odd ? c10::IValue(1) : c10::IValue(own)); }, "tensors, lists");
  // Calls that differ between the ranks in one respect, under the name that the program knows.
  expect(
      [&] { fused_all_reduce(odd ? own : at::ones({3})); },
      "rank 1 called fused_all_reduce (2 operations at once: comparison before an all_reduce (of "
      "Float [2]); all_reduce of float32 [2], sum)");
  expect([&] { fused_all_reduce_async(odd ? own : at::ones({3})).wait(); },
         "rank 1 called fused_all_reduce (");
  expect([&] { fused_all_reduce(TensorMap{{odd ? "a" : "b", own}}); }, "disagree");
  expect([&] { fused_all_reduce(odd ? own : own.to(at::kDouble)); }, "disagree");
  expect([&] { fused_all_reduce(Tensors(odd ? 0 : 1, own)); }, "disagree");
  expect([&] { fused_all_reduce(own, {.op = odd ? ReduceOp::MAX : ReduceOp::MIN}); }, "disagree");
  // Sizes that differ within one buffer of the same size.
  expect(
      [&] {
        fused_all_reduce(odd ? Tensors{at::ones({1}), own} : Tensors{own, at::ones({1})});
      },
      "disagree");
  // Known when the weights have been added.
  expect([&] { fused_all_reduce(own, {.op = ReduceOp::AVG, .weight = 0}); }, "zero");
  EXPECT_TRUE(at::equal(fused_all_reduce(own), own * world.size));
});

TEST(FusedAllReduceTest, AWrongCallIsAnErrorOnAllRanks) {
  run_in_worlds("fused_wrong", {2, 3}, {"ucx"});
}

// Views could not be gradients: zero_grad(/*set_to_none=*/false) detaches those in place.
const bool kAsGradients = register_rank_function("fused_as_gradients", [] {
  const JoinedWorld world;
  const Tensor own = at::full({2, 3}, world.rank + 1.0);
  const double sum = world.size * (world.size + 1) / 2.0;
  Tensors results = {fused_all_reduce(own), fused_all_reduce_async(own).wait(),
                     fused_all_reduce(own.to(at::kHalf)),
                     fused_all_reduce(own, {.op = ReduceOp::AVG, .weight = 1.0})};
  for (const Tensor& each : fused_all_reduce(Tensors{own, own})) results.push_back(each);
  for (size_t i = 0; i < results.size(); ++i) {
    EXPECT_FALSE(results[i].is_view()) << i;
    EXPECT_TRUE(results[i].is_contiguous()) << i;
    Tensor parameter = at::ones({2, 3}, results[i].options()).requires_grad_();
    parameter.mutable_grad() = results[i];
    parameter.mutable_grad().detach_().zero_();  // as zero_grad(false) does
    EXPECT_TRUE(at::equal(parameter.grad(), at::zeros_like(results[i]))) << i;
  }
  // A write into one result changes no other one, nor its version.
  const Tensors pair = fused_all_reduce(Tensors{own, own});
  const auto version = pair[1]._version();
  pair[0].zero_();
  EXPECT_EQ(pair[1]._version(), version);
  EXPECT_TRUE(at::equal(pair[1], at::full({2, 3}, sum)));
});

TEST(FusedAllReduceTest, ResultsAreNoViewsAndCanBeGradients) {
  run_in_worlds("fused_as_gradients", {1, 2});
}

TEST(FusedAllReduceTest, IsForbiddenWhereStateChangesAlsoInOneProcess) {
  const Tensor own = at::ones({2});
  auto under_way = fused_all_reduce_async(own);
  {
    const NoCollectives none("update()");
    for (const std::string& text : {error_of([&] { fused_all_reduce(own); }),
                                    error_of([&] { fused_all_reduce_async(own); }), error_of([&] {
                                      fused_all_reduce(TensorMap{{"a", own}});
                                    }),
                                    error_of([&] { fused_all_reduce(c10::IValue(own)); })}) {
      EXPECT_NE(text.find("fused_all_reduce inside update()"), std::string::npos) << text;
    }
    EXPECT_NE(error_of([&] { under_way.wait(); }).find("inside update()"), std::string::npos);
  }
  EXPECT_TRUE(at::equal(under_way.wait(), own));
}

TEST(FusedAllReduceTest, WithoutTheManagerResultsAreCopies) {
  const Tensor own = at::ones({2}).requires_grad_();
  const Tensor copy = fused_all_reduce(own);
  EXPECT_TRUE(at::equal(copy, own));
  EXPECT_FALSE(copy.is_alias_of(own));
  EXPECT_FALSE(copy.requires_grad());
  EXPECT_TRUE(at::equal(fused_all_reduce_async(own).wait(), own));
  EXPECT_THROW(fused_all_reduce(Tensors{own, at::ones({1}, at::kInt)}), CollectiveArgumentError);
  EXPECT_THROW(fused_all_reduce(own, {.op = ReduceOp::AVG, .weight = 0}), CollectiveArgumentError);
}

}  // namespace
}  // namespace meshrun
