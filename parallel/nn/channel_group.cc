#include "parallel/nn/channel_group.h"

#include <utility>

#include "c10/util/Exception.h"
#include "parallel/base/split.h"
#include "parallel/collectives/all_gather_v.h"
#include "parallel/collectives/all_reduce.h"
#include "parallel/collectives/mappings.h"
#include "parallel/collectives/reduce_scatter_v.h"
#include "parallel/comm/v_collectives_of.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun::detail {

using at::Tensor;

ChannelGroup::ChannelGroup(GroupArgument::Handle handle) : handle_(std::move(handle)) {
  if (!handle_) return;
  size_ = handle_->getSize();
  rank_ = handle_->getRank();
}

std::vector<int64_t> ChannelGroup::pieces_of(int64_t extent) const {
  return compute_split_shapes(extent, size_);
}

Tensor ChannelGroup::all_gather(const Tensor& piece, int64_t dim, int64_t extent) const {
  if (size_ == 1) return piece;
  return all_gather_v(piece, pieces_of(extent), dim, /*use_fp32=*/true, handle_);
}

Tensor ChannelGroup::reduce_scatter(const Tensor& whole, int64_t dim) const {
  if (size_ == 1) return whole;
  return reduce_scatter_v(whole, pieces_of(whole.size(dim)), dim, /*use_fp32=*/true, handle_);
}

Tensor ChannelGroup::copy_to(const Tensor& whole) const {
  return size_ == 1 ? whole : copy_to_parallel_region(whole, handle_);
}

Tensor ChannelGroup::reduce_from(const Tensor& part) const {
  return size_ == 1 ? part : reduce_from_parallel_region(part, handle_);
}

Tensor ChannelGroup::gather_from(const Tensor& piece, int64_t dim, int64_t extent) const {
  if (size_ == 1) return piece;
  return gather_from_parallel_region(piece, dim, pieces_of(extent), handle_);
}

Tensor ChannelGroup::scatter_to(const Tensor& whole, int64_t dim) const {
  return size_ == 1 ? whole : scatter_to_parallel_region(whole, dim, handle_);
}

void ChannelGroup::raise(const Tensor& x, const std::string& problem) const {
  if (problem.empty()) return;
  TORCH_CHECK_VALUE(size_ > 1, problem);
  raise_on_all_ranks(handle_, device_of(x, *handle_), problem);
}

}  // namespace meshrun::detail
