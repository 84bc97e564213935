// A collective of a group as its caller has asked for it, checked, and without its tensors.
// Autograd nodes keep it for their backward, which is the adjoint of the same; plans keep it for
// all their calls. Internal to parallel/collectives.
//
// Makers never raise for a wrong argument: it becomes spec.problem, which the call tells all ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/core/ivalue.h"
#include "parallel/base/sizes.h"
#include "parallel/collectives/call/pieces.h"
#include "parallel/comm/interface/collective_spec.h"
#include "parallel/manager/group_argument.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun {

struct Collective : torch::CustomClassHolder {
  GroupArgument::Handle group;
  int rank = 0;
  int world = 1;
  CollectiveSpec spec;

  bool is_wrong() const { return !spec.problem.empty(); }
  bool is_root() const { return rank == spec.root; }
  int64_t own() const { return spec.cut.of(rank); }
};

using CollectivePtr = c10::intrusive_ptr<Collective>;

// What no collective takes: an undefined tensor, a sharded one. Empty: nothing is wrong.
const char* tensor_problem(const at::Tensor& tensor);

// Group, rank and world alone.
CollectivePtr make_collective(const GroupArgument& group);
// The same one with a problem.
CollectivePtr with_problem(const Collective& collective, std::string problem);

// From the arguments of each. `tensor` may be undefined, which is a problem.
CollectivePtr make_all_gather(const at::Tensor& tensor, const Sizes& sizes, int64_t dim,
                              bool use_fp32, const GroupArgument& group);
CollectivePtr make_reduce_scatter(const at::Tensor& tensor, const Sizes& sizes, int64_t dim,
                                  bool use_fp32, const GroupArgument& group);
CollectivePtr make_gather(const at::Tensor& tensor, const Sizes& sizes, int64_t dim, int64_t dst,
                          const GroupArgument& group);
// Waits for a message where sizes are absent.
CollectivePtr make_scatter(const at::Tensor& tensor, const Sizes& sizes, int64_t dim, int64_t src,
                           const GroupArgument& group);
CollectivePtr make_all_to_all(const at::Tensor& tensor, at::IntArrayRef input_sizes,
                              at::IntArrayRef output_sizes, int64_t input_dim, int64_t output_dim,
                              const GroupArgument& group);
// An all-to-all from pieces along dim1 to pieces along dim0. Without dim1_sizes it waits for a
// message, and raises what is wrong.
CollectivePtr make_transpose(const at::Tensor& tensor, int64_t dim0, int64_t dim1,
                             const std::optional<std::vector<int64_t>>& dim1_sizes,
                             const GroupArgument& group);

// Makes the ranks compare the dims and sizes of a transpose, and the words `also`, in each of its
// calls; errors tell them.
void agree_on_transpose(CollectiveSpec& spec, const std::string& also = {});
// The ranks' extents along a dimension, told by all to all. Raises the problem of any rank.
// `tensor`, which may be undefined, says on which device.
Extents tell_extents(const at::Tensor& tensor, const Collective& collective, int64_t extent);

}  // namespace meshrun
