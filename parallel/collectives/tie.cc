#include "parallel/collectives/tie.h"

#include "ATen/TensorOperators.h"
#include "c10/util/Exception.h"
#include "parallel/collectives/call/autograd_node.h"

namespace meshrun {

at::Tensor tie(const at::Tensor& loss, const at::Tensor& y) {
  TORCH_CHECK_VALUE(loss.defined() && y.defined(), "tie: ", loss.defined() ? "y" : "the loss",
                    " is undefined");
  TORCH_CHECK_VALUE(loss.is_floating_point() || loss.is_complex(), "tie: the loss is of dtype ",
                    loss.dtype(), "; one that has a gradient is expected");
  if (!wants_gradient(y)) return loss;
  // A function of a tensor without elements: its value is an empty sum. exp, whose derivatives of
  // all orders depend on its argument, so that the cotangent leads to y again.
  const at::Tensor nothing = connected_zeros(y, {0});
  return loss + nothing.to(loss.options()).exp().sum();
}

}  // namespace meshrun
