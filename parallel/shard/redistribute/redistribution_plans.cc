#include "parallel/shard/redistribute/redistribution_plans.h"

#include <atomic>
#include <map>
#include <mutex>
#include <utility>

#include "fmt/format.h"

namespace meshrun {
namespace {

using Step = RedistributionStep;

std::atomic<int64_t> plans_made{0};

Cut cut_of(int64_t dim, const std::vector<int64_t>& sizes) {
  return {dim, Extents(sizes.begin(), sizes.end())};
}

PreparedStepPtr prepare(RedistributionStep step, const RedistributionPlan& plan, bool is_last,
                        const ShardMesh& mesh) {
  auto prepared = std::make_shared<PreparedStep>();
  const ShardMesh::Group& group =
      step.axis == Step::kWholeMesh ? mesh.group() : mesh.axis_group(step.axis);
  const auto planned = [&](CollectiveSpec spec) {
    spec.agreed = plan.digest;
    spec.say([words = plan.words] { return words; });
    prepared->collective.emplace(std::move(spec), group);
  };
  switch (step.is_on_wire ? step.kind : Step::Kind::kSlice) {
    case Step::Kind::kSlice:
      break;
    case Step::Kind::kAllReduce:
      prepared->group = group;
      // Its own header says the rest.
      if (!is_last) {
        prepared->agreed = plan.digest;
        prepared->words = plan.words;
      }
      break;
    case Step::Kind::kReduceScatter:
      planned(CollectiveSpec::reduce_scatter_v(step.sent_sizes, step.sent_dim));
      break;
    case Step::Kind::kAllGather:
      planned(CollectiveSpec::all_gather_v(step.sent_sizes, step.sent_dim));
      break;
    case Step::Kind::kAllToAll:
    case Step::Kind::kExchange:
      planned(CollectiveSpec::all_to_all_v(cut_of(step.sent_dim, step.sent_sizes),
                                           cut_of(step.received_dim, step.received_sizes)));
      break;
  }
  prepared->step = std::move(step);
  return prepared;
}

std::shared_ptr<RedistributionPlans::Prepared> prepare(const ShardTensorSpec& from,
                                                       const ShardTensorSpec& to) {
  ++plans_made;
  const RedistributionPlan plan = redistribution_plan(from, to);
  auto prepared = std::make_shared<RedistributionPlans::Prepared>();
  prepared->may_go_on = plan.steps.size();
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    const RedistributionStep& step = plan.steps[i];
    if (step.is_on_wire) prepared->may_go_on = i;
    if (!step.is_on_wire && step.kind != Step::Kind::kSlice) {
      prepared->may_go_on = plan.steps.size();
    }
    prepared->steps.push_back(
        prepare(plan.steps[i], plan, i + 1 == plan.steps.size(), *from.mesh()));
  }
  return prepared;
}

// On a mesh of the same ranks: number of the rank in `to` that is number i of `from`.
std::vector<int64_t> numbers_in(const DeviceMesh& to, const DeviceMesh& from) {
  check_same_ranks(from, to);
  std::map<int, int64_t> by_rank;
  for (const int rank : to.ranks()) by_rank.emplace(rank, static_cast<int64_t>(by_rank.size()));
  std::vector<int64_t> numbers;
  for (const int rank : from.ranks()) numbers.push_back(by_rank.at(rank));
  return numbers;
}

// What target_spec() says.
ShardLayout target_layout(const ShardTensorSpec& from, const ShardMesh& mesh,
                          Placements placements) {
  if (&mesh != from.mesh().get()) {
    for (const Placement& placement : placements) {
      if (!placement.is_partial()) continue;
      throw ShardLayoutError(
          fmt::format("{} cannot be redistributed to {} on another mesh: a target is Shard or "
                      "Replicate on every axis",
                      to_string(from.placements()), to_string(placements)));
    }
    return ShardLayout::split(mesh.shape(), std::move(placements), from.global_shape());
  }
  const ShardLayout& layout = from.layout();
  placements = normalized(std::move(placements), layout.ndim());
  if (placements.size() != layout.placements().size()) {
    throw ShardLayoutError(fmt::format(
        "placements {} are {}, and the mesh {} has {} axes", to_string(placements),
        placements.size(), from.mesh()->device_mesh().to_string(), layout.placements().size()));
  }
  for (size_t axis = 0; axis < placements.size(); ++axis) {
    if (placements[axis].is_partial() && placements[axis] != layout.placements()[axis]) {
      throw ShardLayoutError(fmt::format(
          "{} cannot be redistributed to {}: a target is Shard or Replicate on every axis",
          to_string(layout.placements()), to_string(placements)));
    }
  }
  const ShardLayout fresh =
      ShardLayout::split(layout.mesh_shape(), placements, layout.global_shape());
  std::vector<DimCut> cuts = fresh.cuts();
  for (size_t dim = 0; dim < cuts.size(); ++dim) {
    if (cuts[dim].axes == layout.cuts()[dim].axes) cuts[dim] = layout.cuts()[dim];
  }
  return ShardLayout::with_cuts(layout.mesh_shape(), std::move(placements), std::move(cuts));
}

}  // namespace

