#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "tests/parallel/shard/operator_cases.h"
#include "tests/parallel/shard/raising_call.h"

namespace meshrun {
namespace {

using Numbers = std::vector<int64_t>;
using Factors = std::optional<at::ArrayRef<double>>;
using Size = at::OptionalIntArrayRef;

// The Lanczos filter has no header before LibTorch 2.12.
const char kLanczos[] = "aten::_upsample_lanczos2d_aa";

bool has_lanczos() { return c10::Dispatcher::singleton().findSchema({kLanczos, ""}).has_value(); }

at::Tensor lanczos(const at::Tensor& x, Size size, bool align, Factors factors) {
  at::OptionalSymIntArrayRef extents;
  if (size) extents = c10::fromIntArrayRefSlow(*size);
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow(kLanczos, "vec")
      .typed<at::Tensor(const at::Tensor&, at::OptionalSymIntArrayRef, bool, Factors)>()
      .call(x, extents, align, factors);
}

at::Tensor interpolate(const std::string& mode, const at::Tensor& x, Size size, bool align,
                       Factors factors) {
  const int64_t dims = x.dim() - 2;
  if (mode == "bicubic") return at::upsample_bicubic2d(x, size, align, factors);
  if (mode == "antialiased linear") return at::_upsample_bilinear2d_aa(x, size, align, factors);
  if (mode == "antialiased bicubic") return at::_upsample_bicubic2d_aa(x, size, align, factors);
  if (mode == "antialiased lanczos") return lanczos(x, size, align, factors);
  if (mode == "linear") {
    return dims == 1   ? at::upsample_linear1d(x, size, align, factors)
           : dims == 2 ? at::upsample_bilinear2d(x, size, align, factors)
                       : at::upsample_trilinear3d(x, size, align, factors);
  }
  if (mode == "nearest") {
    return dims == 1   ? at::upsample_nearest1d(x, size, factors)
           : dims == 2 ? at::upsample_nearest2d(x, size, factors)
                       : at::upsample_nearest3d(x, size, factors);
  }
  return dims == 1   ? at::_upsample_nearest_exact1d(x, size, factors)
         : dims == 2 ? at::_upsample_nearest_exact2d(x, size, factors)
                     : at::_upsample_nearest_exact3d(x, size, factors);
}

// Into a tensor like `like`, which is written.
void interpolate_into(const at::Tensor& like, const std::string& mode, const at::Tensor& x,
                      const Numbers& size, bool align) {
  at::Tensor out = like;
  const bool is_image = x.dim() == 4;
  if (mode == "bicubic") {
    at::upsample_bicubic2d_out(out, x, size, align);
  } else if (mode == "antialiased linear") {
    at::_upsample_bilinear2d_aa_out(out, x, size, align);
  } else if (mode == "antialiased bicubic") {
    at::_upsample_bicubic2d_aa_out(out, x, size, align);
  } else if (mode == "linear" && is_image) {
    at::upsample_bilinear2d_out(out, x, size, align);
  } else if (mode == "nearest" && is_image) {
    at::upsample_nearest2d_out(out, x, size);
  } else if (mode == "nearest-exact" && x.dim() == 3) {
    at::_upsample_nearest_exact1d_out(out, x, size);
  } else {
    out.fill_(1);
  }
}

bool is_of_images_alone(const std::string& mode) {
  return mode == "bicubic" || mode.starts_with("antialiased");
}

// Bytes that LibTorch itself interpolates.
at::Tensor draw_bytes(Draw& draw, const Numbers& shape) {
  return draw.integers(shape, 0, 255).to(at::kByte);
}

// A result's extent for which no position is rounded. Else the CPU for which LibTorch's kernel was
// compiled decides which neighbours have a weight of zero, and which ones a very small one.
int64_t exact_extent(Draw& draw, int64_t extent, bool align) {
  const int64_t steps = align ? extent - 1 : extent;
  std::vector<int64_t> all = {steps, 2 * steps, 4 * steps};
  if (steps % 2 == 0) all.push_back(steps / 2);
  if (steps % 4 == 0) all.push_back(steps / 4);
  return draw.one_of(all) + (align ? 1 : 0);
}

void put_infinity(Draw& draw, const at::Tensor& x) {
  const double infinity = std::numeric_limits<double>::infinity();
  const int64_t many = draw.integer(1, 2);
  for (int64_t i = 0; i < many; ++i) {
    x.view(-1)[draw.integer(0, x.numel() - 1)] =
        draw.one_of<double>({infinity, -infinity, std::nan("")});
  }
}

// Arguments that LibTorch refuses.
OperatorCase draw_wrong(Draw& draw, const std::string& mode) {
  const bool is_image = is_of_images_alone(mode);
  const at::Tensor x = draw.normal({draw.integer(0, 3), 2, 4, 5});
  return {"wrong " + mode, {x}, [=](const Tensors& t) {
            const auto call = [&](const at::Tensor& y, Numbers size) {
              return raises([&] { interpolate(mode, y, size, false, {}); });
            };
            return Tensors{call(t[0], {0, 3}),
                           call(t[0], {3}),
                           call(t[0].select(1, 0), {3, 3}),
                           call(t[0].narrow(1, 0, 0), {3, 3}),
                           call(t[0].narrow(2, 0, 0), {3, 3}),
                           call(t[0].detach().to(at::kInt), {3, 3}),
                           call(t[0].detach().to(at::kComplexDouble), {3, 3}),
                           call(t[0].detach().to(at::kHalf), {3, 3}),
                           call(t[0].detach().to(at::kHalf), {4, 5}),
                           is_image ? call(t[0].unsqueeze(4), {3, 3, 3}) : at::zeros({})};
          }};
}

const bool kRegistered = register_operator_cases("interpolation", [](Draw& draw) {
  std::vector<std::string> modes = {"nearest",
                                    "nearest-exact",
                                    "linear",
                                    "linear",
                                    "bicubic",
                                    "antialiased linear",
                                    "antialiased bicubic"};
  if (has_lanczos()) modes.emplace_back("antialiased lanczos");
  const std::string mode = draw.one_of(modes);
  if (draw.chance(0.04)) return draw_wrong(draw, mode);
  const int64_t dims = is_of_images_alone(mode) ? 2 : draw.integer(1, 3);
  const bool align = draw.chance(0.5);
  // LibTorch has sums of bytes for images alone, and wrong ones for a result of one column.
  const bool is_bytes = (dims == 2 || mode.starts_with("nearest")) && draw.chance(0.15);
  const bool has_infinity = !is_bytes && draw.chance(0.25);
  Numbers shape = {draw.integer(1, 3), is_bytes ? draw.integer(1, 6) : draw.integer(1, 3)};
  Numbers size;
  std::vector<double> factors;
  for (int64_t d = 0; d < dims; ++d) {
    shape.push_back(dims < 3 && draw.chance(0.2) ? draw.integer(1, 30) : draw.extent());
    size.push_back(has_infinity        ? exact_extent(draw, shape.back(), align)
                   : draw.chance(0.15) ? shape.back()
                                       : draw.integer(1, 14));
    const double factor =
        has_infinity ? draw.one_of<double>({2, 4, 1, 0.5, 0.25})
                     : draw.one_of<double>({2, 2, 3, 1, 0.5, 1.5, 2.7, 0.7, 1.3, 2.1, 1.05});
    factors.push_back(static_cast<double>(shape.back()) * factor < 1 ? 1.0 : factor);
  }
  if (is_bytes) {
    shape.back() += 1;
    size.back() += 1;
    factors.back() = std::max(factors.back(), 1.0);
  }
  const bool scales = draw.chance(has_infinity && align ? 0 : 0.5);
  at::Tensor x = is_bytes ? draw_bytes(draw, shape) : draw.normal(shape);
  if (has_infinity) put_infinity(draw, x);
  if (!is_bytes && draw.chance(0.3)) x = x.to(at::kFloat);
  std::string name = scales ? fmt::format("{} by {} of {}", mode, factors, shape)
                            : fmt::format("{} to {} of {}", mode, size, shape);
  if (align) name += ", aligned";
  if (has_infinity) name += ", not finite";
  return OperatorCase{
      name, {x}, [=](const Tensors& inputs) {
        Tensors results = {interpolate(mode, inputs[0], scales ? Size() : Size(size), align,
                                       scales ? Factors(factors) : Factors())};
        if (!scales) {
          results.push_back(at::zeros_like(results[0].detach()));
          interpolate_into(results[1], mode, inputs[0].detach(), size, align);
        }
        return results;
      }};
});

}  // namespace
}  // namespace meshrun
