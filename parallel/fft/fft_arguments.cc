#include "parallel/fft/fft_arguments.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "parallel/base/errors.h"
#include "parallel/base/extents.h"
#include "parallel/base/split.h"
#include "parallel/collectives/plans/transpose_plan.h"
#include "parallel/manager/distributed_manager.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun::fft {
namespace {

using Sizes = std::vector<int64_t>;

std::string check_dims(const at::Tensor& input, const std::vector<IntArgument>& dims) {
  std::vector<int64_t> seen;
  for (const IntArgument& dim : dims) {
    const int64_t front = dim < 0 ? dim + input.dim() : static_cast<int64_t>(dim);
    if (front < 0 || front >= input.dim()) {
      return fmt::format("dim {} is out of range for {} dimensions", static_cast<int64_t>(dim),
                         input.dim());
    }
    if (std::find(seen.begin(), seen.end(), front) != seen.end()) {
      return fmt::format("dim names dimension {} twice", front);
    }
    seen.push_back(front);
  }
  return {};
}

std::string check_modes(const FftOptions& options, bool is_forward) {
  if (options.modes.empty()) return {};
  if (options.modes.size() != 2 || options.modes[0] < 1 || options.modes[1] < 1) {
    return fmt::format("modes has {} elements; 2 positive ones are needed, or none",
                       options.modes.size());
  }
  if (options.layout != FftLayout::kPaired) return "modes need the layout kPaired";
  if (!is_forward && (options.s.size() != 2 || !options.s[0] || !options.s[1])) {
    return "irfft2 of modes needs s, both extents of the field";
  }
  return {};
}

// Whether ranks of the group are on several hosts, or nobody knows.
bool spans_hosts(const GroupArgument::Handle& group) {
  if (!DistributedManager::is_initialized()) return true;
  const DistributedManager& manager = DistributedManager::get();
  const std::vector<int> nodes = manager.node_ranks();
  std::vector<int> ranks;
  try {
    ranks = manager.group_ranks(manager.group_name(group));
  } catch (const UndefinedGroupError&) {
    return std::any_of(nodes.begin(), nodes.end(), [&](int node) { return node != nodes[0]; });
  }
  const auto node_of = [&](int rank) { return nodes[static_cast<size_t>(rank)]; };
  return std::any_of(ranks.begin(), ranks.end(),
                     [&](int rank) { return node_of(rank) != node_of(ranks[0]); });
}

// All that the ranks must have alike beside the pieces.
std::string words_of(const FftShape& shape, const FftOptions& options, Direction direction,
                     int64_t ndim) {
  return fmt::format(
      "{} of {} rows to {} x {}{}{}{}, {} columns", call_words(options, direction, ndim),
      int64_t{shape.field_height}, int64_t{shape.height}, int64_t{shape.width},
      shape.layout == Layout::kPaired ? ", paired" : "", shape.both_signs ? ", of both signs" : "",
      shape.fewest_bytes ? ", with the fewest bytes" : "", int64_t{shape.spectrum_columns});
}

int64_t extent_or(const FftOptions& options, size_t index, int64_t otherwise) {
  if (options.s.size() != 2 || !options.s[index]) return otherwise;
  return *options.s[index];
}

}  // namespace

std::string call_words(const FftOptions& options, Direction direction, int64_t ndim) {
  // From the end, whatever lies before the dims.
  std::vector<int64_t> dims;
  for (const int64_t dim : options.dim) dims.push_back(dim < 0 ? dim : dim - ndim);
  return fmt::format("{} along dim [{}], norm \"{}\",",
                     direction == Direction::kForward ? "a transform" : "an inverse transform",
                     fmt::join(dims, ", "), options.norm);
}

