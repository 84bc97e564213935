// The rules of what is counted: whatever process of the coordinator counts it, it is counted once.
#include <fmt/format.h>

#include <algorithm>

#include "tests/coordinator/simulation/rules.h"

namespace meshrun::coordinator::simulation {

// A step of a rank that the coordinator takes into account.
void Rules::Tell(const StateMachine& machine, const v1::SessionMessage& said,
                 const std::string& job_id, uint64_t generation, int64_t step) {
  const auto it = machine.jobs().all().find(job_id);
  if (it == machine.jobs().all().end()) return;
  const Job& job = it->second;
  if (!job.active() || job.view.generation() != generation) return;
  const bool takes_part =
      std::any_of(job.members.begin(), job.members.end(), [&](const Member& member) {
        const auto node = machine.nodes().all().find(member.node_id);
        return !member.ended && node != machine.nodes().all().end() &&
               node->second.session_id == said.session_id();
      });
  if (!takes_part) return;
  Told& told = told_[job_id];
  if (told.generation != generation) told = {generation, -1};
  told.step = std::max(told.step, step);
}

// Steps that an earlier generation had come to are repeated: they are no effective training.
void Rules::CheckTraining(const StateMachine& machine, const std::vector<v1::StateEvent>& batch) {
  bool any_is_new = false;
  for (const v1::StateEvent& event : batch) {
    const v1::SessionMessage& said = event.session_message();
    const v1::Fence& fence = said.message().fence();
    const auto tell = [&](const std::string& job_id, uint64_t generation, int64_t step) {
      const auto facts = facts_.find(job_id);
      any_is_new |= step > (facts == facts_.end() ? -1 : facts->second.reached);
      Tell(machine, said, job_id, generation, step);
    };
    for (const auto& [rank, progress] : said.message().progress_report().progress()) {
      tell(fence.job_id(), fence.generation(), progress.step());
    }
    for (const v1::RunningGeneration& running : said.message().hello().running()) {
      for (const auto& [rank, step] : running.steps())
        tell(running.job_id(), running.generation(), step);
    }
  }
  const double stepping = machine.Measure().tallies.stepping_rank_seconds();
  if (stepping > stepping_ && !any_is_new) {
    ledger_->Fail(
        fmt::format("{:.3f} s of steps that were repeated are counted as effective training",
                    stepping - stepping_));
  }
  stepping_ = stepping;
}

// Once for each job that is placed for the first time.
void Rules::CheckQueueWaits(const StateMachine& machine) {
  const uint64_t counted = machine.Measure().tallies.queue_wait().count();
  if (counted == placed_) return;
  ledger_->Fail(fmt::format("{} waits in the queue are counted, and {} jobs were placed after one",
                            counted, placed_));
}

}  // namespace meshrun::coordinator::simulation
