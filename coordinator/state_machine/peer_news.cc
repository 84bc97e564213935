#include "coordinator/state_machine/peer_news.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/rank_exit.h"

namespace meshrun::coordinator {
namespace {

// So many lost ranks are told each with its reason to a node that returns.
constexpr size_t kFewLost = 16;

void AddLost(int rank, const std::string& reason, v1::PeerNews* news) {
  v1::RankLost& lost = *news->add_lost();
  lost.set_rank(rank);
  lost.set_reason(reason);
}

}  // namespace

PeerNews::News& PeerNews::Of(const Job& job) {
  News& news = news_[job.id()];
  if (news.generation == job.view.generation()) return news;
  news = News();
  news.generation = job.view.generation();
  // After a restart of the coordinator the job says which ranks are gone.
  for (const v1::RankStatus& status : job.view.ranks()) {
    const int rank = status.assignment().rank();
    if (status.state() == v1::RANK_STATE_EXITED && ExitedCleanly(status.exit())) {
      news.left.insert(rank);
    } else if (status.state() == v1::RANK_STATE_EXITED) {
      news.lost[rank] = PeerEndSentence(status.exit(), status.node_name());
    } else if (status.state() == v1::RANK_STATE_LOST) {
      news.lost[rank] = fmt::format("its host {} was lost", status.node_name());
    }
  }
  return news;
}

void PeerNews::OnRankLeft(const Job& job, int rank) {
  News& news = Of(job);
  news.left.insert(rank);
  news.untold.add_left(rank);
  untold_.insert(job.id());
}

void PeerNews::OnRankLost(const Job& job, int rank, const std::string& reason) {
  News& news = Of(job);
  news.lost[rank] = reason;
  // After the first cause, or once all are told to end, nobody needs the words of each death.
  if (job.stopping() || (job.failed() && job.view.failure().rank() != rank)) {
    news.untold.add_ended(rank);
  } else {
    AddLost(rank, reason, &news.untold);
  }
  untold_.insert(job.id());
}

void PeerNews::OnVerdict(const Job& job, v1::WaitVerdict verdict) {
  News& news = Of(job);
  verdict.set_number(context_.term << 32 | ++verdicts_);
  *news.untold.add_verdicts() = verdict;
  news.verdicts.push_back(std::move(verdict));
  if (news.verdicts.size() > kMostVerdicts) news.verdicts.pop_front();
  untold_.insert(job.id());
}

void PeerNews::Tell(const Job& job) {
  untold_.erase(job.id());
  const auto found = news_.find(job.id());
  if (found == news_.end()) return;
  const v1::PeerNews news = std::exchange(found->second.untold, v1::PeerNews());
  found->second.told = context_.now;
  for (const Member& member : job.members) {
    const Node* const node = nodes_.Find(member.node_id);
    if (!member.ended && node != nullptr) Send(job, *node, news);
  }
}

SteadyNanos PeerNews::GatherUntil(const Job& job) const {
  const auto found = news_.find(job.id());
  const bool urgent =
      found == news_.end() || found->second.untold.verdicts_size() > 0 ||
      (found->second.untold.lost_size() > 0 && job.view.state() != v1::JOB_STATE_QUIESCING);
  if (urgent || job.members.size() <= kFewHosts) return context_.now;
  const size_t hosts = job.members.size();
  const auto gather = hosts * kGatherPerHost * std::max(hosts, kManyHosts) / kManyHosts;
  return found->second.told + std::min<SteadyNanos>(gather, kLongestGather);
}

void PeerNews::TellAll() {
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

void PeerNews::OnNodeReturned(const Job& job, const Node& node) {
  const News& known = Of(job);
  if (known.left.empty() && known.lost.empty() && known.verdicts.empty()) return;
  v1::PeerNews gone;
  gone.mutable_left()->Add(known.left.begin(), known.left.end());
  for (const auto& [rank, reason] : known.lost) {
    const bool in_words = known.lost.size() <= kFewLost || rank == job.view.failure().rank();
    in_words ? AddLost(rank, reason, &gone) : gone.add_ended(rank);
  }
  gone.mutable_verdicts()->Add(known.verdicts.begin(), known.verdicts.end());
  Send(job, node, gone);
}

void PeerNews::EndGeneration(const Job& job) {
  news_.erase(job.id());
  untold_.erase(job.id());
}

void PeerNews::Send(const Job& job, const Node& node, const v1::PeerNews& news) {
  if (node.session_id == 0) return;
  v1::OpenSessionResponse message = MessageTo(node, job.id(), job.view.generation());
  *message.mutable_peer_news() = news;
  context_.Send(node.session_id, std::move(message));
}

std::optional<SteadyNanos> PeerNews::NextDeadline() const {
  std::optional<SteadyNanos> next;
  for (const std::string& job_id : untold_) {
    const Job* const job = jobs_.Find(job_id);
    if (job == nullptr) continue;
    const SteadyNanos due = GatherUntil(*job);
    if (!next || due < *next) next = due;
  }
  return next;
}

}  // namespace meshrun::coordinator
