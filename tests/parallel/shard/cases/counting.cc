#include <limits>
#include <optional>

#include "ATen/ATen.h"
#include "tests/parallel/shard/operator_cases.h"
#include "tests/parallel/shard/raising_call.h"

namespace meshrun {
namespace {

OperatorCase bincount_case(Draw& draw) {
  const int64_t count = draw.chance(0.1) ? 0 : draw.integer(1, 20);
  const at::Tensor values = draw.integers({count}, 0, draw.integer(0, 20))
                                .to(draw.one_of<at::ScalarType>({at::kLong, at::kInt, at::kByte}));
  const int64_t fewest = draw.chance(0.5) ? 0 : draw.integer(0, 30);
  const at::ScalarType type = draw.one_of<at::ScalarType>({at::kDouble, at::kFloat, at::kLong});
  OperatorCase drawn{
      "bincount", {(draw.normal({count}) * 4).to(type), values}, [=](const Tensors& t) {
        return Tensors{at::bincount(t[1], {}, fewest),
                       at::bincount(t[1], t[0].detach(), fewest),
                       raises([&] { at::bincount(t[1].to(at::kLong) - 1); }),
                       raises([&] { at::bincount(t[1], {}, -1); }),
                       raises([&] { at::bincount(t[1], t[0].narrow(0, 0, 1)); }),
                       raises([&] { at::bincount(t[1].unsqueeze(0)); }),
                       raises([&] { at::bincount(t[1].to(at::kDouble)); })};
      }};
  if (draw.chance(0.2)) drawn.plain = {0};
  return drawn;
}

// Numbers that stay on their side of an edge when they are sums of summands.
OperatorCase histc_case(Draw& draw) {
  std::vector<int64_t> shape(static_cast<size_t>(draw.integer(0, 3)));
  for (int64_t& extent : shape) extent = draw.chance(0.1) ? 0 : draw.extent();
  at::Tensor values = draw.integers(shape, -12, 12).to(draw.chance(0.7) ? at::kDouble : at::kFloat);
  values = values / 4;
  if (draw.chance(0.1)) values = at::full_like(values, 1.5);
  if (values.dim() > 0 && values.numel() > 0 && draw.chance(0.2)) {
    const double infinity = std::numeric_limits<double>::infinity();
    values.flatten()[0] = draw.one_of<double>({infinity, -infinity, std::nan("")});
  }
  const int64_t bins = draw.integer(1, 12);
  const double low = draw.one_of<double>({0, -1, -2.5});
  const double high = draw.one_of<double>({0, 1, 3});
  OperatorCase drawn{"histc", {values}, [=](const Tensors& t) {
                       const at::Tensor x = t[0].detach();
                       Tensors results = {at::histc(x, bins, -1, 2),
                                          raises([&] { at::histc(x, bins); }),
                                          raises([&] { at::histc(x, bins, 2, 1); }),
                                          raises([&] { at::histc(x, 0); }),
                                          raises([&] { at::histc(x.to(at::kLong), bins); })};
                       if (results[1].item<int64_t>() == 0) results.push_back(at::histc(x, bins));
                       if (low < high) results.push_back(at::histc(t[0], bins, low, high));
                       return results;
                     }};
  drawn.equality = Equality::kBits;
  return drawn;
}

const bool kRegistered = register_operator_cases("counting", [](Draw& draw) {
  return draw.chance(0.5) ? bincount_case(draw) : histc_case(draw);
});

}  // namespace
}  // namespace meshrun
