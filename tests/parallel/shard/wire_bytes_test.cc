// What redistributions, gradients of views and additions send, counted by a backend without wire:
// all ranks of a mesh in this process.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "parallel/shard/redistribute/redistribute.h"
#include "parallel/shard/shard_tensor.h"
#include "tests/parallel/shard/drawn_layouts.h"
#include "tests/parallel/shard/mesh_without_wire.h"
#include "tests/parallel/support/loopback_backend.h"
#include "tests/parallel/support/memory_meter.h"

namespace meshrun {
namespace {

using Lengths = std::vector<int64_t>;

int64_t received_of(const ShardMesh& mesh) { return traffic_of(mesh).received; }

int64_t calls(const ShardMesh& mesh) { return traffic_of(mesh).calls; }

TEST(WireBytesTest, EveryRankReceivesTheBytesThatItLacksAndNoOther) {
  Draw draw(11);
  const std::vector<Lengths> shapes = {{2}, {4}, {2, 2}, {3, 2}, {1, 2, 2}, {2, 1, 2}, {2, 2, 2}};
  for (int i = 0; i < 200; ++i) {
    const Lengths& mesh_shape = draw.one_of(shapes);
    Lengths shape(static_cast<size_t>(draw.integer(1, 3)));
    for (int64_t& extent : shape) extent = draw.extent();
    const ShardLayout from = draw_layout(draw, mesh_shape, shape, false, true);
    const ShardLayout to = draw_layout(draw, mesh_shape, shape, false, true);
    SCOPED_TRACE(fmt::format("mesh [{}], [{}] from {} to {}", fmt::join(mesh_shape, ", "),
                             fmt::join(shape, ", "), to_string(from.placements()),
                             to_string(to.placements())));
    const auto coordinates = all_coordinates(mesh_shape);
    for (size_t rank = 0; rank < coordinates.size(); ++rank) {
      const ShardMesh::Ptr mesh = mesh_without_wire(mesh_shape, static_cast<int>(rank));
      const SpecPtr source = make_spec(mesh, from);
      const SpecPtr target = make_spec(mesh, to);
      redistribute_local(at::ones(source->local_shape()), source, target);
      EXPECT_EQ(received_of(*mesh), 4 * lacking_elements(from, to, coordinates[rank]));
      EXPECT_EQ(received_of(*mesh), 4 * redistribution_plan(*source, *target).received_elements());
    }
  }
}

TEST(WireBytesTest, SummandsOfOtherPiecesAreTheOnlyOnesThatLeave) {
  for (int rank = 0; rank < 4; ++rank) {
    const ShardMesh::Ptr mesh = mesh_without_wire({4}, rank);
    const SpecPtr summands = make_spec(mesh, ShardLayout::split({4}, {Partial()}, {10, 3}));
    const SpecPtr pieces = target_spec(summands, {Shard(0)});
    redistribute_local(at::ones({10, 3}), summands, pieces);
    EXPECT_EQ(received_of(*mesh), 3 * numel(pieces->box()) * 4);
    EXPECT_EQ(calls(*mesh), 1);
  }
}

// What an all-reduce itself sends is the backend's.
TEST(WireBytesTest, SummandsThatAllNeedTravelInOneAllReduce) {
  const ShardMesh::Ptr mesh = mesh_without_wire({2, 2}, 3);
  const SpecPtr from = make_spec(mesh, ShardLayout::split({2, 2}, {Partial(), Shard(0)}, {10, 3}));
  redistribute_local(at::ones(from->local_shape()), from,
                     target_spec(from, {Replicate(), Shard(0)}));
  EXPECT_EQ(LoopbackBackend::of(mesh->axis_group(0)).num_calls(), 1);
  EXPECT_EQ(calls(*mesh), 1);
  EXPECT_EQ(received_of(*mesh), 0);
}

TEST(WireBytesTest, AMeshOfThreeAxesMovesAlongTheOnesThatChange) {
  const ShardMesh::Ptr mesh = mesh_without_wire({2, 2, 2}, 5);
  const SpecPtr from =
      make_spec(mesh, ShardLayout::split({2, 2, 2}, {Shard(0), Shard(1), Replicate()}, {8, 8}));
  redistribute_local(at::ones({4, 4}), from,
                     target_spec(from, {Shard(0), Replicate(), Replicate()}));
  EXPECT_EQ(LoopbackBackend::of(mesh->axis_group(1)).num_calls(), 1);
  EXPECT_EQ(calls(*mesh), 1);
}

// A block of four becomes two rows of eight: half of it is there.
TEST(WireBytesTest, AnotherMeshMovesWhatIsLackingInOneCall) {
  for (int rank = 0; rank < 4; ++rank) {
    const ShardMesh::Ptr mesh = mesh_without_wire({2, 2}, rank);
    const ShardMesh::Ptr flat = mesh_without_wire({4}, rank);
    const SpecPtr blocks =
        make_spec(mesh, ShardLayout::split({2, 2}, {Shard(0), Shard(1)}, {8, 8}));
    const SpecPtr rows = target_spec(blocks, flat, {Shard(0)});
    EXPECT_EQ(redistribute_local(at::ones({4, 4}), blocks, rows).sizes(), at::IntArrayRef({2, 8}));
    EXPECT_EQ(received_of(*mesh), 2 * 4 * 4);
    EXPECT_EQ(calls(*mesh), 1);
    EXPECT_EQ(calls(*flat), 0);
    // Every rank has all of it.
    const SpecPtr copies = replicated_spec(mesh, {8, 8});
    redistribute_local(at::ones({8, 8}), copies, target_spec(copies, flat, {Shard(1)}));
    EXPECT_EQ(calls(*mesh), 1);
  }
}

// An unused piece of a tensor is zeros of this rank's part in the gradient, and nothing moves.
TEST(WireBytesTest, UnusedPiecesOfASplitCostThisRanksPartAlone) {
  const ShardMesh::Ptr mesh = mesh_without_wire({16}, 3);
  const SpecPtr spec = make_spec(mesh, ShardLayout::split({16}, {Shard(0)}, {16 * 256, 16}));
  using Split = std::function<std::vector<at::Tensor>(const at::Tensor&)>;
  const Split splits[] = {
      [](const at::Tensor& x) { return x.split(1, 1); },
      [](const at::Tensor& x) { return x.chunk(16, 1); },
      [](const at::Tensor& x) {
        return x.split_with_sizes({1, 9, 6}, 1);
      },
      [](const at::Tensor& x) { return at::unsafe_split(x, 1, 1); },
      [](const at::Tensor& x) { return x.unbind(1); },
  };
  for (const Split& split : splits) {
    const ShardTensor x(at::ones({256, 16}), spec, true);
    const int64_t local_bytes = 256 * 16 * 4;
    const MemoryMeter meter;
    split(x)[0].square().sum().backward();
    // The whole tensor has 16 times the bytes of a part.
    EXPECT_LT(meter.peak_bytes(), 6 * local_bytes);
    EXPECT_EQ(calls(*mesh), 0);
    ASSERT_TRUE(is_shard_tensor(x.grad()));
    EXPECT_EQ(spec_of(x.grad())->placements(), Placements{Shard(0)});
    at::Tensor expected = at::zeros({256, 16});
    expected.select(1, 0).fill_(2);
    EXPECT_TRUE(at::equal(local_of(x.grad()), expected));
  }
}

// Nodes and edges on the same ranks: what an edge adds travels to the owner of its node, once.
TEST(WireBytesTest, AddedRowsTravelToTheirOwnersAlone) {
  const ShardMesh::Ptr mesh = mesh_without_wire({4}, 1);
  const LoopbackBackend& wire = LoopbackBackend::of(mesh->axis_group(0));
  const auto rows = [&](Lengths shape) {
    return make_spec(mesh, ShardLayout::split({4}, {Shard(0)}, shape));
  };
  const ShardTensor nodes(at::ones({2, 3}), rows({8, 3}));  // this rank has rows 2 and 3
  const at::Tensor values = at::arange(9, at::kFloat).view({3, 3});
  const ShardTensor edges(values, rows({12, 3}));
  // One for rank 0, one for this rank, one for rank 3.
  const at::Tensor owners = at::tensor({0, 2, 7}, at::kLong);
  at::Tensor expected = at::ones({2, 3});
  expected[0].add_(values[1]);

  const at::Tensor added = at::index_add(nodes, 0, ShardTensor(owners, rows({12})), edges);
  EXPECT_EQ(spec_of(added)->placements(), Placements{Shard(0)});
  EXPECT_TRUE(at::equal(local_of(added), expected));
  // Three counts; two indices and two rows.
  const int64_t counts = 3 * 8;
  EXPECT_EQ(wire.bytes_sent(), counts + 2 * 8 + 2 * 3 * 4);
  EXPECT_EQ(wire.bytes_received(), counts);

  const int64_t before = wire.bytes_sent();
  const ShardTensor each(owners.view({3, 1}).expand({3, 3}).clone(), rows({12, 3}));
  EXPECT_TRUE(at::equal(local_of(at::scatter_add(nodes, 0, each, edges)), expected));
  // Six elements, each with its row and column.
  EXPECT_EQ(wire.bytes_sent() - before, counts + 6 * (4 + 8 + 8));

  const int64_t before_products = wire.bytes_sent();
  const at::Tensor products =
      at::index_reduce(nodes, 0, ShardTensor(owners, rows({12})), edges + 1, "prod");
  expected = at::ones({2, 3});
  expected[0].mul_(values[1] + 1);
  EXPECT_TRUE(at::equal(local_of(products), expected));
  EXPECT_EQ(wire.bytes_sent() - before_products, counts + 2 * 8 + 2 * 3 * 4);
}

// What is written is gathered, and its gradient is cut where it lies. What is added at places is
// summed up first, so that results travel, not their sources.
TEST(WireBytesTest, WritesIntoPlainTensorsGatherWhatIsWritten) {
  const ShardMesh::Ptr mesh = mesh_without_wire({4}, 1);
  const auto rows = [&](Lengths shape) {
    return make_spec(mesh, ShardLayout::split({4}, {Shard(0)}, shape));
  };
  const ShardTensor x(at::ones({2, 3}), rows({8, 3}), true);
  at::Tensor out = at::zeros({8, 3});
  out.narrow(1, 0, 2).copy_(x.narrow(1, 0, 2));
  EXPECT_EQ(received_of(*mesh), 6 * 2 * 4);
  out.add_(x);
  EXPECT_EQ(received_of(*mesh), 6 * 2 * 4 + 6 * 3 * 4);
  EXPECT_EQ(calls(*mesh), 2);
  out.square().sum().backward();
  EXPECT_EQ(calls(*mesh), 2);

  const ShardTensor edges(at::ones({30, 3}), rows({120, 3}), true);
  const ShardTensor nodes(at::ones({30}, at::kLong), rows({120}));
  at::Tensor sums = at::zeros({8, 3});
  sums.index_add_(0, nodes, edges);
  EXPECT_EQ(calls(*mesh), 3);
  EXPECT_EQ(received_of(*mesh), 6 * 2 * 4 + 6 * 3 * 4);
  sums.square().sum().backward();
  EXPECT_EQ(calls(*mesh), 3);
}

// A sequence or a set that is larger than what is sought in it stays where it is.
TEST(WireBytesTest, OfSearchesTheSmallerOperandMoves) {
  const ShardMesh::Ptr mesh = mesh_without_wire({4}, 3);
  const auto vector = [&](int64_t extent) {
    return make_spec(mesh, ShardLayout::split({4}, {Shard(0)}, {extent}));
  };
  const ShardTensor numbers(at::arange(10, at::kFloat) + 1, vector(40));
  const at::Tensor sought = at::tensor({2.0, 0.5, 100.0}, at::kFloat);

  const at::Tensor places = at::searchsorted(numbers, sought);
  EXPECT_EQ(spec_of(places)->placements(), Placements{Partial()});
  EXPECT_TRUE(at::equal(local_of(places), at::tensor({1, 0, 10}, at::kLong)));
  // The ends of three other pieces.
  EXPECT_EQ(received_of(*mesh), 3 * 2 * 4);
  EXPECT_EQ(calls(*mesh), 1);

  const at::Tensor found = at::isin(sought, numbers);
  EXPECT_TRUE(spec_of(found)->is_replicated());
  EXPECT_TRUE(at::equal(local_of(found), at::tensor({1, 0, 0}, at::kLong).to(at::kBool)));
  // What an all-reduce itself sends is the backend's.
  EXPECT_EQ(received_of(*mesh), 3 * 2 * 4);
  EXPECT_EQ(calls(*mesh), 2);

  const ShardTensor few(at::ones({1}), vector(4));
  const int64_t before = received_of(*mesh);
  EXPECT_EQ(spec_of(at::bucketize(numbers, few))->placements(), Placements{Shard(0)});
  EXPECT_EQ(received_of(*mesh) - before, 3 * 4);
  EXPECT_EQ(spec_of(at::isin(numbers, few))->placements(), Placements{Shard(0)});
  EXPECT_EQ(received_of(*mesh) - before, 2 * 3 * 4);
}

// One batch of keys for all queries, and one head for all: neither travels more than once.
TEST(WireBytesTest, KeysThatAllBatchesShareTravelOnce) {
  for (const Lengths& batch : {Lengths{1, 2}, Lengths{3, 1}, Lengths{1, 1}}) {
    const ShardMesh::Ptr mesh = mesh_without_wire({4}, 1);
    const auto cut = [&](Lengths shape) {
      const SpecPtr spec = make_spec(mesh, ShardLayout::split({4}, {Shard(2)}, shape));
      return ShardTensor(at::ones(spec->local_shape()), spec, true);
    };
    const ShardTensor query = cut({3, 2, 8, 4});
    const ShardTensor key = cut({batch[0], batch[1], 8, 4});
    const at::Tensor output = at::scaled_dot_product_attention(query, key, key);
    EXPECT_EQ(spec_of(output)->placements(), Placements{Shard(2)});
    // Keys and values of three other ranks.
    const int64_t heads = batch[0] * batch[1];
    EXPECT_EQ(received_of(*mesh), 2 * 3 * heads * 2 * 4 * 4);
  }
  // Batches of queries are cut, and the keys, which all ranks have, stay where they are.
  const ShardMesh::Ptr mesh = mesh_without_wire({4}, 1);
  const SpecPtr batches = make_spec(mesh, ShardLayout::split({4}, {Shard(0)}, {8, 2, 6, 4}));
  const ShardTensor query(at::ones({2, 2, 6, 4}), batches, true);
  const ShardTensor key(at::ones({1, 2, 6, 4}), replicated_spec(mesh, {1, 2, 6, 4}), true);
  const at::Tensor output = at::scaled_dot_product_attention(query, key, key);
  EXPECT_EQ(spec_of(output)->layout(), batches->layout());
  EXPECT_EQ(calls(*mesh), 0);
}

// Both tensors' rows are cut: the fewer ones travel, and no distance does.
TEST(WireBytesTest, DistancesSendTheRowsOfOneOperandAlone) {
  const ShardMesh::Ptr mesh = mesh_without_wire({4}, 1);
  const auto cut = [&](Lengths shape, int64_t dim) {
    const SpecPtr spec = make_spec(mesh, ShardLayout::split({4}, {Shard(dim)}, shape));
    return ShardTensor(at::ones(spec->local_shape()), spec, true);
  };
  const ShardTensor many = cut({12, 3}, 0);
  EXPECT_EQ(spec_of(at::cdist(many, cut({8, 3}, 0)))->placements(), Placements{Shard(0)});
  // Six rows of other ranks.
  const int64_t rows = 6 * 3 * 4;
  EXPECT_EQ(received_of(*mesh), rows);
  EXPECT_EQ(spec_of(at::cdist(cut({8, 3}, 0), many))->placements(), Placements{Shard(1)});
  EXPECT_EQ(received_of(*mesh), 2 * rows);
  EXPECT_EQ(calls(*mesh), 2);
  const ShardTensor whole(at::ones({8, 3}), replicated_spec(mesh, {8, 3}), true);
  EXPECT_EQ(spec_of(at::cdist(many, whole))->placements(), Placements{Shard(0)});
  EXPECT_EQ(spec_of(at::cdist(whole, many))->placements(), Placements{Shard(1)});
  EXPECT_EQ(calls(*mesh), 2);

  // Fewer distances than coordinates: one all-reduce, and nothing in the backward pass.
  const ShardTensor long_rows = cut({3, 40}, 1);
  const at::Tensor distances = at::cdist(long_rows, cut({2, 40}, 1));
  EXPECT_EQ(spec_of(distances)->placements(), Placements{Replicate()});
  distances.sum().backward();
  EXPECT_EQ(calls(*mesh), 3);
  EXPECT_EQ(received_of(*mesh), 2 * rows);
  EXPECT_EQ(spec_of(long_rows.grad())->placements(), Placements{Shard(1)});
  // More: 12 rows of 4 coordinates become 3 rows of a rank, and 8 rows are gathered.
  EXPECT_EQ(spec_of(at::cdist(cut({12, 4}, 1), cut({8, 4}, 1)))->placements(),
            Placements{Shard(0)});
  EXPECT_EQ(received_of(*mesh), 2 * rows + (3 * 3 + 8 * 3) * 4);
}

// The table is whole: bags stay on the ranks of their elements.
TEST(WireBytesTest, OnlyElementsOfDividedBagsTravel) {
  const ShardMesh::Ptr mesh = mesh_without_wire({4}, 1);
  const SpecPtr cut = make_spec(mesh, ShardLayout::split({4}, {Shard(0)}, {24}));
  const ShardTensor elements(at::arange(6), cut);
  const ShardTensor table(at::ones({10, 5}), replicated_spec(mesh, {10, 5}), true);
  const at::Tensor rows = at::arange(0, 24, 3);
  for (const int64_t mode : {0, 1, 2}) {
    const at::Tensor bags = std::get<0>(at::embedding_bag(table, elements, rows, false, mode));
    EXPECT_EQ(spec_of(bags)->placements(), Placements{Shard(0)});
    EXPECT_EQ(local_of(bags).sizes(), at::IntArrayRef({2, 5}));
  }
  EXPECT_EQ(calls(*mesh), 0);
  // The second bag begins with the last element of the first rank.
  const at::Tensor divided = at::tensor({0, 5, 12, 18}, at::kLong);
  const at::Tensor bags = std::get<0>(at::embedding_bag(table, elements, divided));
  EXPECT_EQ(local_of(bags).sizes(), at::IntArrayRef({1, 5}));
  EXPECT_EQ(received_of(*mesh), 8);
}

// The table's rows are cut: sums and means are summands.
TEST(WireBytesTest, BagsOfACutTableSendNothingAndTheirLargestTwoNumbersEach) {
  const ShardMesh::Ptr mesh = mesh_without_wire({4}, 1);
  const SpecPtr cut = make_spec(mesh, ShardLayout::split({4}, {Shard(0)}, {8, 5}));
  const ShardTensor table(at::ones({2, 5}), cut, true);
  const at::Tensor elements = at::arange(8);
  const at::Tensor offsets = at::tensor({0, 3}, at::kLong);
  for (const int64_t mode : {0, 1, 2}) {
    const at::Tensor bags = std::get<0>(at::embedding_bag(table, elements, offsets, false, mode));
    EXPECT_EQ(spec_of(bags)->placements(), Placements{Partial()});
    EXPECT_EQ(calls(*mesh), mode == 2 ? 2 : 0);
  }
  EXPECT_EQ(received_of(*mesh), 0);
}

// One norm of each of three rows, of each rank that has columns of the table.
TEST(WireBytesTest, RowsOfATableAreMadeShorterByTheirNorms) {
  const ShardMesh::Ptr mesh = mesh_without_wire({4}, 1);
  const at::Tensor looked_up = at::tensor({1, 2, 5, 2}, at::kLong);
  const auto shorten = [&](int64_t dim) {
    const SpecPtr cut = make_spec(mesh, ShardLayout::split({4}, {Shard(dim)}, {8, 8}));
    at::Tensor table = ShardTensor(at::ones(cut->local_shape()), cut);
    at::embedding_renorm_(table, looked_up, 1, 2);
  };
  shorten(0);
  EXPECT_EQ(calls(*mesh), 0);
  shorten(1);
  EXPECT_EQ(calls(*mesh), 1);
  EXPECT_EQ(received_of(*mesh), 3 * 3 * 4);
}

// A vocabulary is cut, and no rank has the scores of another.
TEST(WireBytesTest, ALossOverCutClassesSendsNumbersOfRowsAlone) {
  const ShardMesh::Ptr mesh = mesh_without_wire({4}, 1);
  const SpecPtr cut = make_spec(mesh, ShardLayout::split({4}, {Shard(1)}, {6, 8}));
  const ShardTensor scores(at::ones({6, 2}), cut, true);
  const at::Tensor target = at::arange(6, at::kLong);
  const at::Tensor loss = at::cross_entropy_loss(scores, target);
  EXPECT_EQ(spec_of(loss)->placements(), Placements{Partial()});
  // The largest score and the sum of each row; its cotangents' sum.
  EXPECT_EQ(calls(*mesh), 2);
  loss.backward();
  EXPECT_EQ(calls(*mesh), 3);
  EXPECT_EQ(received_of(*mesh), 0);
  EXPECT_EQ(spec_of(scores.grad())->placements(), Placements{Shard(1)});
}

// The field is cut along its rows: one transposition each way between planes, and two where there
// is one transformed dimension.
TEST(WireBytesTest, ComplexTransformsTransposeAndGatherNothing) {
  const ShardMesh::Ptr mesh = mesh_without_wire({4}, 1);
  const SpecPtr rows = make_spec(mesh, ShardLayout::split({4}, {Shard(1)}, {3, 8, 12}));
  const ShardTensor field(at::ones({3, 2, 12}, at::kComplexFloat), rows);
  // Own 1/4 of the field stays at home in part: 3/4 of what a rank has.
  const int64_t transposition = 3 * 2 * 12 * 8 * 3 / 4;
  const at::Tensor spectrum = at::fft_fft2(field);
  EXPECT_EQ(spec_of(spectrum)->placements(), Placements{Shard(2)});
  EXPECT_EQ(received_of(*mesh), transposition);
  EXPECT_EQ(spec_of(at::fft_ifft2(spectrum))->placements(), Placements{Shard(1)});
  EXPECT_EQ(received_of(*mesh), 2 * transposition);
  EXPECT_EQ(spec_of(at::fft_fft(field, {}, 1))->layout(), rows->layout());
  EXPECT_EQ(received_of(*mesh), 4 * transposition);
  EXPECT_EQ(spec_of(at::fft_fft(field, {}, 2))->layout(), rows->layout());
  EXPECT_EQ(received_of(*mesh), 4 * transposition);
}

}  // namespace
}  // namespace meshrun
