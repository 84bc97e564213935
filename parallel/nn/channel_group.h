// What a layer whose channels are split over a group does with its tensors; without a group, or in
// a group of one rank, every call returns its input. Internal to parallel/nn.
//
//                   forward                    backward
//   all_gather      all ranks' pieces          sum over ranks, this rank's piece
//   reduce_scatter  sum, this rank's piece     all ranks' pieces
//   copy_to, reduce_from, gather_from, scatter_to: collectives/mappings.h
//
// The first two are for whole tensors that ranks use differently: each holds a part of the
// cotangent. Pieces are those of compute_split_shapes.
//
// Threads and errors: those of the collectives.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "parallel/manager/group_argument.h"

namespace meshrun::detail {

class ChannelGroup {
 public:
  ChannelGroup() = default;
  // Null: none.
  explicit ChannelGroup(GroupArgument::Handle handle);

  const GroupArgument::Handle& handle() const { return handle_; }
  int64_t size() const { return size_; }
  int64_t rank() const { return rank_; }

  at::Tensor all_gather(const at::Tensor& piece, int64_t dim, int64_t extent) const;
  at::Tensor reduce_scatter(const at::Tensor& whole, int64_t dim) const;
  at::Tensor copy_to(const at::Tensor& whole) const;
  at::Tensor reduce_from(const at::Tensor& part) const;
  at::Tensor gather_from(const at::Tensor& piece, int64_t dim, int64_t extent) const;
  at::Tensor scatter_to(const at::Tensor& whole, int64_t dim) const;

  // Raises a `problem` that is not empty: c10::ValueError, on all ranks of the group where it is
  // one rank's alone and the others have called. `x` may be undefined.
  void raise(const at::Tensor& x, const std::string& problem) const;

 private:
  std::vector<int64_t> pieces_of(int64_t extent) const;

  GroupArgument::Handle handle_;
  int64_t size_ = 1;
  int64_t rank_ = 0;
};

}  // namespace meshrun::detail
