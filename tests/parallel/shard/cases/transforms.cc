#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "tests/parallel/shard/operator_cases.h"

namespace meshrun {
namespace {

OperatorCase planes_and_volumes(Draw& draw) {
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
}

using Lengths = std::vector<int64_t>;

// Distinct dimensions in any order, as counted from the front or from the back.
Lengths drawn_dims(Draw& draw, int64_t ndim, int64_t count) {
  Lengths dims;
  while (static_cast<int64_t>(dims.size()) < count) {
    const int64_t dim = draw.integer(0, ndim - 1);
    if (std::find(dims.begin(), dims.end(), dim) == dims.end()) dims.push_back(dim);
  }
  for (int64_t& dim : dims) {
    if (draw.chance(0.3)) dim -= ndim;
  }
  return dims;
}

// Real and imaginary parts of a complex result.
at::Tensor parts(const at::Tensor& x) { return at::view_as_real(x.resolve_conj()); }

OperatorCase one_dimension(Draw& draw) {
  const int64_t ndim = draw.integer(1, 4);
  Lengths shape;
  for (int64_t i = 0; i < ndim; ++i) shape.push_back(draw.extent());
  const int64_t dim = drawn_dims(draw, ndim, 1)[0];
  std::optional<int64_t> n;
  if (draw.chance(0.5)) n = draw.extent();
  const auto norm = draw.one_of<std::string>({"backward", "ortho", "forward"});
  const auto op = draw.one_of<std::string>(
      {"fft", "fft of real", "ifft", "rfft", "rfft", "irfft", "irfft", "hfft", "ihfft"});
  // Half a spectrum of one number has no field.
  if ((op == "irfft" || op == "hfft") && !n) n = draw.extent();
  return OperatorCase{
      op + ", " + norm, {draw.normal(shape), draw.normal(shape)}, [=](const Tensors& t) {
        const at::Tensor x = at::complex(t[0], t[1]);
        if (op == "fft") return Tensors{parts(at::fft_fft(x.conj(), n, dim, norm))};
        if (op == "fft of real") return Tensors{parts(at::fft_fft(t[0], n, dim, norm))};
        if (op == "ifft") return Tensors{parts(at::fft_ifft(x, n, dim, norm))};
        if (op == "rfft") return Tensors{parts(at::fft_rfft(t[0], n, dim, norm))};
        if (op == "irfft") return Tensors{at::fft_irfft(x, n, dim, norm)};
        if (op == "hfft") return Tensors{at::fft_hfft(x, n, dim, norm)};
        return Tensors{parts(at::fft_ihfft(t[0], n, dim, norm))};
      }};
}

OperatorCase several_dimensions(Draw& draw) {
  const int64_t ndim = draw.integer(2, 4);
  Lengths shape;
  for (int64_t i = 0; i < ndim; ++i) shape.push_back(draw.integer(1, 6));
  const Lengths dims = drawn_dims(draw, ndim, draw.integer(1, ndim));
  Lengths s;
  for (size_t i = 0; i < dims.size(); ++i) s.push_back(draw.integer(1, 6));
  const bool given = draw.chance(0.5);
  const auto norm = draw.one_of<std::string>({"backward", "ortho", "forward"});
  const auto op = draw.one_of<std::string>(
      {"fftn", "fftn of real", "ifftn", "rfftn", "irfftn", "_fft_c2c twice"});
  return OperatorCase{
      op + ", " + norm, {draw.normal(shape), draw.normal(shape)}, [=](const Tensors& t) {
        const at::Tensor x = at::complex(t[0], t[1]);
        const at::OptionalIntArrayRef lengths =
            given || op == "irfftn" ? at::OptionalIntArrayRef(s) : std::nullopt;
        if (op == "fftn") return Tensors{parts(at::fft_fftn(x, lengths, dims, norm))};
        if (op == "fftn of real") return Tensors{parts(at::fft_fftn(t[0], lengths, dims, norm))};
        if (op == "ifftn") return Tensors{parts(at::fft_ifftn(x, lengths, dims, norm))};
        if (op == "rfftn") return Tensors{parts(at::fft_rfftn(t[0], lengths, dims, norm))};
        if (op == "irfftn") return Tensors{at::fft_irfftn(x, lengths, dims, norm)};
        const at::Tensor spectrum = at::fft_fftn(x, {}, dims, norm);
        return Tensors{parts(at::fft_ifftn(spectrum * spectrum, {}, dims, norm) + x)};
      }};
}

const bool kRegistered = register_operator_cases("transforms", [](Draw& draw) {
  const int64_t kind = draw.integer(0, 2);
  return kind == 0   ? planes_and_volumes(draw)
         : kind == 1 ? one_dimension(draw)
                     : several_dimensions(draw);
});

}  // namespace
}  // namespace meshrun
