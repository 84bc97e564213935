#include "parallel/elastic/graceful_stop.h"

#include <ATen/ops/full.h>

#include <csignal>
#include <string>

#include "agent/agent.h"
#include "core/exit_codes.h"
#include "parallel/base/no_collectives.h"
#include "parallel/collectives/all_reduce.h"
#include "parallel/comm/interface/call_scope.h"
#include "parallel/elastic/stop_signal.h"
#include "parallel/manager/distributed_manager.h"
#include "parallel/manager/number_device.h"

namespace meshrun {

GracefulStop::GracefulStop() {
  catch_stop_signals();
  if (agent::Agent* const agent = DistributedManager::get().agent()) {
    agent->OnStop([](const std::string&) { request_stop(SIGTERM); });
  }
}

bool GracefulStop::requested() const { return stop_requested(); }

bool GracefulStop::agreed(const GroupArgument& group) {
  const CallScope scope("GracefulStop::agreed");
  check_collectives_allowed([] { return "GracefulStop::agreed()"; });
  const GroupArgument::Handle ranks = group.get();
  const at::Tensor asked = at::full({1}, stop_requested() ? 1 : 0,
                                    at::TensorOptions(number_device(*ranks)).dtype(at::kInt));
  detail::all_reduce(ranks, asked, c10d::ReduceOp::MAX).wait();
  if (asked.item<int>() == 0) return false;
  stop_together();
  return true;
}

int GracefulStop::exit_code() const {
  return stop_requested() ? kExitSignalBase + stop_signal() : kExitOk;
}

}  // namespace meshrun
