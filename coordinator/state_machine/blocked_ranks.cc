#include "coordinator/state_machine/blocked_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/rank_exit.h"
#include "core/wait_messages.h"

namespace meshrun::coordinator {
namespace {

// So many lost ranks are told each with its reason to a node that returns.
constexpr size_t kFewLost = 16;

bool LivesOn(const Member& member, int rank) {
  return rank >= member.first_rank && rank < member.first_rank + member.rank_count;
}

void AddLost(int rank, const std::string& reason, v1::PeerNews* news) {
  v1::RankLost& lost = *news->add_lost();
  lost.set_rank(rank);
  lost.set_reason(reason);
}

}  // namespace

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
      board.left.insert(rank);
    } else if (status.state() == v1::RANK_STATE_EXITED) {
      board.lost[rank] = PeerEndSentence(status.exit(), status.node_name());
    } else if (status.state() == v1::RANK_STATE_LOST) {
      board.lost[rank] = fmt::format("its host {} was lost", status.node_name());
    }
  }
  return board;
}

void BlockedRanks::Report(const Job& job, const Member& member, const v1::WaitReport& report) {
  if (!LivesOn(member, report.rank())) {
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
  if (LivesOn(member, withdrawn.rank())) BoardOf(job).waiting.Withdraw(withdrawn.rank());
}

bool BlockedRanks::IsBlocked(const Job& job, int rank) const {
  const auto board = boards_.find(job.id());
  return board != boards_.end() && board->second.generation == job.view.generation() &&
         board->second.waiting.IsBlocked(rank);
}

void BlockedRanks::OnRankLeft(const Job& job, int rank) {
  Board& board = BoardOf(job);
  board.waiting.Left(rank, context_.now);
  board.left.insert(rank);
  board.untold.add_left(rank);
  untold_.insert(job.id());
}

void BlockedRanks::OnRankLost(const Job& job, int rank, const std::string& reason) {
  Board& board = BoardOf(job);
  board.waiting.Withdraw(rank);
  board.lost[rank] = reason;
  // After the first cause, or once all are told to end, nobody needs the words of each death.
  const bool all_end = job.stopping();
  if (all_end || (job.failed() && job.view.failure().rank() != rank)) {
    board.untold.add_ended(rank);
  } else {
    AddLost(rank, reason, &board.untold);
  }
  untold_.insert(job.id());
}

void BlockedRanks::Tell(const Job& job) {
  untold_.erase(job.id());
  const auto found = boards_.find(job.id());
  if (found == boards_.end()) return;
  const v1::PeerNews news = std::exchange(found->second.untold, v1::PeerNews());
  found->second.told = context_.now;
  for (const Member& member : job.members) {
    const Node* const node = nodes_.Find(member.node_id);
    if (!member.ended && node != nullptr) Send(job, *node, news);
  }
}

SteadyNanos BlockedRanks::GatherUntil(const Job& job) const {
  const auto found = boards_.find(job.id());
  const bool urgent =
      found == boards_.end() || found->second.untold.verdicts_size() > 0 ||
      (found->second.untold.lost_size() > 0 && job.view.state() != v1::JOB_STATE_QUIESCING);
  if (urgent || job.members.size() <= kFewHosts) return context_.now;
  const size_t hosts = job.members.size();
  const auto gather = hosts * kGatherPerHost * std::max(hosts, kManyHosts) / kManyHosts;
  return found->second.told + std::min<SteadyNanos>(gather, kLongestGather);
}

void BlockedRanks::TellAll() {
  const std::set<std::string> untold = untold_;
  for (const std::string& job_id : untold) {
    const Job* const job = jobs_.Find(job_id);
    if (job == nullptr) {
      untold_.erase(job_id);
    } else if (GatherUntil(*job) <= context_.now) {
      Tell(*job);
    }
  }
}

void BlockedRanks::OnNodeReturned(const Job& job, const Node& node) {
  const Board& board = BoardOf(job);
  if (board.left.empty() && board.lost.empty() && board.verdicts.empty()) return;
  v1::PeerNews gone;
  gone.mutable_left()->Add(board.left.begin(), board.left.end());
  for (const auto& [rank, reason] : board.lost) {
    const bool in_words = board.lost.size() <= kFewLost || rank == job.view.failure().rank();
    in_words ? AddLost(rank, reason, &gone) : gone.add_ended(rank);
  }
  gone.mutable_verdicts()->Add(board.verdicts.begin(), board.verdicts.end());
  Send(job, node, gone);
}

void BlockedRanks::EndGeneration(const Job& job) {
  boards_.erase(job.id());
  untold_.erase(job.id());
}

void BlockedRanks::Send(const Job& job, const Node& node, const v1::PeerNews& news) {
  if (node.session_id == 0) return;
  v1::OpenSessionResponse message = MessageTo(node, job.id(), job.view.generation());
  *message.mutable_peer_news() = news;
  context_.Send(node.session_id, std::move(message));
}

std::optional<SteadyNanos> BlockedRanks::NextDeadline() const {
  std::optional<SteadyNanos> next;
  for (const auto& [job_id, board] : boards_) {
    const std::optional<SteadyNanos> due = board.waiting.NextDecision();
    if (due && (!next || *due < *next)) next = due;
  }
  for (const std::string& job_id : untold_) {
    const Job* const job = jobs_.Find(job_id);
    if (job == nullptr) continue;
    const SteadyNanos due = GatherUntil(*job);
    if (!next || due < *next) next = due;
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
      v1::WaitVerdict& told = *board.untold.add_verdicts();
      told = ToProto(verdict);
      told.set_number(context_.term << 32 | ++verdicts_);
      board.verdicts.push_back(told);
      if (board.verdicts.size() > kMostVerdicts) board.verdicts.pop_front();
      untold_.insert(job_id);
    }
  }
}

}  // namespace meshrun::coordinator
