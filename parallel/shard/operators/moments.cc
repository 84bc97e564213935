#include "parallel/shard/operators/moments.h"

#include <algorithm>

#include "ATen/Functions.h"
#include "ATen/core/grad_mode.h"
#include "parallel/collectives/all_gather_v.h"
#include "parallel/collectives/all_reduce.h"
#include "parallel/shard/dispatch/local_map.h"

namespace meshrun {
namespace {

at::Tensor divided(const at::Tensor& sum, const at::Tensor& count) {
  return sum / count.clamp_min(1);
}

}  // namespace

at::ScalarType moment_type(at::ScalarType elements) {
  return elements == at::kDouble ? at::kDouble : at::kFloat;
}

std::vector<int64_t> axes_that_cut(const ShardTensorSpec& spec, at::IntArrayRef dims) {
  std::vector<int64_t> axes;
  for (size_t axis = 0; axis < spec.placements().size(); ++axis) {
    const Placement& placement = spec.placements()[axis];
    // A group of one has nothing to say.
    if (placement.is_shard() && spec.mesh()->shape()[axis] > 1 &&
        std::find(dims.begin(), dims.end(), placement.dim()) != dims.end()) {
      axes.push_back(static_cast<int64_t>(axis));
    }
  }
  return axes;
}

Moments moments_of(const at::Tensor& elements, at::IntArrayRef dims, bool centered,
                   at::Tensor* deviations) {
  std::vector<int64_t> shape = elements.sizes().vec();
  int64_t count = 1;
  for (const int64_t dim : dims) {
    count *= shape[static_cast<size_t>(dim)];
    shape[static_cast<size_t>(dim)] = 1;
  }
  Moments moments;
  moments.count = at::full(shape, count, elements.options());
  moments.mean = centered && count > 0
                     ? (dims.empty() ? elements.clone() : at::mean(elements, dims, true))
                     : at::zeros(shape, elements.options());
  at::Tensor apart = elements - moments.mean;
  moments.squares = dims.empty() ? apart * apart : at::sum(apart * apart, dims, true);
  if (deviations != nullptr) *deviations = std::move(apart);
  return moments;
}

Moments merged(const Moments& own, const ShardMesh& mesh, const std::vector<int64_t>& axes) {
  Moments all = own;
  for (const int64_t axis : axes) {
    const int64_t ranks = mesh.shape()[static_cast<size_t>(axis)];
    const at::Tensor message = at::stack({all.count, all.mean, all.squares}).contiguous();
    std::vector<int64_t> shape = message.sizes().vec();
    shape.insert(shape.begin(), ranks);
    const at::Tensor parts =
        all_gather_v(message, Sizes(std::vector<int64_t>(static_cast<size_t>(ranks), 3)), 0, true,
                     GroupArgument(mesh.axis_group(axis)))
            .view(shape);
    const at::Tensor counts = parts.select(1, 0);
    const at::Tensor means = parts.select(1, 1);
    all.count = at::sum(counts, 0);
    all.mean = divided(at::sum(counts * means, 0), all.count);
    const at::Tensor apart = means - all.mean;
    all.squares = at::sum(parts.select(1, 2) + counts * apart * apart, 0);
  }
  return all;
}

at::Tensor sum_groups(const at::Tensor& channels, const at::Tensor& group_of_channel,
                      int64_t groups) {
  const int64_t n = channels.size(0);
  return at::zeros({n, groups}, channels.options())
      .index_add_(1, group_of_channel, channels.reshape({n, channels.size(1)}));
}

at::Tensor spread_groups(const at::Tensor& groups, const at::Tensor& group_of_channel,
                         at::IntArrayRef like) {
  return groups.index_select(1, group_of_channel).view(like);
}

Moments grouped(const Moments& channels, const at::Tensor& group_of_channel, int64_t groups) {
  Moments all;
  all.count = sum_groups(channels.count, group_of_channel, groups);
  all.mean =
      divided(sum_groups(channels.count * channels.mean, group_of_channel, groups), all.count);
  const at::Tensor apart =
      channels.mean - spread_groups(all.mean, group_of_channel, channels.mean.sizes());
  all.squares =
      sum_groups(channels.squares + channels.count * apart * apart, group_of_channel, groups);
  return all;
}

at::Tensor sum_over(at::Tensor own, const ShardMesh& mesh, const std::vector<int64_t>& axes) {
  if (c10::GradMode::is_enabled() && own.requires_grad()) {
    // Autograd follows.
    const auto shared =
        ShardMesh::Ptr::unsafe_reclaim_from_nonowning(const_cast<ShardMesh*>(&mesh));
    const SpecPtr whole = replicated_spec(shared, own.sizes());
    Placements summands(mesh.shape().size());
    for (const int64_t axis : axes) summands[static_cast<size_t>(axis)] = Partial();
    const SpecPtr parts = make_spec(shared, whole->layout().with_placements(summands));
    return to_local(redistribute(from_local(own, parts), whole));
  }
  for (const int64_t axis : axes) detail::all_reduce(mesh.axis_group(axis), own).wait();
  return own;
}

}  // namespace meshrun
