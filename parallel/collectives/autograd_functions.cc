#include "parallel/collectives/autograd_functions.h"

namespace meshrun {

at::Tensor AllGatherVAutograd::apply(const at::Tensor& tensor, const Sizes& sizes, IntArgument dim,
                                     BoolArgument use_fp32, const GroupArgument& group) {
  return CollectiveNode::apply(tensor, make_all_gather(tensor, sizes, dim, use_fp32, group));
}

at::Tensor ReduceScatterVAutograd::apply(const at::Tensor& tensor, const Sizes& sizes,
                                         IntArgument dim, BoolArgument use_fp32,
                                         const GroupArgument& group) {
  return CollectiveNode::apply(tensor, make_reduce_scatter(tensor, sizes, dim, use_fp32, group));
}

at::Tensor GatherVAutograd::apply(const at::Tensor& tensor, const Sizes& sizes, IntArgument dim,
                                  IntArgument dst, const GroupArgument& group) {
  return CollectiveNode::apply(tensor, make_gather(tensor, sizes, dim, dst, group));
}

at::Tensor ScatterVAutograd::apply(const at::Tensor& tensor, const Sizes& sizes, IntArgument dim,
                                   IntArgument src, const GroupArgument& group) {
  return CollectiveNode::apply(tensor, make_scatter(tensor, sizes, dim, src, group));
}

}  // namespace meshrun