std::string check_call(const at::Tensor& input, const FftOptions& options, Direction direction,
                       size_t dims) {
  if (!input.defined()) return "the tensor is undefined";
  if (options.dim.size() != dims) {
    return fmt::format("dim has {} elements; a {}-dimensional transform needs {}",
                       options.dim.size(), dims, dims);
  }
  if (!options.s.empty() && options.s.size() != dims) {
    return fmt::format("s has {} elements; a {}-dimensional transform needs {} or none",
                       options.s.size(), dims, dims);
  }
  for (const auto& extent : options.s) {
    if (extent && *extent < 1) {
      return fmt::format("s holds {}; an extent is 1 or more", static_cast<int64_t>(*extent));
    }
  }
  if (!scale_of(options.norm, direction)) {
    return fmt::format("norm is \"{}\"; there are \"backward\", \"ortho\" and \"forward\"",
                       options.norm);
  }
  const at::ScalarType dtype = input.scalar_type();
  const bool is_forward = direction == Direction::kForward;
  const bool fits = is_forward ? dtype == at::kFloat || dtype == at::kDouble
                               : dtype == at::kComplexFloat || dtype == at::kComplexDouble;
  if (!fits) {
    return fmt::format("{}rfft{} takes {}, not {}", is_forward ? "" : "i", dims == 2 ? "2" : "n",
                       is_forward ? "float32 or float64" : "complex64 or complex128",
                       c10::toString(dtype));
  }
  return check_dims(input, options.dim);
}

std::optional<Scale> scale_of(const std::string& norm, Direction direction) {
  if (norm == "ortho") return Scale::kRoot;
  if (norm == "backward") return direction == Direction::kForward ? Scale::kNone : Scale::kFull;
  if (norm == "forward") return direction == Direction::kForward ? Scale::kFull : Scale::kNone;
  return std::nullopt;
}

Sizes output_sizes(const FftOptions& options, int64_t extent, int world, std::string& problem) {
  if (!options.output_sizes) return compute_split_shapes(extent, world);
  const Sizes& sizes = *options.output_sizes;
  bool fits = static_cast<int>(sizes.size()) == world && total_extent(sizes) == extent;
  for (const int64_t size : sizes) fits = fits && size >= 0;
  if (!fits && problem.empty()) {
    problem = fmt::format("output_sizes is [{}]; {} pieces that sum to {} are needed",
                          fmt::join(sizes, ", "), world, extent);
  }
  return fits ? sizes : compute_split_shapes(extent, world);
}

std::string check_input_sizes(const Sizes& sizes, int64_t own, int rank, int world) {
  bool fits = static_cast<int>(sizes.size()) == world;
  for (const int64_t size : sizes) fits = fits && size >= 0;
  if (fits && sizes[static_cast<size_t>(rank)] == own) return {};
  return fmt::format("input_sizes is [{}]; {} pieces are needed, and rank {} has {}",
                     fmt::join(sizes, ", "), world, rank, own);
}

Planes::Planes(const at::Tensor& input, const std::vector<IntArgument>& dims) {
  const auto num_dims = static_cast<int64_t>(dims.size());
  for (int64_t i = 0; i < num_dims; ++i) {
    from_.push_back(dims[static_cast<size_t>(i)]);
    to_.push_back(i - num_dims);
  }
  const at::Tensor moved = input.movedim(from_, to_);
  shape_ = moved.sizes().vec();
  const auto first = shape_.end() - num_dims;
  Sizes flat = {std::accumulate(shape_.begin(), first, int64_t{1}, std::multiplies())};
  flat.insert(flat.end(), first, shape_.end());
  tensor = moved.reshape(flat);
}

at::Tensor Planes::restored(const at::Tensor& transformed) const {
  Sizes shape = shape_;
  std::copy(transformed.sizes().begin() + 1, transformed.sizes().end(),
            shape.end() - static_cast<int64_t>(to_.size()));
  return transformed.reshape(shape).movedim(to_, from_);
}

Arguments read_arguments(const at::Tensor& input, const FftOptions& options, Direction direction) {
  Arguments arguments;
  arguments.direction = direction;
  arguments.problem = check_call(input, options, direction, 2);
  if (arguments.problem.empty()) {
    arguments.problem = check_modes(options, direction == Direction::kForward);
  }
  if (!arguments.problem.empty()) return arguments;
  const auto front = [&](int64_t dim) { return dim < 0 ? dim + input.dim() : dim; };
  arguments.dim0 = front(options.dim[0]);
  arguments.dim1 = front(options.dim[1]);
  arguments.scale = *scale_of(options.norm, direction);
  return arguments;
}

