// The part of a global tensor that a rank fills with random numbers.
#pragma once

#include <optional>

#include "ATen/core/Generator.h"
#include "ATen/core/Tensor.h"
#include "parallel/base/traced_calls.h"
#include "parallel/shard/random/counter_random.h"
#include "parallel/shard/tensor/shard_tensor_spec.h"

namespace meshrun {

// This rank's box of a tensor of layout `spec`. The box refers to `spec`, which must outlive it.
inline RandomBox box_of(const SpecPtr& spec) { return {spec->global_shape(), spec->box().offsets}; }

// What a Fill writes: this rank's part, its box, and the operation.
//
// Draws the numbers of one operation into `local`, of layout `spec`; in a program that is traced
// each time that the program runs. `fill` owns what it needs.
template <typename Fill>
void draw(const at::Tensor& local, const SpecPtr& spec,
          const std::optional<at::Generator>& generator, const Fill& fill) {
  if (!is_traced(local)) {
    fill(local, box_of(spec), next_random_operation(generator));
    return;
  }
  // Without the spec, which holds the process groups of its mesh.
  trace_call(local, {},
             [shape = spec->global_shape(), offsets = spec->box().offsets, generator, fill](
                 const at::Tensor& to, const at::Tensor&) {
               fill(to, RandomBox{shape, offsets}, next_random_operation(generator));
             });
}

}  // namespace meshrun
