#include "ATen/ATen.h"
#include "tests/parallel/shard/operator_cases.h"

namespace meshrun {
namespace {

const bool kRegistered = register_operator_cases("reductions", [](Draw& draw) {
  const at::Tensor x = draw.normal({draw.extent(), draw.extent(), draw.extent()});
  const bool keepdim = draw.chance(0.5);
  const std::vector<int64_t> dims =
      draw.one_of<std::vector<int64_t>>({{0}, {1}, {2}, {0, 1}, {-1, 0}, {0, 1, 2}});
  return OperatorCase{"sum", {x}, [=](const Tensors& inputs) {
                        return Tensors{at::sum(inputs[0], dims, keepdim), at::sum(inputs[0])};
                      }};
});

}  // namespace
}  // namespace meshrun
