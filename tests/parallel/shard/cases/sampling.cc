#include <limits>
#include <vector>

#include "ATen/ATen.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "tests/parallel/shard/operator_cases.h"

namespace meshrun {
namespace {

using Numbers = std::vector<int64_t>;

struct Sampled {
  int64_t dims = 2;
  int64_t mode = 0;
  int64_t padding = 0;
  bool align = false;
  bool composite = false;  // at::grid_sampler

  at::Tensor call(const at::Tensor& input, const at::Tensor& grid) const {
    if (composite) return at::grid_sampler(input, grid, mode, padding, align);
    return dims == 2 ? at::grid_sampler_2d(input, grid, mode, padding, align)
                     : at::grid_sampler_3d(input, grid, mode, padding, align);
  }
  std::string words() const {
    const char* const modes[] = {"bilinear", "nearest", "bicubic"};
    const char* const paddings[] = {"zeros", "border", "reflection"};
    return fmt::format("grid_sampler{} {} {}{}", composite ? "" : fmt::format("_{}d", dims),
                       modes[mode], paddings[padding], align ? " aligned" : "");
  }
};

Sampled draw_sampled(Draw& draw) {
  Sampled s;
  s.dims = draw.chance(0.65) ? 2 : 3;
  s.mode = draw.integer(0, s.dims == 2 ? 2 : 1);
  s.padding = draw.integer(0, 2);
  s.align = draw.chance(0.5);
  s.composite = draw.chance(0.3);
  return s;
}

OperatorCase draw_samples(Draw& draw) {
  const Sampled s = draw_sampled(draw);
  Numbers shape = {draw.chance(0.03) ? 0 : draw.integer(1, 3),
                   draw.chance(0.03) ? 0 : draw.integer(1, 3)};
  Numbers points = {shape[0]};
  const bool few = draw.chance(0.4);
  for (int64_t d = 0; d < s.dims; ++d) {
    shape.push_back(draw.extent());
    points.push_back(draw.chance(0.03) ? 0 : few ? draw.integer(1, 2) : draw.extent());
  }
  points.push_back(s.dims);
  const at::Tensor x = draw.normal(shape);
  at::Tensor grid = draw.normal(points) * draw.one_of<double>({0.5, 0.5, 1.5});
  OperatorCase drawn;
  drawn.name = fmt::format("{} of {} at {}", s.words(), shape, points);
  // Whole and half positions, where samples jump and gradients have sides.
  if (draw.chance(0.3)) {
    grid = (grid * 8).round() / 8;
    drawn.no_partial = true;
  } else if (draw.chance(0.4)) {
    // Near to where they are in the whole: the ranks' ranges overlap a little.
    at::Tensor near = at::empty(points, at::kDouble);
    for (int64_t d = 0; d < s.dims; ++d) {
      Numbers along(points.size() - 1, 1);
      const int64_t count = points[static_cast<size_t>(d) + 1];
      along[static_cast<size_t>(d) + 1] = count;
      near.select(-1, s.dims - 1 - d).copy_(at::linspace(-1, 1, count, at::kDouble).view(along));
    }
    grid = near + 0.1 * grid;
  } else if (draw.chance(0.1) && grid.numel() > 0) {
    const double beyond = draw.one_of<double>({std::numeric_limits<double>::quiet_NaN(),
                                               std::numeric_limits<double>::infinity(),
                                               -std::numeric_limits<double>::infinity()});
    grid.view(-1)[draw.integer(0, grid.numel() - 1)] = beyond;
    drawn.name += fmt::format(", one at {}", beyond);
    drawn.differentiable = false;
  }
  const bool in_float = draw.chance(0.2);
  drawn.inputs = {in_float ? x.to(at::kFloat) : x, in_float ? grid.to(at::kFloat) : grid};
  if (draw.chance(0.15)) drawn.plain = {static_cast<size_t>(draw.integer(0, 1))};
  drawn.call = [=](const Tensors& t) { return Tensors{s.call(t[0], t[1])}; };
  return drawn;
}

OperatorCase draw_affine(Draw& draw) {
  const int64_t dims = draw.integer(2, 3);
  Numbers size = {draw.chance(0.05) ? 0 : draw.integer(1, 4), draw.integer(1, 2)};
  for (int64_t d = 0; d < dims; ++d) size.push_back(draw.integer(1, 6));
  const bool align = draw.chance(0.5);
  const at::Tensor theta = draw.normal({size[0], dims, dims + 1});
  const std::string name = fmt::format("affine_grid of {}{}", size, align ? " aligned" : "");
  if (draw.chance(0.5)) {
    return {name, {draw.chance(0.3) ? theta.to(at::kFloat) : theta}, [=](const Tensors& t) {
              return Tensors{at::affine_grid_generator(t[0], size, align)};
            }};
  }
  Sampled s = draw_sampled(draw);
  s.dims = dims;
  s.mode = 0;
  Numbers shape = {size[0], size[1]};
  for (int64_t d = 0; d < dims; ++d) shape.push_back(draw.extent());
  return {name + ", " + s.words(), {theta, draw.normal(shape)}, [=](const Tensors& t) {
            return Tensors{s.call(t[1], at::affine_grid_generator(t[0], size, align))};
          }};
}

// Arguments that LibTorch refuses: one number where the call raises.
OperatorCase draw_wrong(Draw& draw) {
  const at::Tensor image = draw.normal({2, 2, 5, 4});
  const at::Tensor grid = draw.normal({2, 3, 3, 2});
  const at::Tensor theta = draw.normal({2, 2, 3});
  const Sampled s = {2, draw.integer(0, 2), draw.integer(0, 2), draw.chance(0.5), draw.chance(0.5)};
  using Call = std::function<at::Tensor(const Tensors&)>;
  const Call sample = [=](const Tensors& t) { return s.call(t[0], t[1]); };
  const auto affine = [](Numbers size) {
    return Call([=](const Tensors& t) { return at::affine_grid_generator(t[0], size, false); });
  };
  const std::vector<std::pair<Tensors, Call>> calls = {
      {{image, grid.narrow(0, 0, 1)}, sample},
      {{image, grid.narrow(3, 0, 1)}, sample},
      {{image, grid.unsqueeze(1)}, sample},
      {{image, grid.to(at::kFloat)}, sample},
      {{image.to(at::kLong), grid.to(at::kLong)}, sample},
      {{image.narrow(2, 0, 0), grid}, sample},
      {{image.select(1, 0), grid.select(1, 0)}, sample},
      {{theta}, affine({3, 1, 4, 4})},
      {{theta}, affine({2, 4, 4})},
      {{theta}, affine({2, 1, 2, 4, 4})},
  };
  const int64_t which = draw.integer(0, static_cast<int64_t>(calls.size()) - 1);
  const auto& [operands, call] = calls[static_cast<size_t>(which)];
  return {fmt::format("wrong {} {}", s.words(), which), operands, [call = call](const Tensors& t) {
            try {
              return Tensors{call(t)};
            } catch (const c10::Error&) {
              return Tensors{at::zeros({1})};
            }
          }};
}

const bool kRegistered = register_operator_cases("sampling", [](Draw& draw) {
  if (draw.chance(0.05)) return draw_wrong(draw);
  return draw.chance(0.75) ? draw_samples(draw) : draw_affine(draw);
});

}  // namespace
}  // namespace meshrun
