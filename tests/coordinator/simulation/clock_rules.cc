// The rules of what is counted: whatever process of the coordinator counts it, it is counted once.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "tests/coordinator/simulation/rules.h"

namespace meshrun::coordinator::simulation {
namespace {

// As jobs are drawn.
constexpr seconds kLeastHangTimeout(6);
// Error of a sum of seconds.
constexpr double kRounding = 1e-6;

}  // namespace

// A step of a rank, and whether the coordinator takes it into account.
bool Rules::Tell(const StateMachine& machine, const v1::SessionMessage& said,
                 const std::string& job_id, uint64_t generation, int64_t step, SteadyNanos at) {
  const auto it = machine.jobs().all().find(job_id);
  if (it == machine.jobs().all().end()) return false;
  const Job& job = it->second;
  if (!job.active() || job.view.generation() != generation) return false;
  Told& told = told_[job_id];
  if (told.generation != generation) {
    told = {.generation = generation, .at = at, .hang = job.view.hang()};
    told.ranks = static_cast<uint32_t>(job.view.ranks_size());
  }
  const bool takes_part =
      std::any_of(job.members.begin(), job.members.end(), [&](const Member& member) {
        const auto node = machine.nodes().all().find(member.node_id);
        return !member.ended && node != machine.nodes().all().end() &&
               node->second.session_id == said.session_id();
      });
  // One whose session has ended in the same batch may or may not have been heard.
  if (!takes_part || step <= told.step) return false;
  told.step = step;
  return true;
}

// What counts as effective training is the time between new steps of one generation: not that of
// steps which an earlier generation had come to, of pauses, and of hangs; and nothing else is left
// out.
void Rules::CheckTraining(const StateMachine& machine, const std::vector<v1::StateEvent>& batch) {
  const auto earlier = [](const v1::StateEvent& a, const v1::StateEvent& b) {
    return a.now_nanos() < b.now_nanos();
  };
  const auto [first, last] = std::minmax_element(batch.begin(), batch.end(), earlier);
  const SteadyNanos begin(first->now_nanos()), end(last->now_nanos());
  // By generation: as it was before the batch, and whether it has come to a new step for sure.
  std::map<std::pair<std::string, uint64_t>, std::pair<Told, bool>> before;
  const auto tell = [&](const v1::SessionMessage& said, const std::string& job_id,
                        uint64_t generation, int64_t step) {
    const auto facts = facts_.find(job_id);
    const int64_t reached = facts == facts_.end() ? -1 : facts->second.reached;
    const auto known = told_.find(job_id);
    const bool goes_on = known != told_.end() && known->second.generation == generation;
    if (goes_on && step > std::max({reached, known->second.highest, known->second.step})) {
      before.try_emplace({job_id, generation}, known->second, false);
    } else if (!goes_on && step > reached) {
      // All its steps may be told in this batch, and the next generation follow there.
      const auto job = machine.jobs().all().find(job_id);
      if (job != machine.jobs().all().end() && job->second.worlds.contains(generation)) {
        Told fresh{.generation = generation, .at = begin};
        fresh.ranks = static_cast<uint32_t>(job->second.worlds.at(generation)->ranks_size());
        before.try_emplace({job_id, generation}, fresh, false);
      }
    }
    if (!Tell(machine, said, job_id, generation, step, begin)) {
      // It may have been heard all the same.
      if (goes_on && step > known->second.step) known->second.hung = false;
      return;
    }
    const auto rises = before.find({job_id, generation});
    if (rises != before.end()) rises->second.second = true;
    Told& told = told_[job_id];
    told.at = begin;
    told.blur = end - begin;
    told.stood = nanoseconds(0);
    if (told.paused_at.has_value()) told.paused_at = end;
    told.hung = false;
  };
  for (const v1::StateEvent& event : batch) {
    const v1::SessionMessage& said = event.session_message();
    const v1::Fence& fence = said.message().fence();
    for (const auto& [rank, progress] : said.message().progress_report().progress()) {
      tell(said, fence.job_id(), fence.generation(), progress.step());
    }
    for (const v1::RunningGeneration& running : said.message().hello().running()) {
      for (const auto& [rank, step] : running.steps())
        tell(said, running.job_id(), running.generation(), step);
    }
  }
  double most = 0, least = 0;
  for (const auto& [key, entry] : before) {
    const std::string& job_id = key.first;
    const auto& [told, is_sure] = entry;
    if (told.hung) continue;
    nanoseconds span = end - told.at - told.stood;
    if (told.paused_at.has_value()) span -= std::max(begin - *told.paused_at, nanoseconds(0));
    most += told.ranks * std::chrono::duration<double>(span).count();
    const auto it = machine.jobs().all().find(job_id);
    const bool runs = told.runs && it != machine.jobs().all().end() &&
                      it->second.view.state() == v1::JOB_STATE_RUNNING &&
                      it->second.view.generation() == told.generation;
    // A step that nobody had heard of, after less than the shortest limit of a hang.
    if (!is_sure || !runs || told.step < 0 || !told.hang.empty() || span >= kLeastHangTimeout) {
      continue;
    }
    span = std::max(span - told.blur - (end - begin), nanoseconds(0));
    least += told.ranks * std::chrono::duration<double>(span).count();
  }
  const double stepping = machine.Measure().tallies.stepping_rank_seconds();
  const double counted = stepping - stepping_;
  stepping_ = stepping;
  if (counted > most + kRounding) {
    ledger_->Fail(
        fmt::format("{:.3f} s are counted as effective training, and at most {:.3f} s were between "
                    "new steps: steps are repeated, or a pause or a hang counts",
                    counted, most));
  } else if (counted < least - kRounding) {
    ledger_->Fail(fmt::format(
        "{:.3f} s are counted as effective training, and at least {:.3f} s were", counted, least));
  }
  SeePauses(machine, begin, end);
}

void Rules::SeePauses(const StateMachine& machine, SteadyNanos begin, SteadyNanos end) {
  std::erase_if(told_, [&](const auto& entry) {
    const auto it = machine.jobs().all().find(entry.first);
    return it == machine.jobs().all().end() || it->second.ended();
  });
  for (auto& [job_id, told] : told_) {
    const Job& job = machine.jobs().all().at(job_id);
    const v1::Job& view = job.view;
    told.runs = view.state() == v1::JOB_STATE_RUNNING;
    told.highest = job.tally.highest_step;
    if (view.has_paused_since() != told.paused_at.has_value()) {
      told.blur += end - begin;
      if (view.has_paused_since()) {
        told.paused_at = end;
      } else {
        told.stood += std::max(begin - *told.paused_at, nanoseconds(0));
        told.paused_at.reset();
      }
    }
    if (view.hang() == told.hang) continue;
    told.hang = view.hang();
    told.hung |= !told.hang.empty();
  }
}

// Once for each job that is placed for the first time.
void Rules::CheckQueueWaits(const StateMachine& machine) {
  const uint64_t counted = machine.Measure().tallies.queue_wait().count();
  if (counted == placed_) return;
  ledger_->Fail(fmt::format("{} waits in the queue are counted, and {} jobs were placed after one",
                            counted, placed_));
}

}  // namespace meshrun::coordinator::simulation
