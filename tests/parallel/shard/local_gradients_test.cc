// from_local(grad_placements): the layout in which the gradients of local tensors come back.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "fmt/format.h"
#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/shard_tensor.h"
#include "tests/parallel/collectives/worlds.h"
#include "tests/parallel/shard/drawn_layouts.h"
#include "tests/parallel/support/rank_processes.h"
#include "torch/csrc/autograd/autograd.h"

namespace meshrun {
namespace {

struct Case {
  Placement values;
  Placement gradients;
  // Local gradient: its share of the tensor's gradient, on the first rank and on the others.
  double first;
  double others;
};

// The tensor's gradient, and the local ones that rank should have.
void check(const JoinedWorld& world, const Case& given) {
  SCOPED_TRACE(
      fmt::format("{}, gradients {}", to_string(given.values), to_string(given.gradients)));
  const ShardMesh::Ptr mesh = mesh_of_world({world.size});
  const at::Tensor whole = at::arange(12, at::kDouble).view({4, 3});
  const SpecPtr spec = make_spec(mesh, ShardLayout::split({world.size}, {given.values}, {4, 3}));
  at::Tensor local = (given.values.is_shard() ? part_of(whole, *spec) : whole.clone());
  local.requires_grad_();
  const ShardTensor x =
      ShardTensor::from_local(local, mesh->device_mesh(), Placements{given.values},
                              ShardingShapes::infer(), std::nullopt, Placements{given.gradients});
  const at::Tensor weight = at::arange(12, at::kDouble).view({4, 3}) + 1;
  // Quadratic, so that the gradient has a derivative.
  const at::Tensor loss = (at::pow(at::Tensor(x), 2) * weight).sum() / 2;
  const at::Tensor gradient = torch::autograd::grad({loss}, {local}, {}, true, true)[0];
  const at::Tensor values = ShardTensor(x.detach()).full_tensor();
  const at::Tensor expected = values * weight;
  const double share = world.rank == 0 ? given.first : given.others;
  const at::Tensor own = given.values.is_shard() ? part_of(expected, *spec) : expected * share;
  EXPECT_TRUE(at::allclose(gradient, own, 1e-13, 1e-13));
  EXPECT_TRUE(gradient.requires_grad());
  // The derivative of the summed local gradients: also all ranks' business.
  const at::Tensor second = torch::autograd::grad({gradient.sum()}, {local})[0];
  EXPECT_EQ(second.sizes(), local.sizes());
}

void give_gradients() {
  const JoinedWorld world;
  const double n = world.size;
  const Placement mean = Partial(PartialOp::kAvg);
  const std::vector<Case> cases = {
      {Shard(0), Shard(0), 1, 1},        {Shard(1), Shard(-1), 1, 1},
      {Replicate(), Replicate(), 1, 1},  {Replicate(), Partial(), 1, 0},
      {Partial(), Replicate(), 1, 1},    {Partial(), Partial(), 1, 0},
      {mean, Replicate(), 1 / n, 1 / n}, {mean, Partial(), 1, 0},
  };
  for (const Case& given : cases) check(world, given);
}

// The second derivative of a loss that each rank computes from a share of the gradient.
void differentiate_summands_twice() {
  const JoinedWorld world;
  const ShardMesh::Ptr mesh = mesh_of_world({world.size});
  at::Tensor w = at::full({3}, 2.0, at::kDouble).requires_grad_();
  const ShardTensor x =
      ShardTensor::from_local(w, mesh->device_mesh(), Placements{Replicate()},
                              ShardingShapes::infer(), std::nullopt, Placements{Partial()});
  const at::Tensor gradient =
      torch::autograd::grad({at::pow(at::Tensor(x), 3).sum()}, {w}, {}, true, true)[0];
  // Summed over the ranks: 3 w^2 and 6 w.
  const double first = world.rank == 0 ? 12 : 0;
  EXPECT_TRUE(at::allclose(gradient, at::full({3}, first, at::kDouble)));
  const at::Tensor second = torch::autograd::grad({gradient.sum()}, {w})[0];
  at::Tensor sum = second.clone();
  std::vector<at::Tensor> tensors = {sum};
  mesh->group()->allreduce(tensors)->wait();
  EXPECT_TRUE(at::allclose(sum, at::full({3}, 12.0, at::kDouble)));
}

void refuse_other_cuts() {
  const JoinedWorld world;
  const DeviceMesh mesh = mesh_of_world({world.size})->device_mesh();
  const auto from = [&](const Placements& values, const Placements& gradients,
                        const ShardingShapes& shapes = ShardingShapes::infer()) {
    return ShardTensor::from_local(at::ones({2, 3}).requires_grad_(), mesh, values, shapes,
                                   std::nullopt, gradients);
  };
  const auto refuses = [&](const Placements& values, const Placements& gradients,
                           const std::string& part) {
    expect_error_on_all_ranks([&] { from(values, gradients); }, part);
  };
  refuses({Shard(0)}, {Replicate()}, "cut into");
  refuses({Shard(0)}, {Shard(1)}, "");
  refuses({Replicate()}, {Shard(0)}, "");
  refuses({Shard(0)}, {Partial()}, "cut into");
  refuses({Replicate()}, {Partial(PartialOp::kMax)}, "not linear");
  refuses({Replicate()}, {Replicate(), Replicate()}, "");
  refuses({Replicate()}, {Shard(2)}, "out of range");
  refuses({Replicate()}, {world.rank == 0 ? Replicate() : Partial()}, "gradients [Partial(sum)]");
}

const bool kRegistered =
    register_rank_function("give gradients", give_gradients) &&
    register_rank_function("differentiate summands twice", differentiate_summands_twice) &&
    register_rank_function("refuse other cuts", refuse_other_cuts);

TEST(LocalGradientsTest, ComeInThePlacementsAskedFor) {
  run_in_worlds("give gradients", {1, 2, 3, 4}, {"ucx"});
  run_in_worlds("differentiate summands twice", {1, 2, 3}, {"ucx"});
}

TEST(LocalGradientsTest, PlacementsThatCutOtherwiseAreOneErrorOnAllRanks) {
  run_in_worlds("refuse other cuts", {2}, {"ucx"});
}

}  // namespace
}  // namespace meshrun