RedistributionPlan redistribution_plan(const ShardTensorSpec& from, const ShardTensorSpec& to) {
  const std::vector<int64_t>& coordinate = from.mesh()->coordinate();
  if (from.mesh() == to.mesh()) return plan_redistribution(from.layout(), to.layout(), coordinate);
  return plan_mesh_change(from.layout(), to.layout(),
                          numbers_in(to.mesh()->device_mesh(), from.mesh()->device_mesh()),
                          coordinate);
}

struct RedistributionPlans::State {
  struct Plan {
    ShardMesh::Ptr mesh;
    ShardLayout to;
    std::shared_ptr<const Prepared> prepared;
  };
  struct Target {
    ShardMesh::Ptr mesh;
    Placements placements;
    WeakSpec spec;
  };

  std::mutex mutex;
  LastEntries<Plan> plans{kKept};
  LastEntries<Target> targets{kKept};
};

RedistributionPlans& RedistributionPlans::of(const ShardTensorSpec& spec) {
  return static_cast<RedistributionPlans&>(
      spec.plans([]() -> std::unique_ptr<SpecPlans> { return std::make_unique<SpecFamily>(); }));
}

RedistributionPlans::RedistributionPlans() : state_(std::make_unique<State>()) {}
RedistributionPlans::~RedistributionPlans() = default;

int64_t RedistributionPlans::num_made() { return plans_made; }

std::shared_ptr<const RedistributionPlans::Prepared> RedistributionPlans::to(
    const ShardTensorSpec& from, const ShardTensorSpec& to) {
  {
    const std::lock_guard lock(state_->mutex);
    for (const State::Plan& plan : state_->plans) {
      if (plan.mesh == to.mesh() && plan.to == to.layout()) return plan.prepared;
    }
  }
  std::shared_ptr<const Prepared> prepared = prepare(from, to);
  const std::lock_guard lock(state_->mutex);
  state_->plans.add({to.mesh(), to.layout(), prepared});
  return prepared;
}

SpecPtr RedistributionPlans::target(const SpecPtr& from, const ShardMesh::Ptr& mesh,
                                    const Placements& placements) {
  {
    const std::lock_guard lock(state_->mutex);
    for (const State::Target& target : state_->targets) {
      if (target.mesh != mesh || target.placements != placements) continue;
      if (SpecPtr spec = target.spec.lock()) return spec;
    }
  }
  SpecPtr spec = SpecFamily::relative(
      from, mesh, with_shard_errors([&] { return target_layout(*from, *mesh, placements); }),
      SpecFamily::By::kRedistribution);
  const std::lock_guard lock(state_->mutex);
  state_->targets.add({mesh, placements, WeakSpec(spec)});
  return spec;
}

}  // namespace meshrun
