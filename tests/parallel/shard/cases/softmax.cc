#include "ATen/ATen.h"
#include "tests/parallel/shard/operator_cases.h"

namespace meshrun {
namespace {

const bool kRegistered = register_operator_cases("softmax", [](Draw& draw) {
  at::Tensor x = draw.normal({draw.extent(), draw.extent(), draw.extent()}) * 4;
  if (draw.chance(0.2)) x = x.to(at::kFloat);
  if (draw.chance(0.2)) x = x.masked_fill(x > 3, -std::numeric_limits<double>::infinity());
  const int64_t dim = draw.integer(-3, 2);
  OperatorCase drawn{"softmax, log_softmax", {x}, [=](const Tensors& t) {
                       return Tensors{at::softmax(t[0], dim), at::log_softmax(t[0], dim),
                                      at::softmax(t[0].detach(), dim, at::kFloat)};
                     }};
  // -inf - inf in the summands.
  drawn.no_partial = true;
  // LibTorch itself has NaNs in the gradients of log_softmax(-inf).
  drawn.differentiable = x.isfinite().all().item<bool>();
  return drawn;
});

}  // namespace
}  // namespace meshrun
