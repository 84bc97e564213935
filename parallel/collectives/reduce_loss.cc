#include "parallel/collectives/reduce_loss.h"

#include <vector>

#include "ATen/ops/full.h"
#include "parallel/base/no_collectives.h"
#include "parallel/collectives/all_reduce.h"
#include "parallel/collectives/call/pieces.h"
#include "parallel/comm/interface/call_scope.h"
#include "parallel/manager/distributed_manager.h"
#include "parallel/manager/number_device.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun {

std::optional<double> reduce_loss(double loss, IntArgument dst_rank, BoolArgument mean,
                                  const GroupArgument& group_argument) {
  const CallScope scope("reduce_loss");
  DistributedManager::get();  // raises
  check_collectives_allowed([] { return "reduce_loss"; });
  const detail::ProcessGroupPtr group = group_argument.get();
  const int size = group->getSize();
  const c10::Device device = number_device(*group);
  const std::string problem = check_rank("dst_rank", dst_rank, size);
  if (!problem.empty()) detail::raise_on_all_ranks(group, device.type(), problem);
  std::vector<at::Tensor> tensors = {at::full({1}, loss, at::device(device).dtype(at::kDouble))};
  c10d::ReduceOptions options;
  options.rootRank = dst_rank.to_int();
  options.asyncOp = false;
  if (const auto work = group->reduce(tensors, options)) work->wait();
  if (group->getRank() != dst_rank) return std::nullopt;
  const double sum = tensors[0].item<double>();
  return mean ? sum / size : sum;
}

}  // namespace meshrun
