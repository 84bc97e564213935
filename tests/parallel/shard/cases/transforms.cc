#include "ATen/ATen.h"
#include "tests/parallel/shard/operator_cases.h"

namespace meshrun {
namespace {

const bool kRegistered = register_operator_cases("transforms", [](Draw& draw) {
  const at::Tensor x =
      draw.normal({draw.integer(1, 3), draw.extent(), draw.extent(), draw.extent()});
  const auto norm = draw.one_of<std::string>({"backward", "ortho", "forward"});
  const std::vector<int64_t> dims = draw.one_of<std::vector<int64_t>>({{-2, -1}, {1, 3}, {3, 1}});
  const bool volume = draw.chance(0.3);
  return OperatorCase{"rfft, " + norm, {x}, [=](const Tensors& inputs) {
                        const at::Tensor& x = inputs[0];
                        const std::vector<int64_t> s = {x.size(dims[0]), x.size(dims[1])};
                        if (volume) {
                          const std::vector<int64_t> all = {x.size(1), x.size(2), x.size(3)};
                          const at::Tensor y = at::fft_rfftn(x, {}, {{1, 2, 3}}, norm);
                          return Tensors{at::fft_irfftn(y * 2, all, {{1, 2, 3}}, norm)};
                        }
                        const at::Tensor y = at::fft_rfft2(x, {}, dims, norm);
                        return Tensors{at::fft_irfft2(y * y.conj(), s, dims, norm),
                                       at::fft_irfft2(y, s, dims, norm)};
                      }};
});

}  // namespace
}  // namespace meshrun
