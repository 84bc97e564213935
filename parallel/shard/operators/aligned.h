// Operands of an elementwise computation as local tensors of one layout, and results that are
// summed over all of it: what handlers above autograd share. Internal to parallel/shard/operators.
//
// Threads and order: all ranks of the mesh call alike.
#pragma once

#include <initializer_list>
#include <vector>

#include "ATen/core/Tensor.h"
#include "parallel/shard/dispatch/local_map.h"

namespace meshrun {

struct Aligned {
  SpecPtr spec;                    // of the result, without Partial
  std::vector<at::Tensor> locals;  // undefined where the operand is
};

// Operands broadcast; undefined ones stay so, plain ones count as Replicate. Autograd follows, and
// sums the gradient of what was broadcast.
Aligned align(const char* operation, std::initializer_list<const at::Tensor*> operands);

// The layout of a sum over all elements of such a tensor: Partial where that is cut.
SpecPtr sum_spec(const SpecPtr& spec);
// Adds up over the axes that cut `dims` (reduced alike: max). In place, without autograd.
void all_reduce_over(const SpecPtr& spec, const std::vector<int64_t>& dims,
                     const at::Tensor& tensor, PartialOp op);

// Without one dimension, which is whole; with a whole one of this extent before dimension `dim`.
SpecPtr drop_dim(const SpecPtr& spec, int64_t dim);
SpecPtr insert_dim(const SpecPtr& spec, int64_t dim, int64_t extent);

}  // namespace meshrun
