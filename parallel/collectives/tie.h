// Lets a rank whose loss does not use a collective's result take part in its backward pass.
//
// The backward of a collective runs on all ranks of its group or on none. If only some ranks'
// losses depend on `y`, the other ranks return tie(loss, y): a loss of the same value, whose graph
// leads through y's node with a zero cotangent.
//
//   at::Tensor y = gather_v(x, sizes, 0, 0);
//   at::Tensor loss = rank == 0 ? y.square().sum() : tie(at::zeros({}), y);
//
// The other ranks would wait for one that forgets it. If it calls the backward of another node
// meanwhile, that is an error on all ranks of a group on ucx (comm/interface/node_number.h).
//
// y's values are never read, so NaN and infinity do no harm, and y's memory is not kept.
// Differentiable again, to any order: the zero cotangent itself leads to y.
//
// Shapes: `loss` any, floating point or complex; the result has its shape and dtype. `y` any;
// if it has no gradient the result is `loss`.
// Threads: any. Errors: c10::ValueError where a tensor is undefined, here alone.
#pragma once

#include "ATen/core/Tensor.h"

namespace meshrun {

at::Tensor tie(const at::Tensor& loss, const at::Tensor& y);

}  // namespace meshrun