void refuse(const std::string& problem, const GroupArgument& group, int world) {
  // A plan of nothing.
  const Sizes ones(static_cast<size_t>(world), 1);
  TransposePlan(1, ones, 2, ones, group).refuse(problem);
}

std::shared_ptr<const FftPlan> make_plan(const at::Tensor& input, const FftOptions& options,
                                         const Arguments& arguments) {
  const GroupArgument::Handle group = options.group.get();
  const int rank = group->getRank();
  const int world = group->getSize();
  const bool is_forward = arguments.direction == Direction::kForward;
  std::string problem = arguments.problem;
  const bool known = problem.empty();
  const int64_t rows = known ? input.size(arguments.dim0) : 0;
  const int64_t columns = known ? input.size(arguments.dim1) : 0;
  const Sizes in = options.input_sizes
                       ? *options.input_sizes
                       : gather_extents(is_forward ? columns : rows, problem, options.group, input);
  if (problem.empty()) problem = check_input_sizes(in, is_forward ? columns : rows, rank, world);
  if (!problem.empty()) refuse(problem, options.group, world);

  const bool paired = options.layout == FftLayout::kPaired;
  const int64_t cut = total_extent(in);
  FftShape shape;
  shape.layout = paired ? Layout::kPaired : Layout::kCanonical;
  shape.both_signs = !options.modes.empty();
  if (!paired && world == 2) {
    shape.fewest_bytes = options.fewest_bytes ? bool{*options.fewest_bytes} : spans_hosts(group);
  }
  int64_t height = rows;
  int64_t width = cut;
  if (!is_forward) {
    height = paired ? 2 * (cut - 1) : cut;
    width = paired ? columns : 2 * (columns - 1);
  }
  shape.height = height = extent_or(options, 0, height);
  shape.width = width = extent_or(options, 1, width);
  if (height < 1 || width < 1) {
    refuse(
        fmt::format("a transform of {} x {} needs at least one row and one column", height, width),
        options.group, world);
  }
  int64_t kept_rows = paired ? height / 2 + 1 : height;
  int64_t kept_columns = paired ? width : width / 2 + 1;
  if (shape.both_signs) {
    const int64_t m0 = options.modes[0];
    const int64_t m1 = options.modes[1];
    if (m0 > kept_rows || m1 > width / 2) {
      problem = fmt::format("modes are [{}, {}]; a transform of {} x {} has at most [{}, {}]", m0,
                            m1, height, width, kept_rows, width / 2);
    }
    kept_rows = m0;
    kept_columns = 2 * m1;
  }
  if (is_forward) {
    shape.field_height = rows;
    shape.field_columns = in;
    shape.spectrum_columns = kept_columns;
    shape.spectrum_rows = output_sizes(options, kept_rows, world, problem);
  } else {
    shape.field_height = height;
    shape.field_columns = output_sizes(options, width, world, problem);
    shape.spectrum_columns = columns;
    shape.spectrum_rows = in;
    if (shape.both_signs && (cut != kept_rows || columns != kept_columns) && problem.empty()) {
      problem = fmt::format("the spectrum is {} x {}, and modes say {} x {}", cut, columns,
                            kept_rows, kept_columns);
    }
  }
  if (!problem.empty()) refuse(problem, options.group, world);
  const std::string agreed = words_of(shape, options, arguments.direction, input.dim());
  return std::make_shared<FftPlan>(std::move(shape), options.group, agreed);
}

std::string misfit(const at::Tensor& input, const Arguments& arguments, const FftPlan& plan) {
  if (!arguments.problem.empty()) return arguments.problem;
  const FftShape& shape = plan.shape();
  const bool is_forward = arguments.direction == Direction::kForward;
  const int64_t rows = is_forward ? int64_t{shape.field_height} : plan.own_rows();
  const int64_t columns = is_forward ? plan.own_columns() : int64_t{shape.spectrum_columns};
  if (input.size(arguments.dim0) == rows && input.size(arguments.dim1) == columns) return {};
  return fmt::format("the tensor is {} x {} along dim; the first call was made with {} x {}",
                     input.size(arguments.dim0), input.size(arguments.dim1), rows, columns);
}

}  // namespace meshrun::fft
