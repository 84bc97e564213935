// What operators on sharded tensors send, as docs/shard_tensor.md says of them: a backend without
// wire counts the bytes of one rank.
#include <gtest/gtest.h>

#include <optional>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "parallel/shard/shard_tensor.h"
#include "tests/parallel/shard/mesh_without_wire.h"

namespace meshrun {
namespace {

using Lengths = std::vector<int64_t>;

constexpr Traffic kNothing = {};

// Ones, in even pieces where `sizes` says no others.
ShardTensor ones_cut(const ShardMesh::Ptr& mesh, const Placement& placement, const Lengths& shape,
                     const Lengths& sizes = {}) {
  ShardLayout layout = ShardLayout::split(mesh->shape(), {placement}, shape);
  if (!sizes.empty()) {
    std::vector<DimCut> cuts = layout.cuts();
    cuts[static_cast<size_t>(placement.dim())].sizes = sizes;
    layout = ShardLayout::with_cuts(mesh->shape(), {placement}, std::move(cuts));
  }
  const SpecPtr spec = make_spec(mesh, std::move(layout));
  return {at::ones(spec->local_shape()), spec, true};
}

// One dimension alone: there and back by the largest whole one, in the type of each way.
TEST(OperatorBytesTest, RealTransformsOfOneDimensionTransposeThereAndBack) {
  const ShardMesh::Ptr mesh = mesh_without_wire({4}, 1);
  const ShardTensor field = ones_cut(mesh, Shard(1), {3, 8, 12});
  at::Tensor half;
  const int64_t real_way = 3 * 2 * 9 * 4;
  Traffic there = traffic_of(mesh, [&] { half = at::fft_rfft(field.detach(), {}, 1); });
  EXPECT_EQ(spec_of(half)->placements(), Placements{Shard(1)});
  // Five frequencies.
  const int64_t own = local_of(half).size(1);
  EXPECT_EQ(there.received, real_way + 3 * own * 9 * 8);
  EXPECT_EQ(there.calls, 2);
  Traffic back = traffic_of(mesh, [&] { at::fft_irfft(half, 8, 1); });
  EXPECT_EQ(back.received, 3 * (5 - own) * 3 * 8 + real_way);
  EXPECT_EQ(back.calls, 2);
}

// Rows of two channels and six columns.
TEST(OperatorBytesTest, BlocksOfImagesSendRowsBesideTheCutAlone) {
  const ShardMesh::Ptr mesh = mesh_without_wire({4}, 1);
  constexpr int64_t kRow = 2 * 6 * 4;
  const ShardTensor image = ones_cut(mesh, Shard(2), {1, 2, 8, 6});
  at::Tensor columns;
  const Traffic halos = {2 * kRow, 2 * kRow, 0, 1};
  EXPECT_EQ(traffic_of(mesh,
                       [&] {
                         columns = at::im2col(image, {3, 3}, {1, 1}, {1, 1}, {1, 1});
                       }),
            halos);
  EXPECT_EQ(traffic_of(mesh, [&] { columns.sum().backward(); }), halos);
  EXPECT_EQ(traffic_of(mesh,
                       [&] {
                         columns = at::im2col(image, {2, 2}, {1, 1}, {0, 0}, {2, 2});
                       }),
            kNothing);
  EXPECT_EQ(traffic_of(mesh, [&] { columns.sum().backward(); }), kNothing);
  // A cut width becomes a cut height: two rows of the six columns of others.
  const ShardTensor wide = ones_cut(mesh, Shard(3), {1, 2, 8, 8});
  const Traffic turn = {2 * 2 * 6 * 4, 2 * 2 * 6 * 4, 0, 1};
  EXPECT_EQ(traffic_of(mesh, [&] { at::im2col(wide, {2, 2}, {1, 1}, {0, 0}, {2, 2}); }), turn);

  const auto fold = [](const at::Tensor& x) {
    return at::col2im(x, {8, 6}, {3, 3}, {1, 1}, {1, 1}, {1, 1});
  };
  const ShardTensor blocks = ones_cut(mesh, Shard(2), {1, 18, 48});
  at::Tensor sums;
  EXPECT_EQ(traffic_of(mesh, [&] { sums = fold(blocks); }), halos);
  EXPECT_EQ(traffic_of(mesh, [&] { sums.sum().backward(); }), halos);
  // A column goes on to the end of a row of blocks, and the first rank has one neighbour.
  const ShardMesh::Ptr first = mesh_without_wire({4}, 0);
  const ShardTensor uneven = ones_cut(first, Shard(2), {1, 18, 48}, {11, 13, 12, 12});
  const Traffic column_and_row = {18 * 4 + kRow, kRow, 0, 2};
  EXPECT_EQ(traffic_of(first, [&] { sums = fold(uneven); }), column_and_row);
  const Traffic row_and_column = {kRow, kRow + 18 * 4, 0, 2};
  EXPECT_EQ(traffic_of(first, [&] { sums.sum().backward(); }), row_and_column);
}

// Channels are blocks of four pixels.
TEST(OperatorBytesTest, PixelsMoveWhereAPieceEndsWithinABlockAlone) {
  const ShardMesh::Ptr mesh = mesh_without_wire({4}, 0);
  at::Tensor pixels;
  const ShardTensor even = ones_cut(mesh, Shard(1), {1, 16, 4, 4});
  EXPECT_EQ(traffic_of(mesh, [&] { pixels = at::pixel_shuffle(even, 2); }), kNothing);
  EXPECT_EQ(traffic_of(mesh, [&] { pixels.sum().backward(); }), kNothing);
  EXPECT_EQ(traffic_of(mesh, [&] { at::pixel_unshuffle(pixels, 2); }), kNothing);
  const ShardTensor uneven = ones_cut(mesh, Shard(1), {1, 16, 4, 4}, {3, 5, 4, 4});
  const Traffic channel = {4 * 4 * 4, 0, 0, 1};
  const Traffic channel_back = {0, 4 * 4 * 4, 0, 1};
  EXPECT_EQ(traffic_of(mesh, [&] { pixels = at::pixel_shuffle(uneven, 2); }), channel);
  EXPECT_EQ(traffic_of(mesh, [&] { pixels.sum().backward(); }), channel_back);
  const ShardTensor rows = ones_cut(mesh, Shard(2), {1, 1, 8, 4}, {3, 1, 2, 2});
  const Traffic row = {4 * 4, 0, 0, 1};
  const Traffic row_back = {0, 4 * 4, 0, 1};
  EXPECT_EQ(traffic_of(mesh, [&] { pixels = at::pixel_unshuffle(rows, 2); }), row);
  EXPECT_EQ(traffic_of(mesh, [&] { pixels.sum().backward(); }), row_back);
}

// Rows of two channels and four columns.
TEST(OperatorBytesTest, SamplesTakeTheRowsThatTheirPointsRead) {
  const ShardMesh::Ptr mesh = mesh_without_wire({4}, 1);
  constexpr int64_t kRow = 2 * 4 * 4;
  const ShardTensor image = ones_cut(mesh, Shard(2), {1, 2, 8, 4});
  // This rank has rows 2 and 3; its points lie between rows 1 and 2, and between 2 and 3.
  const SpecPtr points = make_spec(mesh, ShardLayout::split({4}, {Shard(1)}, {1, 8, 4, 2}));
  at::Tensor own = at::zeros({1, 2, 4, 2});
  for (int64_t row = 0; row < 2; ++row) {
    own.select(1, row).select(-1, 1).fill_((1.5 + static_cast<double>(row)) / 7 * 2 - 1);
  }
  const ShardTensor grid(own, points);
  at::Tensor samples;
  const auto sample = [&](const at::Tensor& at_points) {
    samples = at::grid_sampler(image, at_points, 0, 0, /*align_corners=*/true);
  };
  // The ranges of four pieces, of two numbers each, and one row.
  const Traffic ranges_and_row = {kRow, 0, 4 * 2 * 8, 2};
  EXPECT_EQ(traffic_of(mesh, [&] { sample(grid); }), ranges_and_row);
  EXPECT_EQ(spec_of(samples)->placements(), Placements{Shard(2)});
  const Traffic row_back = {0, kRow, 0, 1};
  EXPECT_EQ(traffic_of(mesh, [&] { samples.sum().backward(); }), row_back);
  // A whole grid of fewer points.
  const ShardTensor few(at::zeros({1, 3, 4, 2}), replicated_spec(mesh, {1, 3, 4, 2}));
  EXPECT_EQ(traffic_of(mesh, [&] { sample(few); }), kNothing);
  EXPECT_EQ(spec_of(samples)->placements(), Placements{Partial()});
  EXPECT_EQ(traffic_of(mesh, [&] { samples.sum().backward(); }), kNothing);
}

// Rows of two channels and four columns.
TEST(OperatorBytesTest, AntialiasedImagesTakeTheRowsOfTheirFilterAlone) {
  const ShardMesh::Ptr mesh = mesh_without_wire({4}, 1);
  constexpr int64_t kRow = 2 * 4 * 4;
  const ShardTensor image = ones_cut(mesh, Shard(2), {1, 2, 8, 4});
  at::Tensor half;
  // Half as high: four rows for each, of which this rank has two.
  const Traffic rows = {2 * kRow, 2 * kRow, 0, 1};
  EXPECT_EQ(
      traffic_of(
          mesh,
          [&] {
            half = at::_upsample_bilinear2d_aa(image, {4, 3}, false, std::nullopt, std::nullopt);
          }),
      rows);
  EXPECT_EQ(traffic_of(mesh, [&] { half.sum().backward(); }), rows);
  // The width alone.
  EXPECT_EQ(
      traffic_of(
          mesh,
          [&] {
            half = at::_upsample_bilinear2d_aa(image, {8, 3}, false, std::nullopt, std::nullopt);
          }),
      kNothing);
}

// A median is found by counts, and no rank has the elements of another.
TEST(OperatorBytesTest, AMedianSendsCountsAlone) {
  const ShardMesh::Ptr mesh = mesh_without_wire({4}, 1);
  const ShardTensor x = ones_cut(mesh, Shard(0), {8, 3});
  at::Tensor median;
  // Counts of NaNs, and of 256 values of each byte of float32.
  const Traffic counts = {0, 0, 8 + 4 * 256 * 8, 5};
  EXPECT_EQ(traffic_of(mesh, [&] { median = at::median(x); }), counts);
  const Traffic count = {0, 0, 8, 1};
  EXPECT_EQ(traffic_of(mesh, [&] { median.backward(); }), count);
  const ShardTensor bytes(at::ones({2, 3}, at::kByte), spec_of(x));
  const Traffic of_a_byte = {0, 0, 256 * 8, 1};
  EXPECT_EQ(traffic_of(mesh, [&] { at::median(bytes); }), of_a_byte);
}

// Rows are cut too: the number of them is one more number.
TEST(OperatorBytesTest, ALossOverCutClassesReducesTwoNumbersOfEachOwnRow) {
  const ShardMesh::Ptr mesh = mesh_without_wire({2, 2}, 1);
  const SpecPtr cut = make_spec(mesh, ShardLayout::split({2, 2}, {Shard(0), Shard(1)}, {6, 8}));
  const ShardTensor scores(at::ones({3, 4}), cut, true);
  const at::Tensor target = at::arange(6, at::kLong);
  at::Tensor loss;
  const Traffic forward = {0, 0, 2 * 3 * 4 + 8, 3};
  EXPECT_EQ(traffic_of(mesh, [&] { loss = at::cross_entropy_loss(scores, target); }), forward);
  const Traffic backward = {0, 0, 3 * 4, 1};
  EXPECT_EQ(traffic_of(mesh, [&] { loss.backward(); }), backward);
}

TEST(OperatorBytesTest, CountsAgreeOnTwoNumbers) {
  const ShardMesh::Ptr mesh = mesh_without_wire({4}, 1);
  const SpecPtr cut = make_spec(mesh, ShardLayout::split({4}, {Shard(0)}, {8}));
  const ShardTensor values(at::arange(2, at::kLong), cut);
  const ShardTensor weights(at::ones({2}), cut);
  const Traffic range = {0, 0, 2 * 8, 1};
  EXPECT_EQ(traffic_of(mesh, [&] { at::bincount(values); }), range);
  EXPECT_EQ(traffic_of(mesh, [&] { at::bincount(values, weights); }), range);
}

TEST(OperatorBytesTest, FlatIndicesTravelAndElementsDoNot) {
  const ShardMesh::Ptr mesh = mesh_without_wire({4}, 1);
  const ShardTensor x = ones_cut(mesh, Shard(0), {8, 3});
  const at::Tensor index = at::arange(5, at::kLong) * 4;
  at::Tensor taken;
  EXPECT_EQ(traffic_of(mesh, [&] { taken = at::take(x, index); }), kNothing);
  EXPECT_EQ(spec_of(taken)->placements(), Placements{Partial()});
  EXPECT_EQ(traffic_of(mesh, [&] { taken.sum().backward(); }), kNothing);
  // An index that is cut as well: two of eight are this rank's.
  const SpecPtr cut = make_spec(mesh, ShardLayout::split({4}, {Shard(0)}, {8}));
  const ShardTensor parts(at::arange(2, at::kLong), cut);
  EXPECT_EQ(traffic_of(mesh, [&] { taken = at::take(x, parts); }).received, 6 * 8);
  EXPECT_EQ(spec_of(taken)->placements(), Placements{Partial()});
  // It alone: the gradient is added up once, where the leaf has it.
  const ShardTensor whole(at::ones({8, 3}), replicated_spec(mesh, {8, 3}), true);
  EXPECT_EQ(traffic_of(mesh, [&] { taken = at::take(whole, parts); }), kNothing);
  EXPECT_EQ(spec_of(taken)->placements(), Placements{Shard(0)});
  const Traffic sum = {0, 0, 8 * 3 * 4, 1};
  EXPECT_EQ(traffic_of(mesh, [&] { taken.sum().backward(); }), sum);
}

}  // namespace
}  // namespace meshrun
