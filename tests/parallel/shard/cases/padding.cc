#include "ATen/ATen.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "tests/parallel/shard/operator_cases.h"

namespace meshrun {
namespace {

const bool kRegistered = register_operator_cases("padding", [](Draw& draw) {
  const std::string mode =
      draw.one_of<std::string>({"constant", "constant", "reflect", "replicate", "circular"});
  const int64_t dims = draw.integer(1, 3);
  std::vector<int64_t> shape = {draw.integer(1, 3), draw.integer(1, 3)};
  for (int64_t d = 0; d < dims; ++d) shape.push_back(draw.extent());
  std::vector<int64_t> pad;
  for (int64_t i = 0; i < dims; ++i) {
    const int64_t extent = shape[shape.size() - 1 - static_cast<size_t>(i)];
    const int64_t most = mode == "reflect"    ? extent - 1
                         : mode == "circular" ? extent
                                              : draw.integer(0, 4);
    pad.push_back(draw.integer(0, most));
    pad.push_back(draw.integer(0, most));
    // Negative ones cut off; LibTorch's circular mode then leaves elements unwritten.
    if (extent > 2 && mode != "circular" && draw.chance(0.2))
      pad.back() = -draw.integer(0, extent - 1);
  }
  const at::Tensor x = draw.normal(shape);
  const std::optional<double> value =
      mode == "constant" && draw.chance(0.7) ? std::optional(1.5) : std::nullopt;
  return OperatorCase{
      fmt::format("pad {} {} of {}", mode, pad, shape),
      {x},
      [=](const Tensors& inputs) { return Tensors{at::pad(inputs[0], pad, mode, value)}; },
      Equality::kBits};
});

}  // namespace
}  // namespace meshrun
