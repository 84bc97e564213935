#include "parallel/fft/distributed_fftn.h"

#include <array>
#include <utility>

#include "ATen/ops/fft_fft.h"
#include "ATen/ops/fft_ifft.h"
#include "ATen/ops/fft_irfft.h"
#include "ATen/ops/fft_rfft.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "parallel/base/extents.h"
#include "parallel/base/split.h"
#include "parallel/collectives/call/autograd_node.h"
#include "parallel/collectives/plans/transpose_plan.h"
#include "parallel/fft/fft_arguments.h"
#include "parallel/fft/wave_numbers.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun {
namespace {

using fft::all_waves;
using fft::Direction;
using fft::low_waves;
using Sizes = std::vector<int64_t>;

// A call's geometry: the tensor is [..., d0, d1, d2] by then.
struct Slabs {
  std::array<int64_t, 3> s{};
  // Pieces of the field along d1, and of the spectrum along d0.
  Sizes columns;
  Sizes rows;
  std::optional<std::array<int64_t, 3>> modes;
  std::string norm;
};

// A transform of LibTorch's along `dim`; of a piece without elements, which its CPU library
// refuses, nothing, with the node that the other ranks' backward passes wait for.
template <typename Transform>
at::Tensor along(const at::Tensor& x, int64_t dim, int64_t extent, at::ScalarType result,
                 const Transform& transform) {
  if (x.numel() > 0) return transform();
  Sizes shape = x.sizes().vec();
  shape[static_cast<size_t>(dim)] = extent;
  return connected_zeros(x, shape).to(result);
}

at::Tensor complex_forward(const at::Tensor& x, int64_t dim, int64_t n, const std::string& norm) {
  return along(x, dim, n, x.scalar_type(), [&] { return at::fft_fft(x, n, dim, norm); });
}

at::Tensor complex_inverse(const at::Tensor& x, int64_t dim, int64_t n, const std::string& norm) {
  return along(x, dim, n, x.scalar_type(), [&] { return at::fft_ifft(x, n, dim, norm); });
}

// Transforms a field [N, d0, d1, d2] whose d1 is in pieces.
at::Tensor forward(const at::Tensor& field, const Slabs& slabs, const TransposePlan& plan) {
  const int64_t own =
      fft::sizes_within(slabs.columns, slabs.s[1])[static_cast<size_t>(plan.rank())];
  const at::Tensor kept = field.narrow(2, 0, own);
  at::Tensor planes = along(kept, 3, slabs.s[2] / 2 + 1, c10::toComplexType(field.scalar_type()),
                            [&] { return at::fft_rfft(kept, slabs.s[2], 3, slabs.norm); });
  if (slabs.modes) planes = planes.narrow(3, 0, (*slabs.modes)[2]);
  planes = complex_forward(planes, 1, slabs.s[0], slabs.norm);
  if (slabs.modes) planes = low_waves(planes, 1, (*slabs.modes)[0]);
  planes = complex_forward(plan.to_dim0(planes.contiguous()), 2, slabs.s[1], slabs.norm);
  if (slabs.modes) planes = low_waves(planes, 2, (*slabs.modes)[1]);
  return planes;
}

at::Tensor inverse(const at::Tensor& spectrum, const Slabs& slabs, const TransposePlan& plan) {
  at::Tensor planes = slabs.modes ? all_waves(spectrum, 2, slabs.s[1]) : spectrum;
  planes = complex_inverse(planes, 2, slabs.s[1], slabs.norm);
  planes = plan.to_dim1(planes.contiguous());
  if (slabs.modes) planes = all_waves(planes, 1, slabs.s[0]);
  planes = complex_inverse(planes, 1, slabs.s[0], slabs.norm);
  return along(planes, 3, slabs.s[2], c10::toRealValueType(planes.scalar_type()),
               [&] { return at::fft_irfft(planes, slabs.s[2], 3, slabs.norm); });
}

// What can be said without the other ranks.
std::string check(const at::Tensor& input, const FftOptions& options, Direction direction) {
  if (std::string problem = fft::check_call(input, options, direction, 3); !problem.empty()) {
    return problem;
  }
  if (options.layout != FftLayout::kCanonical) return "slabs have the layout kCanonical alone";
  if (!options.modes.empty() && options.modes.size() != 3) {
    return fmt::format("modes has {} elements; 3 are needed, or none", options.modes.size());
  }
  for (const IntArgument& mode : options.modes) {
    if (mode < 1) return fmt::format("modes holds {}", static_cast<int64_t>(mode));
  }
  if (!options.modes.empty() && direction == Direction::kInverse && options.s.size() != 3) {
    return "irfftn of modes needs s, the extents of the field";
  }
  return {};
}

at::Tensor transform(const at::Tensor& input, const FftOptions& options, Direction direction) {
  const bool is_forward = direction == Direction::kForward;
  const GroupArgument::Handle group = options.group.get();
  const int world = group->getSize();
  const auto rank = static_cast<size_t>(group->getRank());
  std::string problem = check(input, options, direction);
  std::optional<fft::Planes> flat;
  if (problem.empty()) flat.emplace(input, options.dim);
  const int64_t own = flat ? flat->tensor.size(is_forward ? 2 : 1) : 0;
  const Sizes in = options.input_sizes ? *options.input_sizes
                                       : gather_extents(own, problem, options.group, input);
  if (problem.empty()) problem = fft::check_input_sizes(in, own, static_cast<int>(rank), world);
  if (!problem.empty()) fft::refuse(problem, options.group, world);

  Slabs slabs;
  slabs.norm = options.norm;
  const int64_t cut = total_extent(in);
  const at::Tensor& x = flat->tensor;
  slabs.s = is_forward ? std::array<int64_t, 3>{x.size(1), cut, x.size(3)}
                       : std::array<int64_t, 3>{cut, x.size(2), 2 * (x.size(3) - 1)};
  for (size_t i = 0; i < 3; ++i) {
    if (options.s.size() == 3 && options.s[i]) slabs.s[i] = *options.s[i];
    if (slabs.s[i] < 1) problem = "a transform needs at least one element along each dimension";
  }
  std::array<int64_t, 3> kept = {slabs.s[0], slabs.s[1], slabs.s[2] / 2 + 1};
  if (!options.modes.empty()) {
    slabs.modes = {options.modes[0], options.modes[1], options.modes[2]};
    const auto& modes = *slabs.modes;
    if (2 * modes[0] > kept[0] || 2 * modes[1] > kept[1] || modes[2] > kept[2]) {
      problem = fmt::format("modes are [{}, {}, {}]; there are at most [{}, {}, {}]", modes[0],
                            modes[1], modes[2], kept[0] / 2, kept[1] / 2, kept[2]);
    }
    kept = {2 * modes[0], 2 * modes[1], modes[2]};
    if (!is_forward && problem.empty() &&
        (cut != kept[0] || x.size(2) != kept[1] || x.size(3) != kept[2])) {
      problem = fmt::format("the spectrum is {} x {} x {}, and modes say {} x {} x {}", cut,
                            x.size(2), x.size(3), kept[0], kept[1], kept[2]);
    }
  }
  Sizes out = fft::output_sizes(options, is_forward ? kept[0] : slabs.s[1], world, problem);
  if (!problem.empty()) fft::refuse(problem, options.group, world);
  slabs.columns = is_forward ? in : std::move(out);
  slabs.rows = is_forward ? std::move(out) : in;
  std::string agreed =
      fmt::format("{} to {} x {} x {}", fft::call_words(options, direction, input.dim()),
                  slabs.s[0], slabs.s[1], slabs.s[2]);
  if (slabs.modes) agreed += fmt::format(", modes [{}]", fmt::join(*slabs.modes, ", "));
  const TransposePlan plan(1, slabs.rows, 2, fft::sizes_within(slabs.columns, slabs.s[1]),
                           options.group, agreed);
  return flat->restored(is_forward ? forward(x, slabs, plan) : inverse(x, slabs, plan));
}

}  // namespace

at::Tensor distributed_rfftn(const at::Tensor& input, const FftOptions& options) {
  return transform(input, options, Direction::kForward);
}

at::Tensor distributed_irfftn(const at::Tensor& input, const FftOptions& options) {
  return transform(input, options, Direction::kInverse);
}

}  // namespace meshrun
