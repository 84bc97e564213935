// What embedding_bag refuses on all ranks, NaN among the largest elements, and gradients by
// frequency: what cases/embedding_bags.cc cannot compare with every release of LibTorch.
#include <gtest/gtest.h>

#include <limits>
#include <tuple>
#include <vector>

#include "ATen/ATen.h"
#include "parallel/manager/distributed_manager.h"
#include "parallel/shard/shard_tensor.h"
#include "tests/parallel/collectives/worlds.h"
#include "tests/parallel/shard/drawn_layouts.h"
#include "tests/parallel/support/rank_processes.h"

namespace meshrun {
namespace {

at::Tensor numbers(std::vector<int64_t> values) { return at::tensor(values, at::kLong); }

// By all ranks.
at::Tensor cut_rows(const at::Tensor& whole, bool requires_grad) {
  const ShardMesh::Ptr mesh = mesh_of_world({DistributedManager::get().world_size()});
  const SpecPtr spec =
      make_spec(mesh, ShardLayout::split(mesh->shape(), {Shard(0)}, whole.sizes().vec()));
  return ShardTensor(part_of(whole, *spec), spec, requires_grad);
}

void refuse_wrong_bags() {
  const JoinedWorld world;
  const at::Tensor table = cut_rows(at::ones({8, 2}), true);
  const at::Tensor whole = at::ones({8, 2});
  const at::Tensor elements = numbers({0, 5, 1, 2, 7});
  const at::Tensor cut_elements = cut_rows(elements, false);
  const at::Tensor offsets = numbers({0, 2});
  for (const int64_t mode : {0, 1, 2}) {
    // All ranks have the elements of bags of a table whose rows are cut.
    for (const bool by_frequency : {false, true}) {
      expect_error_on_all_ranks(
          [&] {
            at::embedding_bag(table, numbers({0, 9, 1}), offsets, by_frequency, mode);
          },
          "index 9 is out of bounds for a dimension with size 8");
    }
    expect_error_on_all_ranks(
        [&] { at::embedding_bag(table, elements, offsets, false, mode, /*sparse=*/true); },
        "embedding_bag: gradients of sharded tensors are not sparse");
    expect_error_on_all_ranks(
        [&] {
          at::embedding_bag(table, elements.view({5, 1}), offsets, false, mode);
        },
        "takes a 1D input");
    expect_error_on_all_ranks([&] { at::embedding_bag(table, elements, numbers({}), false, mode); },
                              "no bags for 5 elements");
    expect_error_on_all_ranks(
        [&] {
          at::embedding_bag(whole, cut_elements, numbers({1, 2}), false, mode);
        },
        "offsets[0] has to be 0");
    expect_error_on_all_ranks(
        [&] {
          at::embedding_bag(whole, cut_elements, numbers({0, 6}), false, mode);
        },
        "offsets[-1] can not be greater than input's length 5");
    expect_error_on_all_ranks(
        [&] {
          at::embedding_bag(whole, cut_elements, numbers({0, 3, 1}), false, mode);
        },
        "offsets that decrease");
    expect_error_on_all_ranks(
        [&] { at::embedding_bag(whole, cut_elements, offsets, false, mode, false, {}, true); },
        "the last offset is 2 and the input has 5 elements");
  }
  expect_error_on_all_ranks(
      [&] { at::_embedding_bag_forward_only(table, elements, offsets); },
      "the derivative for 'aten::_embedding_bag_forward_only' is not implemented");
  // A table without a gradient has none that is sparse.
  EXPECT_NO_THROW(at::embedding_bag(table.detach(), elements, offsets, false, 0, /*sparse=*/true));
}

// LibTorch's own largest element is NaN where the first one of the bag is. Where the table's rows
// are cut, that of a rank's first one counts too.
void keep_nan() {
  const JoinedWorld world;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  const at::Tensor rows = at::tensor({nan, 1.0, infinity, -infinity}, at::kDouble).view({4, 1});
  const at::Tensor table = cut_rows(rows, true);
  const at::Tensor elements = numbers({0, 1, 1, 3, 3, 2, 1});
  const at::Tensor offsets = numbers({0, 2, 4, 5, 7, 7});
  const at::Tensor expected = std::get<0>(at::embedding_bag(rows, elements, offsets, false, 2));
  const at::Tensor got = std::get<0>(at::embedding_bag(table, elements, offsets, false, 2));
  EXPECT_TRUE(at::allclose(ShardTensor(got).full_tensor(), expected, 0, 0, /*equal_nan=*/true));
  EXPECT_TRUE(expected[0].isnan().item<bool>());
  got.nan_to_num(0, 0, 0).sum().backward();
  EXPECT_TRUE(ShardTensor(table.grad()).full_tensor().isfinite().all().item<bool>());
}

// Releases of LibTorch before 2.15 divide by the frequency of another row.
void divide_by_own_frequency() {
  const JoinedWorld world;
  for (const int64_t mode : {0, 1}) {
    const at::Tensor table = cut_rows(at::ones({4, 1}), true);
    const at::Tensor bags = std::get<0>(at::embedding_bag(table, numbers({1, 1, 3}), numbers({0}),
                                                          /*scale_grad_by_freq=*/true, mode));
    bags.sum().backward();
    const double of_bag = mode == 0 ? 1 : 1.0 / 3;
    EXPECT_TRUE(at::allclose(ShardTensor(table.grad()).full_tensor(),
                             at::tensor({0.0, of_bag, 0.0, of_bag}, at::kFloat).view({4, 1})));
  }
}

const bool kRegistered = register_rank_function("refuse wrong bags", refuse_wrong_bags) &&
                         register_rank_function("NaN in bags", keep_nan) &&
                         register_rank_function("own frequency", divide_by_own_frequency);

TEST(EmbeddingBagTest, WrongBagsAreErrorsOnAllRanks) {
  run_in_worlds("refuse wrong bags", {2, 4}, {"ucx"});
}

TEST(EmbeddingBagTest, NaNIsNotLostAmongTheLargestElements) {
  run_in_worlds("NaN in bags", {1, 2, 4}, {"ucx"});
}

TEST(EmbeddingBagTest, GradientsAreDividedByTheFrequencyOfTheirOwnRow) {
  run_in_worlds("own frequency", {1, 2, 4}, {"ucx"});
}

}  // namespace
}  // namespace meshrun
