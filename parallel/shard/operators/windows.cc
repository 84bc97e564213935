#include "parallel/shard/operators/windows.h"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <utility>

#include "c10/util/SmallVector.h"
#include "fmt/format.h"
#include "parallel/collectives/call/autograd_node.h"
#include "parallel/collectives/tie.h"
#include "parallel/shard/redistribute/redistribution_plans.h"

namespace meshrun {
namespace {

std::atomic<int64_t> plans_made{0};

bool has_ranks(const ShardTensorSpec& spec, int64_t axis) {
  return spec.mesh()->shape()[static_cast<size_t>(axis)] > 1;
}

// Those of more than one rank.
std::vector<int64_t> true_axes(const ShardTensorSpec& spec, int64_t dim) {
  std::vector<int64_t> axes;
  for (const int64_t axis : spec.layout().cuts()[static_cast<size_t>(dim)].axes) {
    if (has_ranks(spec, axis)) axes.push_back(axis);
  }
  return axes;
}

bool are_all(const ShardTensorSpec& spec, const std::vector<int64_t>& axes) {
  int64_t count = 0;
  for (int64_t axis = 0; axis < spec.mesh()->ndim(); ++axis) count += has_ranks(spec, axis);
  return static_cast<int64_t>(axes.size()) == count;
}

}  // namespace

SplitRange CutDim::own_range() const {
  const int64_t begin = std::accumulate(sizes.begin(), sizes.begin() + own, int64_t{0});
  return {begin, begin + sizes[static_cast<size_t>(own)]};
}

std::optional<CutDim> cut_of(const ShardTensorSpec& spec, int64_t dim) {
  const std::vector<int64_t> axes = true_axes(spec, dim);
  if (axes.empty()) return std::nullopt;
  const ShardMesh& mesh = *spec.mesh();
  return CutDim{axes.size() == 1 ? mesh.axis_group(axes[0]) : mesh.group(),
                spec.layout().cuts()[static_cast<size_t>(dim)].sizes,
                spec.layout().piece(dim, mesh.coordinate())};
}

bool has_empty_piece(const ShardTensorSpec& spec) {
  const std::vector<DimCut>& cuts = spec.layout().cuts();
  return std::any_of(cuts.begin(), cuts.end(), [](const DimCut& cut) {
    return std::find(cut.sizes.begin(), cut.sizes.end(), 0) != cut.sizes.end();
  });
}

SpecPtr windowed_spec(const SpecPtr& spec, const std::vector<int64_t>& whole) {
  Placements placements = gradient_spec(spec)->placements();
  for (int64_t dim = 0; dim < spec->ndim(); ++dim) {
    const bool is_whole = std::find(whole.begin(), whole.end(), dim) != whole.end();
    const std::vector<int64_t> axes = true_axes(*spec, dim);
    const bool shares_group = axes.size() < 2 || are_all(*spec, axes);
    for (size_t axis = 0; axis < placements.size(); ++axis) {
      if (!placements[axis].is_shard(dim)) continue;
      const bool stays = shares_group || static_cast<int64_t>(axis) == axes.front();
      if (is_whole || !stays) placements[axis] = Replicate();
    }
  }
  return placements == spec->placements() ? spec : target_spec(spec, std::move(placements));
}

WindowPlan::WindowPlan(const SpecPtr& input, const Form& form, c10::ArrayRef<int64_t> key,
                       MakeWindows windows) {
  c10::SmallVector<int64_t, 32> whole_key(key.begin(), key.end());
  whole_key.append({form.first, form.channels, int64_t{form.periodic}});
  made_ = kept_plan<Made>(input, whole_key, [&] { return make(*input, form, windows()); });
  result_ = derived_specs(whole_key, {&input}, [&] {
              return std::vector<ShardLayout>{made_->result};
            }).front();
}

int64_t WindowPlan::num_made() { return plans_made; }

WindowPlan::Made WindowPlan::make(const ShardTensorSpec& input, const Form& form,
                                  const std::vector<WindowedDim>& windows) {
  ++plans_made;
  std::vector<Cut> cuts;
  std::vector<DimCut> layout = input.layout().cuts();
  if (form.channels >= 0) layout[static_cast<size_t>(form.first - 1)].sizes = {form.channels};
  for (size_t i = 0; i < windows.size(); ++i) {
    const int64_t dim = form.first + static_cast<int64_t>(i);
    std::vector<int64_t>& sizes = layout[static_cast<size_t>(dim)].sizes;
    const std::optional<CutDim> cut = cut_of(input, dim);
    if (!cut) {
      sizes = {windows[i].outputs()};
      continue;
    }
    const std::vector<SplitRange> ranges = windows[i].ranges(cut->sizes);
    const auto own = static_cast<size_t>(cut->own);
    RangeExchange::Options options;
    options.periodic = form.periodic;
    cuts.push_back({dim, RangeExchange(dim, cut->sizes, ranges, cut->group, options),
                    cut->own_range(), windows[i].owned(cut->sizes)[own], ranges[own]});
    sizes = windows[i].output_sizes(cut->sizes);
  }
  return {std::move(cuts),
          ShardLayout::with_cuts(input.mesh()->shape(), input.placements(), std::move(layout))};
}

const WindowPlan::Cut* WindowPlan::cut(int64_t dim) const {
  const auto found =
      std::find_if(cuts().begin(), cuts().end(), [&](const Cut& cut) { return cut.dim == dim; });
  return found == cuts().end() ? nullptr : &*found;
}

bool WindowPlan::computes() const {
  const std::vector<int64_t>& shape = result_->local_shape();
  return std::find(shape.begin(), shape.end(), 0) == shape.end();
}

at::Tensor WindowPlan::gather(const at::Tensor& local, const c10::Scalar& padding) const {
  at::Tensor gathered = local;
  for (const Cut& cut : cuts()) gathered = cut.exchange.gather(gathered, padding);
  return gathered;
}

at::Tensor WindowPlan::nothing(const at::Tensor& gathered, bool keeps_input) const {
  const at::Tensor empty = connected_zeros(gathered, result_->local_shape());
  return keeps_input ? tie(empty, gathered) : empty;
}

std::vector<int64_t> for_each_dim(at::IntArrayRef values, size_t count, const char* name) {
  if (values.size() == count) return values.vec();
  if (values.size() == 1) return std::vector<int64_t>(count, values[0]);
  throw ShardTensorError(
      fmt::format("{} has {} values; 1 or {} are expected", name, values.size(), count));
}

}  // namespace meshrun
