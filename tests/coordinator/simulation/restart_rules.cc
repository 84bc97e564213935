// The rules of what outlives a process: the coordinator's own, and a worker's session.
#include <fmt/format.h>

#include <variant>

#include "tests/coordinator/simulation/rules.h"

namespace meshrun::coordinator::simulation {

void Rules::OnRestored(const StateMachine& machine) {
  told_.clear();
  stepping_ = 0;
  placed_ = 0;
  for (auto& [id, facts] : facts_) {
    const auto it = machine.jobs().all().find(id);
    if (it == machine.jobs().all().end()) {
      ledger_->Fail(id + " is forgotten by a restart of the coordinator");
      continue;
    }
    const Job& job = it->second;
    const v1::Job& view = job.view;
    const bool same = view.generation() == facts.generation && view.restarts() == facts.restarts &&
                      view.restarts_charged() == facts.restarts_charged &&
                      job.record.cancel_requested() == facts.cancel_requested &&
                      view.failure().SerializeAsString() == facts.failure;
    if (!same) {
      ledger_->Fail(fmt::format(
          "{} had generation {}, {} restarts, {} charged, and is restored with {}, {}, {}: or its "
          "failure or its cancel is not durable",
          id, facts.generation, facts.restarts, facts.restarts_charged, view.generation(),
          view.restarts(), view.restarts_charged()));
    }
    if (facts.state == v1::JOB_STATE_RENDEZVOUS || facts.state == v1::JOB_STATE_ADMITTED) continue;
    CheckRow(machine, job, facts, "has restored");
    if (view.state() != facts.state) {
      ledger_->Fail(fmt::format("{} was {} and is restored as {}", id, StateName(facts.state),
                                StateName(view.state())));
    }
    CheckRestoredMembers(job, facts);
  }
}

void Rules::OnStaleCommit(uint64_t term, uint64_t newest) {
  ledger_->Fail(fmt::format("a coordinator of term {} writes in term {}", term, newest));
}

void Rules::CheckRestoredMembers(const Job& job, const Facts& facts) {
  for (size_t i = 0; i < facts.members.size(); ++i) {
    if (i < job.members.size() && Known(job.members[i]) == facts.members[i]) continue;
    ledger_->Fail(fmt::format("member {} of {} on {} is not restored as it was", i, job.id(),
                              facts.members[i].node_id));
  }
  size_t same = 0;
  for (const LeavingMember& leaving : job.leaving) {
    const auto before = facts.leaving.find({leaving.generation, leaving.node_rank});
    if (before == facts.leaving.end()) continue;
    KnownMember now = Known(leaving.member);
    now.ended = before->second.ended;
    same += now == before->second;
  }
  if (same == facts.leaving.size()) return;
  ledger_->Fail(fmt::format("{} of the {} members that leave {} are restored as they were", same,
                            facts.leaving.size(), job.id()));
}

void Rules::OnStepped(const StateMachine& machine, const std::vector<v1::StateEvent>& batch,
                      const std::vector<Action>& actions) {
  CheckTraining(machine, batch);
  for (const v1::StateEvent& event : batch) {
    const v1::SessionMessage& said = event.session_message();
    if (!said.message().has_hello()) continue;
    const v1::Hello& hello = said.message().hello();
    const auto node = machine.nodes().all().find(hello.node_id());
    // Its Hello was refused, or the session is over.
    if (node == machine.nodes().all().end() || node->second.session_id != said.session_id()) {
      continue;
    }
    for (const v1::RunningGeneration& running : hello.running()) {
      const auto it = machine.jobs().all().find(running.job_id());
      if (it == machine.jobs().all().end() || running.ended()) continue;
      const Job& job = it->second;
      const auto place = job.member_by_node.find(hello.node_id());
      const bool runs =
          job.view.state() == v1::JOB_STATE_RUNNING || job.view.state() == v1::JOB_STATE_QUIESCING;
      if (!runs || job.view.generation() != running.generation() ||
          place == job.member_by_node.end() || job.members[place->second].ended) {
        continue;
      }
      CheckNews(job, said.session_id(), actions);
    }
  }
}

// A host that returns hears which ranks of its generation are gone, from whichever coordinator.
void Rules::CheckNews(const Job& job, uint64_t session_id, const std::vector<Action>& actions) {
  std::set<int> told;
  for (const Action& action : actions) {
    const auto* const send = std::get_if<SendToSession>(&action);
    if (send == nullptr || send->session_id != session_id ||
        send->message.fence().job_id() != job.id() ||
        send->message.fence().generation() != job.view.generation()) {
      continue;
    }
    const v1::PeerNews& news = send->message.peer_news();
    told.insert(news.left().begin(), news.left().end());
    told.insert(news.ended().begin(), news.ended().end());
    for (const v1::RankLost& lost : news.lost()) told.insert(lost.rank());
  }
  for (const v1::RankStatus& rank : job.view.ranks()) {
    const bool gone = rank.state() == v1::RANK_STATE_EXITED || rank.state() == v1::RANK_STATE_LOST;
    if (!gone || told.contains(rank.assignment().rank())) continue;
    ledger_->Fail(
        fmt::format("a host returns with ranks of generation {} of {}, and is not told "
                    "that rank {} is gone",
                    job.view.generation(), job.id(), rank.assignment().rank()));
  }
}

}  // namespace meshrun::coordinator::simulation
