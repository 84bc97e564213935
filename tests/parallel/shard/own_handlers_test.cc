// Handlers that a program registers itself; docs/shard_tensor.md shows them.
#include <gtest/gtest.h>

#include <numeric>

#include "ATen/ATen.h"
#include "parallel/manager/distributed_manager.h"
#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/shard_tensor.h"
#include "tests/parallel/collectives/worlds.h"
#include "tests/parallel/support/rank_processes.h"
#include "torch/library.h"

namespace meshrun {
namespace {

// [operator handler]
// In which interval each value lies. No rank needs its neighbours' values, and there is no
// gradient: the result has the layout of the values.
at::Tensor sharded_bucketize(const at::Tensor& values, const at::Tensor& boundaries, bool out_int32,
                             bool right) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const SpecPtr spec = without_partial(spec_of(values));  // summands are added up first
  const at::Tensor local = redistribute_local(local_of(values), spec_of(values), spec);
  return wrap(at::bucketize(local, boundaries, out_int32, right), spec);
}

const bool kBucketize = [] {
  ShardTensor::register_dispatch_handler("aten::bucketize.Tensor", &sharded_bucketize);
  return true;
}();
// [/operator handler]

// [library]
// An operator of one's own: the mean over latitude (dimension -2), weighted by area.
at::Tensor area_mean(const at::Tensor& field, const at::Tensor& weights) {
  return (field * weights.unsqueeze(-1)).sum(-2) / weights.sum();
}

TORCH_LIBRARY(weather, m) {
  m.def("area_mean(Tensor field, Tensor weights) -> Tensor");
  m.impl("area_mean", torch::dispatch(c10::DispatchKey::CompositeImplicitAutograd, &area_mean));
}
// [/library]

// [function handler]
// On a field whose latitudes are cut: each rank adds up its own, and the result is Partial along
// the axes that cut them. LibTorch records what happens between to_local() and from_local().
at::Tensor sharded_area_mean(const at::Tensor& field, const at::Tensor& weights) {
  const SpecPtr spec = without_partial(spec_of(field));
  const int64_t latitude = field.dim() - 2;
  const int64_t begin = spec->box().offsets[static_cast<size_t>(latitude)];
  const at::Tensor own =
      weights.narrow(0, begin, spec->local_shape()[static_cast<size_t>(latitude)]);
  const at::Tensor local = to_local(redistribute(field, spec));
  const at::Tensor sum = (local * own.unsqueeze(-1)).sum(latitude) / weights.sum();
  Placements placements = spec->placements();
  std::vector<DimCut> cuts = spec->layout().cuts();
  cuts.erase(cuts.begin() + latitude);
  for (Placement& placement : placements) {
    if (placement.is_shard(latitude)) {
      placement = Partial();
    } else if (placement.is_shard() && placement.dim() > latitude) {
      placement = Shard(placement.dim() - 1);
    }
  }
  return from_local(sum, make_spec(spec->mesh(), ShardLayout::with_cuts(spec->mesh()->shape(),
                                                                        placements, cuts)));
}

const bool kAreaMean = [] {
  ShardTensor::register_named_function_handler("weather::area_mean", &sharded_area_mean);
  return true;
}();
// [/function handler]

// [call]
at::Tensor call_area_mean(const at::Tensor& field, const at::Tensor& weights) {
  static auto area_mean_operator = c10::Dispatcher::singleton()
                                       .findSchemaOrThrow("weather::area_mean", "")
                                       .typed<at::Tensor(const at::Tensor&, const at::Tensor&)>();
  return area_mean_operator.call(field, weights);
}
// [/call]

ShardTensor sharded(const at::Tensor& whole, const ShardMesh::Ptr& mesh,
                    const Placements& placements, bool requires_grad = false) {
  const SpecPtr from = replicated_spec(mesh, whole.sizes());
  const SpecPtr to = target_spec(from, placements);
  return ShardTensor(redistribute_local(whole, from, to).clone(), to, requires_grad);
}

void run() {
  const JoinedWorld world;
  const ShardMesh::Ptr mesh =
      ShardMesh::of(world.manager.initialize_mesh({world.size}, {"domain"}));
  at::manual_seed(1);
  const at::Tensor values = at::randn({3, 7, 5}, at::kDouble);
  const at::Tensor boundaries = at::tensor({-1.0, 0.0, 0.5}, at::kDouble);
  const at::Tensor weights = at::rand({7}, at::kDouble);
  for (const Placements& placements :
       {Placements{Shard(1)}, {Shard(0)}, {Shard(2)}, {Replicate()}}) {
    const ShardTensor x = sharded(values, mesh, placements, true);
    EXPECT_TRUE(at::equal(ShardTensor(at::bucketize(x.detach(), boundaries)).full_tensor(),
                          at::bucketize(values, boundaries)))
        << to_string(placements);

    const at::Tensor whole = values.clone().requires_grad_();
    const at::Tensor expected = call_area_mean(whole, weights);
    const at::Tensor mean = call_area_mean(x, weights);
    EXPECT_TRUE(at::allclose(ShardTensor(mean).full_tensor(), expected, 1e-12))
        << to_string(placements);
    expected.sum().backward();
    mean.sum().backward();
    EXPECT_TRUE(at::allclose(ShardTensor(x.grad()).full_tensor(), whole.grad(), 1e-12))
        << to_string(placements);
  }
}

const bool kRegistered = register_rank_function("own_handlers", run);

TEST(OwnHandlersTest, OperatorAndFunctionHandlersOfAProgramAreUsed) {
  for (const int ranks : {1, 2, 3}) {
    expect_success(run_ranks("own_handlers", env_ranks(ranks)));
  }
}

}  // namespace
}  // namespace meshrun
