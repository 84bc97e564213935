#include "coordinator/state_machine/blocked_ranks.h"

#include <fmt/format.h>

#include <utility>

#include "core/rank_exit.h"
#include "core/wait_messages.h"

namespace meshrun::coordinator {

BlockedRanks::Board& BlockedRanks::BoardOf(const Job& job) {
  Board& board = boards_[job.id()];
  if (board.generation == job.view.generation()) return board;
  board = Board();
  board.generation = job.view.generation();
  // After a restart of the coordinator the job says which ranks are gone.
  for (const v1::RankStatus& status : job.view.ranks()) {
    const int rank = status.assignment().rank();
    if (status.state() == v1::RANK_STATE_EXITED && ExitedCleanly(status.exit())) {
      board.waiting.Left(rank, context_.now);
    }
  }
  return board;
}

void BlockedRanks::Report(const Job& job, const Member& member, const v1::WaitReport& report) {
  if (!member.Has(report.rank())) {
    context_.Warn(fmt::format("WaitReport ignored: rank {} of job {} does not live on {}",
                              report.rank(), job.id(), nodes_.Find(member.node_id)->record.name()));
    return;
  }
  if (job.view.ranks(report.rank()).state() == v1::RANK_STATE_EXITED) return;
  Board& board = BoardOf(job);
  WaitReport known = FromProto(report);
  for (int i = 0; i < report.calls_size(); ++i) {
    const uint64_t id = report.calls(i).group_id();
    GroupMembers& members = known.calls[i].members;
    if (id == 0) continue;
    const auto group = board.groups.find(id);
    if (members.empty() && group == board.groups.end()) {
      context_.Warn(
          fmt::format("WaitReport of rank {} of job {} ignored: it names group '{}' by an "
                      "id that was not explained",
                      report.rank(), job.id(), report.calls(i).group()));
      return;
    }
    if (group != board.groups.end()) {
      members = group->second;
    } else if (board.groups.size() < kMostGroups) {
      board.groups[id] = members;
    }
  }
  board.waiting.Report(std::move(known), context_.now);
}

void BlockedRanks::Withdraw(const Job& job, const Member& member,
                            const v1::WaitWithdrawn& withdrawn) {
  if (member.Has(withdrawn.rank())) BoardOf(job).waiting.Withdraw(withdrawn.rank());
}

bool BlockedRanks::IsBlocked(const Job& job, int rank) const {
  const auto board = boards_.find(job.id());
  return board != boards_.end() && board->second.generation == job.view.generation() &&
         board->second.waiting.IsBlocked(rank);
}

void BlockedRanks::OnRankLeft(const Job& job, int rank) {
  BoardOf(job).waiting.Left(rank, context_.now);
}

void BlockedRanks::OnRankLost(const Job& job, int rank) { BoardOf(job).waiting.Withdraw(rank); }

void BlockedRanks::OnNodeReturned(const Job& job) { BoardOf(job); }

void BlockedRanks::EndGeneration(const Job& job) { boards_.erase(job.id()); }

std::optional<SteadyNanos> BlockedRanks::NextDeadline() const {
  std::optional<SteadyNanos> next;
  for (const auto& [job_id, board] : boards_) {
    const std::optional<SteadyNanos> due = board.waiting.NextDecision();
    if (due && (!next || *due < *next)) next = due;
  }
  return next;
}

void BlockedRanks::ExpireDue() {
  for (auto& [job_id, board] : boards_) {
    const std::optional<SteadyNanos> due = board.waiting.NextDecision();
    if (!due || *due > context_.now) continue;
    for (const std::string& sentence : board.waiting.Suspect(context_.now)) {
      context_.Record("RanksMayWaitInVain", job_id, "", sentence);
    }
    for (const WaitVerdict& verdict : board.waiting.Decide(context_.now)) {
      context_.Record("RanksWaitInVain", job_id, "", verdict.message);
      if (const Job* const job = jobs_.Find(job_id)) peers_.OnVerdict(*job, ToProto(verdict));
    }
  }
}

}  // namespace meshrun::coordinator
