// Moves a local tensor from one layout to another: what every rank lacks, and nothing else.
//
//   Partial to anything     the reduction along that axis first
//   from there              each rank gets the part of its new box that it does not hold, from the
//                           rank that holds it and shares its other coordinates
//
// All ranks of the mesh call it with the same two specs, in the same order. Internal to
// parallel/shard, without autograd: ShardTensor::redistribute is the public form.
// Errors: ShardTensorError (another mesh or global shape; a Partial target that is not one already),
// and those of the collectives.
#pragma once

#include <cstdint>
#include <memory>

#include "ATen/core/Tensor.h"
#include "c10/util/intrusive_ptr.h"
#include "parallel/shard/shard_tensor_spec.h"
#include "torch/csrc/distributed/c10d/Work.hpp"

namespace meshrun {

// What a spec keeps about redistributions that start there. Threads: any.
class RedistributionPlans {
 public:
  RedistributionPlans();
  ~RedistributionPlans();

 private:
  friend at::Tensor redistribute_local(const at::Tensor&, const SpecPtr&, const SpecPtr&,
                                       c10::intrusive_ptr<c10d::Work>*);
  struct State;
  std::unique_ptr<State> state_;
};

// May return `local` itself, or a view of it. `work`: where a transfer is left that goes on; null:
// it is waited for.
at::Tensor redistribute_local(const at::Tensor& local, const SpecPtr& from, const SpecPtr& to,
                              c10::intrusive_ptr<c10d::Work>* work = nullptr);

// The layout of `from` with other placements: dimensions that stay cut by the same axes keep their
// pieces, others are cut by the split rule. Raises ShardTensorError: a Partial that `from` has not,
// a dim out of range, placements whose number is not the mesh's.
SpecPtr target_spec(const SpecPtr& from, Placements placements);

}  // namespace meshrun
