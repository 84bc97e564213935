// Moves a local tensor from one layout to another: what every rank lacks, and nothing else
// (redistribution_plan.h).
//
// All ranks of the mesh call it with the same two specs, in the same order. Internal to
// parallel/shard, without autograd: ShardTensor::redistribute is the public form.
// Errors: ShardTensorError (a mesh of other ranks, another global shape; a Partial target that is
// not one already), and those of the collectives: CollectiveMismatchError on every rank where ranks
// of one group disagree on the layouts, CollectiveDeadlockError where they wait in different
// groups.
#pragma once

#include <cstdint>
#include <memory>

#include "ATen/core/Tensor.h"
#include "c10/util/intrusive_ptr.h"
#include "parallel/shard/redistribute/redistribution_plan.h"
#include "parallel/shard/tensor/shard_tensor_spec.h"
#include "torch/csrc/distributed/c10d/Work.hpp"

namespace meshrun {

// What a spec keeps about redistributions that start there: the last kKept plans with their groups,
// and the specs of the last kKept targets. Threads: any.
class RedistributionPlans : public SpecPlans {
 public:
  static constexpr size_t kKept = 16;
  struct Prepared;  // a plan, and its collectives

  // Those that `spec` keeps.
  static RedistributionPlans& of(const ShardTensorSpec& spec);

  RedistributionPlans();
  ~RedistributionPlans() override;

  std::shared_ptr<const Prepared> to(const ShardTensorSpec& from, const ShardTensorSpec& to);
  // What target_spec() returns.
  SpecPtr target(const SpecPtr& from, const ShardMesh::Ptr& mesh, const Placements& placements);

  // Plans made in this process.
  static int64_t num_made();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// May return `local` itself, or a view of it. `*work` gets the last transfer that is still under
// way (null: none is); the result is whole after its wait(). If `work` is null, the call waits.
at::Tensor redistribute_local(const at::Tensor& local, const SpecPtr& from, const SpecPtr& to,
                              c10::intrusive_ptr<c10d::Work>* work = nullptr);

// The layout of `from` with other placements: dimensions that stay cut by the same axes keep their
// pieces, others are cut by the split rule. Raises ShardTensorError: a Partial that `from` does not
// have, a dim out of range, another number of placements than the mesh has axes.
SpecPtr target_spec(const SpecPtr& from, const Placements& placements);
// The same on `mesh`, which has the same ranks. On another mesh than `from`'s the split rule cuts
// all dimensions.
SpecPtr target_spec(const SpecPtr& from, const ShardMesh::Ptr& mesh, const Placements& placements);

// Raises ShardTensorError, with the ranks of both, where they are not the same ones. Their order is
// of no account.
void check_same_ranks(const DeviceMesh& from, const DeviceMesh& to);

// The steps from one layout to the other, as this rank takes them.
RedistributionPlan redistribution_plan(const ShardTensorSpec& from, const ShardTensorSpec& to);

// Spec of the gradient of a tensor with `spec`: a Partial becomes Replicate, since every summand
// has the gradient of the sum.
SpecPtr gradient_spec(const SpecPtr& spec);

}  // namespace meshrun
