#include "parallel/shard/redistribute/redistribution_plans.h"

#include <atomic>
#include <mutex>
#include <utility>

#include "fmt/format.h"

namespace meshrun {
namespace {

using Step = RedistributionStep;
using WeakSpec = c10::weak_intrusive_ptr<ShardTensorSpec>;

std::atomic<int64_t> plans_made{0};

// The last kKept entries.
template <typename Entry>
void keep(std::vector<Entry>& entries, size_t& next, Entry entry) {
  if (entries.size() < RedistributionPlans::kKept) {
    entries.push_back(std::move(entry));
  } else {
    entries[next] = std::move(entry);
    next = (next + 1) % RedistributionPlans::kKept;
  }
}

PreparedStepPtr prepare(RedistributionStep step, const RedistributionPlan& plan, bool is_last,
                        const ShardMesh& mesh) {
  auto prepared = std::make_shared<PreparedStep>();
  const ShardMesh::Group& group =
      step.axis == Step::kWholeMesh ? mesh.group() : mesh.axis_group(step.axis);
  const PlannedCollective::Agreement agreement{plan.digest, plan.words};
  const PlannedCollective::Along sent{step.sent_dim, step.sent_sizes};
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
      prepared->collective = PlannedCollective::reduce_scatter(sent, group, agreement);
      break;
    case Step::Kind::kAllGather:
      prepared->collective = PlannedCollective::all_gather(sent, group, agreement);
      break;
    case Step::Kind::kAllToAll:
    case Step::Kind::kExchange:
      prepared->collective = PlannedCollective::all_to_all(
          sent, {step.received_dim, step.received_sizes}, group, agreement);
      break;
  }
  prepared->step = std::move(step);
  return prepared;
}

std::shared_ptr<RedistributionPlans::Prepared> prepare(const ShardTensorSpec& from,
                                                       const ShardTensorSpec& to) {
  ++plans_made;
  RedistributionPlan plan =
      plan_redistribution(from.layout(), to.layout(), from.mesh()->coordinate());
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

ShardLayout target_layout(const ShardTensorSpec& from, Placements placements) {
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

// A spec that was not made as a target keeps all targets that are reached from it alive, step by
// step; they know it and each other weakly. So a tensor that goes back and forth between two
// layouts has two specs, and no chain of them grows.
struct RedistributionPlans::State {
  struct Plan {
    ShardLayout to;
    std::shared_ptr<const Prepared> prepared;
  };
  struct Target {
    Placements placements;
    WeakSpec spec;
  };

  // The one of that layout among `root` and what it keeps; made where there is none.
  static SpecPtr among_kept(const SpecPtr& root, ShardLayout layout) {
    if (root->layout() == layout) return root;
    State& state = *RedistributionPlans::of(*root).state_;
    SpecPtr made;
    {
      const std::lock_guard lock(state.mutex);
      for (const SpecPtr& kept : state.kept) {
        if (kept->layout() == layout) return kept;
      }
      made = make_spec(root->mesh(), std::move(layout));
      RedistributionPlans::of(*made).state_->root = WeakSpec(root);
      keep(state.kept, state.next_kept, made);
    }
    return made;
  }

  std::mutex mutex;
  std::vector<Plan> plans;
  size_t next_plan = 0;
  std::vector<Target> targets;
  size_t next_target = 0;
  std::vector<SpecPtr> kept;
  size_t next_kept = 0;
  std::optional<WeakSpec> root;  // of a target
};

RedistributionPlans& RedistributionPlans::of(const ShardTensorSpec& spec) {
  return static_cast<RedistributionPlans&>(spec.plans(
      []() -> std::unique_ptr<SpecPlans> { return std::make_unique<RedistributionPlans>(); }));
}

RedistributionPlans::RedistributionPlans() : state_(std::make_unique<State>()) {}
RedistributionPlans::~RedistributionPlans() = default;

int64_t RedistributionPlans::num_made() { return plans_made; }

std::shared_ptr<const RedistributionPlans::Prepared> RedistributionPlans::to(
    const ShardTensorSpec& from, const ShardTensorSpec& to) {
  {
    const std::lock_guard lock(state_->mutex);
    for (const State::Plan& plan : state_->plans) {
      if (plan.to == to.layout()) return plan.prepared;
    }
  }
  std::shared_ptr<const Prepared> prepared = prepare(from, to);
  const std::lock_guard lock(state_->mutex);
  keep(state_->plans, state_->next_plan, State::Plan{to.layout(), prepared});
  return prepared;
}

SpecPtr RedistributionPlans::target(const SpecPtr& from, const Placements& placements) {
  SpecPtr root = from;
  {
    const std::lock_guard lock(state_->mutex);
    for (const State::Target& target : state_->targets) {
      if (target.placements != placements) continue;
      if (SpecPtr spec = target.spec.lock()) return spec;
    }
    if (state_->root) {
      if (SpecPtr known = state_->root->lock()) root = std::move(known);
    }
  }
  SpecPtr spec =
      State::among_kept(root, with_shard_errors([&] { return target_layout(*from, placements); }));
  const std::lock_guard lock(state_->mutex);
  keep(state_->targets, state_->next_target, State::Target{placements, WeakSpec(spec)});
  return spec;
}

}  // namespace meshrun
