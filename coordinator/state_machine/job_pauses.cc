// Ranks that a client has stopped with SIGSTOP: the job's clocks stand still until all go on.
#include <set>

#include "coordinator/state_machine/jobs.h"
#include "core/proto_time.h"

namespace meshrun::coordinator {

void JobTable::SetPaused(Job& job, const std::vector<int>& ranks, bool paused) {
  std::set<int> left(job.record.paused_ranks().begin(), job.record.paused_ranks().end());
  for (int i = 0; i < (ranks.empty() ? job.view.ranks_size() : static_cast<int>(ranks.size()));
       ++i) {
    const int rank = ranks.empty() ? i : ranks[i];
    if (paused) {
      left.insert(rank);
      job.told_to_go_on.erase(rank);
    } else if (left.erase(rank) > 0) {
      job.told_to_go_on[rank] = context_.now;
    }
  }
  job.record.mutable_paused_ranks()->Assign(left.begin(), left.end());
  Changed(job);
  if (job.view.has_paused_since() == !left.empty()) return;
  if (left.empty()) {
    job.view.clear_paused_since();
    job.resumed_at = context_.now;
  } else {
    *job.view.mutable_paused_since() = ToProtoTimestamp(context_.wall);
  }
  run_clock_.OnState(job.view);
}

}  // namespace meshrun::coordinator
