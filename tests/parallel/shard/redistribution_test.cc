// Redistribution between real ranks: bit-equal parts for every pair of layouts, gradients in the
// placements asked for, transfers that go on.
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "fmt/format.h"
#include "parallel/base/collective_errors.h"
#include "parallel/collectives/all_gather_v.h"
#include "parallel/shard/redistribute/redistribute.h"
#include "parallel/shard/shard_tensor.h"
#include "tests/parallel/collectives/worlds.h"
#include "tests/parallel/shard/drawn_layouts.h"
#include "tests/parallel/support/fake_streams.h"
#include "tests/parallel/support/nccl_stand_in.h"
#include "tests/parallel/support/rank_processes.h"

namespace meshrun {
namespace {

using Lengths = std::vector<int64_t>;

std::vector<Lengths> mesh_shapes(int64_t world) {
  switch (world) {
    case 1:
      return {{1}, {1, 1}};
    case 4:
      return {{4}, {2, 2}, {4, 1}, {1, 2, 2}, {2, 1, 2}};
    default:
      return {{world}, {1, world}, {world, 1}};
  }
}

// Small whole numbers: sums are exact, in any order.
at::Tensor numbered_doubles(const Lengths& shape) {
  return at::arange(at::empty(shape).numel(), at::kDouble).view(shape).remainder(997);
}

void expect_part(const at::Tensor& tensor, const at::Tensor& whole, const SpecPtr& spec) {
  const at::Tensor& local = local_of(tensor);
  ASSERT_EQ(local.sizes(), at::IntArrayRef(spec->local_shape()));
  EXPECT_TRUE(at::equal(local, part_of(whole, *spec)));
}

// Every kind of source and target on every axis. On a mesh with two axes one pair in three is
// moved, on one with three axes one pair in 41.
void move_between_all_placements(const JoinedWorld& world) {
  const Lengths shape = {5, 9, 4};
  const at::Tensor whole = numbered_doubles(shape);
  const std::vector<Placement> kinds = {Shard(0), Shard(1), Shard(2), Replicate(), Partial()};
  for (const Lengths& mesh_shape : mesh_shapes(world.size)) {
    const ShardMesh::Ptr mesh = mesh_of_world(mesh_shape);
    const int every = mesh_shape.size() == 1 ? 1 : mesh_shape.size() == 2 ? 3 : 41;
    int pair = 0;
    for (const Lengths& source : all_coordinates(Lengths(mesh_shape.size(), 5))) {
      for (const Lengths& target : all_coordinates(Lengths(mesh_shape.size(), 4))) {
        if (++pair % every != 0) continue;
        Placements from;
        Placements to;
        for (size_t axis = 0; axis < mesh_shape.size(); ++axis) {
          from.push_back(kinds[static_cast<size_t>(source[axis])]);
          to.push_back(kinds[static_cast<size_t>(target[axis])]);
        }
        SCOPED_TRACE(fmt::format("mesh [{}]: {} to {}", fmt::join(mesh_shape, ", "),
                                 to_string(from), to_string(to)));
        const SpecPtr spec = make_spec(mesh, ShardLayout::split(mesh_shape, from, shape));
        const SpecPtr target_layout = make_spec(mesh, ShardLayout::split(mesh_shape, to, shape));
        const ShardTensor moved =
            ShardTensor(part_of(whole, *spec), spec).redistribute(std::nullopt, to);
        expect_part(moved, whole, moved.spec());
        EXPECT_EQ(moved.placements(), to);
        const at::Tensor there = redistribute_local(part_of(whole, *spec), spec, target_layout);
        EXPECT_TRUE(at::equal(there, part_of(whole, *target_layout)));
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

void move_between_drawn_layouts(const JoinedWorld& world) {
  Draw draw(20260701);
  std::vector<ShardMesh::Ptr> meshes;
  for (const Lengths& shape : mesh_shapes(world.size)) meshes.push_back(mesh_of_world(shape));
  for (int i = 0; i < 150; ++i) {
    const ShardMesh::Ptr& mesh = meshes[static_cast<size_t>(i) % meshes.size()];
    Lengths shape(static_cast<size_t>(draw.integer(1, 4)));
    for (int64_t& extent : shape) extent = draw.chance(0.05) ? 0 : draw.extent();
    const at::ScalarType dtype = draw.one_of<at::ScalarType>(
        {at::kDouble, at::kFloat, at::kHalf, at::kLong, at::kComplexFloat});
    const bool sums = dtype != at::kHalf;
    const at::Tensor whole = numbered_doubles(shape).remainder(31).to(dtype);
    const SpecPtr from = make_spec(mesh, draw_layout(draw, mesh->shape(), shape, sums, true));
    const SpecPtr to = make_spec(mesh, draw_layout(draw, mesh->shape(), shape, false, true));
    SCOPED_TRACE(fmt::format("draw {}: {} {} to {}", i, c10::toString(dtype), from->to_string(),
                             to->to_string()));
    const at::Tensor part = part_of(whole, *from).to(dtype);
    const at::Tensor kept = part.clone();
    c10::intrusive_ptr<c10d::Work> work;
    const at::Tensor moved = redistribute_local(part, from, to, &work);
    if (work) work->wait();
    EXPECT_TRUE(at::equal(moved, part_of(whole, *to)));
    EXPECT_TRUE(at::equal(part, kept)) << "the source has changed";
    if (testing::Test::HasFailure()) return;
  }
}

// The peers' vector 9: local shape (100, (r + 1) * 4 + 2r, 100).
void move_vector_nine(const JoinedWorld& world) {
  const ShardMesh::Ptr mesh = mesh_of_world({world.size});
  for (const bool last_is_empty : {false, true}) {
    int64_t columns = 0;
    Lengths sizes;
    for (int64_t r = 0; r < world.size; ++r) {
      const bool empty = last_is_empty && world.size > 1 && r + 1 == world.size;
      sizes.push_back(empty ? 0 : (r + 1) * 4 + 2 * r);
      columns += sizes.back();
    }
    const at::Tensor whole = at::arange(100 * columns * 100, at::kFloat).view({100, columns, 100});
    const SpecPtr spec = make_spec(
        mesh,
        ShardLayout::with_cuts({world.size}, {Shard(1)}, {{{}, {100}}, {{0}, sizes}, {{}, {100}}}));
    const at::Tensor part = part_of(whole, *spec);
    const ShardTensor x = ShardTensor::from_local(part, mesh->device_mesh(), Placements{Shard(1)});
    EXPECT_EQ(x.spec()->layout(), spec->layout());
    EXPECT_TRUE(at::equal(x.full_tensor(), whole));
    const ShardTensor rows = x.redistribute(std::nullopt, Placements{Shard(2)});
    expect_part(rows, whole, rows.spec());
    const ShardTensor other = rows.redistribute(std::nullopt, Placements{Shard(1)});
    expect_part(other, whole, other.spec());
    const at::Tensor again = redistribute_local(local_of(rows), rows.spec(), x.spec());
    EXPECT_TRUE(at::equal(again, part));
  }
  const ShardTensor summands(
      at::full({3, 2}, world.rank + 1.0),
      make_spec(mesh, ShardLayout::split({world.size}, {Partial()}, {3, 2})));
  EXPECT_TRUE(
      at::equal(summands.full_tensor(), at::full({3, 2}, world.size * (world.size + 1) / 2.0)));
}

void reduce_every_partial(const JoinedWorld& world) {
  const ShardMesh::Ptr mesh = mesh_of_world({world.size});
  const double n = world.size;
  double factorial = 1;
  for (int i = 2; i <= world.size; ++i) factorial *= i;
  const std::map<PartialOp, double> expected = {{PartialOp::kSum, n * (n + 1) / 2},
                                                {PartialOp::kAvg, (n + 1) / 2},
                                                {PartialOp::kProduct, factorial},
                                                {PartialOp::kMin, 1},
                                                {PartialOp::kMax, n}};
  for (const auto& [op, value] : expected) {
    SCOPED_TRACE(to_string(op));
    const ShardTensor x(at::full({5}, world.rank + 1.0),
                        make_spec(mesh, ShardLayout::split({world.size}, {Partial(op)}, {5})));
    EXPECT_TRUE(at::allclose(x.full_tensor(), at::full({5}, value)));
    const ShardTensor pieces = x.redistribute(std::nullopt, Placements{Shard(0)});
    EXPECT_TRUE(at::allclose(pieces.to_local(), at::full({pieces.spec()->local_shape()}, value)));
    const ShardTensor later = x.redistribute(std::nullopt, Placements{Shard(0)}, true);
    EXPECT_TRUE(at::equal(later.to_local(), pieces.to_local()));
  }
}

void send_gradients_back(const JoinedWorld& world) {
  const ShardMesh::Ptr mesh = mesh_of_world({world.size});
  const at::Tensor whole = numbered_doubles({7, 3});
  const at::Tensor weight = numbered_doubles({7, 3}) + 1;
  const SpecPtr spec = make_spec(mesh, ShardLayout::split({world.size}, {Shard(0)}, {7, 3}));
  const auto leaf = [&] { return ShardTensor(part_of(whole, *spec), spec, true); };
  for (const bool async : {false, true}) {
    ShardTensor x = leaf();
    const ShardTensor moved = x.redistribute(std::nullopt, Placements{Shard(1)}, async);
    at::mul(moved, at::Tensor(ShardTensor(part_of(weight, *moved.spec()), moved.spec())))
        .sum()
        .backward();
    ASSERT_TRUE(is_shard_tensor(x.grad()));
    EXPECT_EQ(spec_of(x.grad())->layout(), spec->layout());
    expect_part(x.grad(), weight, spec);
  }
  {
    ShardTensor x = leaf();  // every rank has the whole, and the same gradient of it
    (x.full_tensor() * weight).sum().backward();
    expect_part(x.grad(), weight, spec);
  }
  {
    ShardTensor x = leaf();  // every rank has a summand of it
    (x.full_tensor(Placements{Partial()}) * weight * (world.rank + 1)).sum().backward();
    expect_part(x.grad(), weight * (world.size * (world.size + 1) / 2.0), spec);
  }
  {
    const SpecPtr copies = replicated_spec(mesh, {7, 3});
    ShardTensor x(whole, copies, true);
    (x.to_local(Placements{Partial()}) * (world.rank + 1)).sum().backward();
    expect_part(x.grad(), at::full({7, 3}, world.size * (world.size + 1) / 2.0, at::kDouble),
                copies);
  }
  {
    const SpecPtr summands = make_spec(mesh, ShardLayout::split({world.size}, {Partial()}, {7, 3}));
    ShardTensor x(part_of(whole, *summands), summands, true);
    (x.full_tensor() * weight).sum().backward();
    EXPECT_EQ(spec_of(x.grad())->placements(), Placements{Replicate()});
    expect_part(x.grad(), weight, replicated_spec(mesh, {7, 3}));
  }
  EXPECT_NE(error_of([&] { leaf().to_local(Placements{Replicate()}); }).find("cut into"),
            std::string::npos);
}

// The ranks of a pair meet in the pair's group and in the world's, one rank in each order: whoever
// waited in redistribute() would wait for ever.
void go_on_meanwhile() {
  const ShardMesh::Ptr mesh = mesh_of_world({2, 2});
  const at::Tensor whole = numbered_doubles({6, 5});
  for (const Placements& target :
       {Placements{Shard(0), Replicate()}, Placements{Shard(0), Shard(0)}}) {
    const SpecPtr spec = make_spec(mesh, ShardLayout::split({2, 2}, {Shard(0), Shard(1)}, {6, 5}));
    const ShardTensor x(part_of(whole, *spec), spec);
    const auto meet = [] { all_gather_v(at::zeros({1})); };
    const bool first = mesh->coordinate()[1] == 0;
    if (!first) meet();
    const ShardTensor moved = x.redistribute(std::nullopt, target, true);
    const at::Tensor copy = moved.tensor_data();
    if (first) meet();
    expect_part(moved, whole, moved.spec());
    expect_part(copy, whole, moved.spec());
  }
}

void plan_once(const JoinedWorld& world) {
  const ShardMesh::Ptr mesh = mesh_of_world({world.size});
  const SpecPtr spec = make_spec(mesh, ShardLayout::split({world.size}, {Shard(0)}, {7, 3}));
  ShardTensor x(part_of(numbered_doubles({7, 3}), *spec), spec);
  const auto there_and_back = [&] {
    x = x.redistribute(std::nullopt, Placements{Shard(1)})
            .redistribute(std::nullopt, Placements{Shard(0)});
    x.full_tensor();
  };
  there_and_back();
  const int64_t made = RedistributionPlans::num_made();
  const SpecPtr there = x.redistribute(std::nullopt, Placements{Shard(1)}).spec();
  for (int i = 0; i < 20; ++i) there_and_back();
  EXPECT_EQ(RedistributionPlans::num_made(), made);
  EXPECT_EQ(x.spec(), spec) << "a spec was made anew";
  EXPECT_EQ(x.redistribute(std::nullopt, Placements{Shard(1)}).spec(), there);
}

// The layouts of an operator's results are worked out once for operands of a layout, and nothing
// that keeps them keeps the operands.
void derive_once(const JoinedWorld& world) {
  const ShardMesh::Ptr mesh = mesh_of_world({world.size});
  const auto spec_cut_by = [&](const Placement& placement, const Lengths& shape) {
    return make_spec(mesh, ShardLayout::split({world.size}, {placement}, shape));
  };
  SpecPtr rows = spec_cut_by(Shard(0), {7, 5});
  const at::Tensor whole = numbered_doubles({7, 5});
  const at::Tensor whole_weight = numbered_doubles({5, 3});
  ShardTensor x(part_of(whole, *rows), rows);
  const auto weight = [&](const Placement& placement) {
    const SpecPtr spec = spec_cut_by(placement, {5, 3});
    return ShardTensor(part_of(whole_weight, *spec), spec);
  };
  const auto product = [&](const ShardTensor& factor) {
    const ShardTensor result(at::mm(x, factor));
    EXPECT_TRUE(at::equal(result.full_tensor(), at::mm(whole, whole_weight)));
    return result.spec();
  };
  const auto total = [&] { return ShardTensor(at::sum(x, {0})).spec(); };
  // Alive by what is kept alone.
  const ShardTensorSpec* of_product = product(weight(Replicate())).get();
  const ShardTensorSpec* of_total = total().get();
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(product(weight(Replicate())).get(), of_product) << "a weight of the same layout";
    product(weight(Shard(0)));
    product(weight(Shard(1)));
    EXPECT_EQ(total().get(), of_total);
    EXPECT_EQ(ShardTensor(at::sum(x, {0}, true)).spec()->ndim(), 2);
    EXPECT_EQ(ShardTensor(at::sum(x, {1})).spec()->global_shape(), Lengths{7});
  }
  // More layouts than are kept.
  for (int64_t columns = 1; columns <= 100; ++columns) {
    const SpecPtr spec = replicated_spec(mesh, {5, columns});
    const at::Tensor other = numbered_doubles({5, columns});
    EXPECT_TRUE(at::equal(ShardTensor(at::mm(x, ShardTensor(other, spec))).full_tensor(),
                          at::mm(whole, other)));
  }
  EXPECT_EQ(product(weight(Replicate())), product(weight(Replicate())));

  c10::weak_intrusive_ptr<ShardTensorSpec> left(rows);
  {
    const ShardTensor flipped(at::t(x));
    const ShardTensor square(at::mm(flipped, x));
    at::mm(x, square);
    at::mm(square, flipped);
    at::mm(x, flipped);
  }
  x = weight(Replicate());
  rows.reset();
  EXPECT_TRUE(left.expired()) << "specs keep each other";
}

void disagree(const JoinedWorld& world) {
  const ShardMesh::Ptr mesh = mesh_of_world({world.size});
  const SpecPtr spec = make_spec(mesh, ShardLayout::split({world.size}, {Shard(0)}, {7, 3}));
  const ShardTensor x(part_of(numbered_doubles({7, 3}), *spec), spec);
  expect_error_on_all_ranks(
      [&] { x.redistribute(std::nullopt, Placements{world.rank == 0 ? Replicate() : Shard(1)}); },
      "redistribution of [7, 3]");
  // Placements of one kind, where one rank believes the pieces to have other sizes.
  Lengths sizes = spec->layout().cuts()[0].sizes;
  std::swap(sizes.front(), sizes.back());
  const SpecPtr other =
      make_spec(mesh, ShardLayout::with_cuts({world.size}, {Shard(0)}, {{{0}, sizes}, {{}, {3}}}));
  const ShardTensor again = x.redistribute(std::nullopt, Placements{Shard(1)});
  expect_error_on_all_ranks(
      [&] { redistribute_local(local_of(again), again.spec(), world.rank == 0 ? spec : other); },
      "redistribution of [7, 3]");
  EXPECT_TRUE(at::equal(x.full_tensor(), numbered_doubles({7, 3})))
      << "the group is of no use any more";
}

// While it lives: how many calls of the backend were made before each copy of this thread's.
class CallsBeforeCopies {
 public:
  explicit CallsBeforeCopies(NcclStandIn& backend) {
    backend_ = &backend;
    calls_ = 0;
    before_ = {};
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(&CallsBeforeCopies::start).scopes({at::RecordScope::FUNCTION}));
  }
  ~CallsBeforeCopies() { at::removeCallback(handle_); }
  CallsBeforeCopies(const CallsBeforeCopies&) = delete;
  CallsBeforeCopies& operator=(const CallsBeforeCopies&) = delete;

  std::vector<size_t> take() { return std::exchange(before_, {}); }

 private:
  static std::unique_ptr<at::ObserverContext> start(const at::RecordFunction& function) {
    if (std::string_view(function.name()) != "aten::copy_") return nullptr;
    calls_ += backend_->calls().size();
    before_.push_back(calls_);
    return nullptr;
  }

  at::CallbackHandle handle_ = 0;
  inline static NcclStandIn* backend_ = nullptr;
  inline static size_t calls_ = 0;
  inline static std::vector<size_t> before_;
};

// A Work of a GPU covers what is queued on the stream of the call before it, and whoever waits may
// do so on another stream.
void place_the_own_part_before_the_call(const JoinedWorld& world) {
  FakeStreams& streams = FakeStreams::install();
  const ShardMesh::Ptr mesh = mesh_of_world({2, 2});
  const auto backend = c10::make_intrusive<NcclStandIn>(world.rank, world.size);
  mesh->group()->setBackend(c10::DeviceType::Meta, c10d::ProcessGroup::MPI, backend);
  // A row to a column: one element stays, and three go at once, since two hops would move more.
  const SpecPtr from = make_spec(mesh, ShardLayout::split({2, 2}, {Shard(0), Shard(0)}, {4, 4}));
  const SpecPtr to = make_spec(mesh, ShardLayout::split({2, 2}, {Shard(1), Shard(1)}, {4, 4}));
  const at::Tensor part = at::empty(from->local_shape(), at::device(at::kMeta).dtype(at::kFloat));
  CallsBeforeCopies copies(*backend);
  c10::intrusive_ptr<c10d::Work> work;
  const at::Tensor moved = redistribute_local(part, from, to, &work);
  ASSERT_TRUE(work);
  EXPECT_EQ(copies.take(), std::vector<size_t>(3 + 1));
  EXPECT_EQ(backend->calls().size(), 6u);
  streams.use(5);
  work->wait();
  EXPECT_EQ(copies.take().size(), 3u);
  EXPECT_TRUE(streams.is_recorded(moved, 5));
}

void redistribute_all() {
  const JoinedWorld world;
  move_between_all_placements(world);
  move_between_drawn_layouts(world);
  move_vector_nine(world);
  reduce_every_partial(world);
  send_gradients_back(world);
  plan_once(world);
  derive_once(world);
  if (world.size == 4) go_on_meanwhile();
}

void disagree_on_redistribution() {
  const JoinedWorld world;
  disagree(world);
}

void redistribute_on_a_device() {
  const JoinedWorld world;
  place_the_own_part_before_the_call(world);
}

const bool kRegistered =
    register_rank_function("redistribute", redistribute_all) &&
    register_rank_function("disagree", disagree_on_redistribution) &&
    register_rank_function("redistribute_on_a_device", redistribute_on_a_device);

TEST(RedistributionTest, MovesThePartsAndTheirGradientsBitEqual) {
  run_in_worlds("redistribute", {1, 2, 3, 4}, {"ucx"});
  run_in_worlds("redistribute", {3}, {"gloo"});
}

TEST(RedistributionTest, OnADeviceWhatARankKeepsIsInPlaceBeforeTheCall) {
  run_in_worlds("redistribute_on_a_device", {4}, {"ucx"});
}

TEST(RedistributionTest, RanksThatDisagreeHearOfIt) { run_in_worlds("disagree", {3}, {"ucx"}); }

}  // namespace
}  // namespace meshrun
