// Every way to end badly: timeouts, ranks that are gone, verdicts, groups that fail.
#include <algorithm>
#include <chrono>
#include <utility>

#include "fmt/format.h"
#include "parallel/comm/ucx/engine/execution/executor_impl.h"

namespace meshrun::ucx {
namespace {

double seconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

}  // namespace

void Executor::Impl::end_operation(RunningOperation& operation, std::optional<Failure> failure,
                                   int source) {
  const OperationPtr self = operation.shared_from_this();
  MemberGroup& g = *std::exchange(operation.group, nullptr);
  if (operation.is_point_to_point) {
    g.point_to_point.erase(operation.sequence());
  } else if (std::erase(g.collectives, self) == 0) {
    std::erase(g.queued, self);
  }
  if (failure) cancel_receives(operation);
  operation.state = failure ? OperationState::kFailed : OperationState::kDone;
  g.recorder.advance(operation.ticket, operation.state, now_);
  --unfinished_;
  if (operation.drive == Drive::kThread) --unfinished_for_thread_;
  forget_ready(operation);
  for (size_t rank = 0; rank < g.members.size() && operation.has_lent(); ++rank) {
    if (g.members[rank].writes_no_more) operation.give_back(static_cast<int>(rank));
  }
  if (operation.outstanding > 0 || operation.has_lent()) {
    zombies_[&operation] = self;
  } else {
    release(operation);
  }
  operation.end(std::move(failure), source);
  actions_.finished.push_back(self);
  if (!g.failure) start_queued(g);
}

template <typename Change>
void Executor::Impl::bury(Change is_changed) {
  for (auto entry = zombies_.begin(); entry != zombies_.end();) {
    const OperationPtr operation = (entry++)->second;
    if (!is_changed(*operation) || operation->outstanding > 0 || operation->has_lent()) continue;
    actions_.memory.push_back(operation);
    release(*operation);
    zombies_.erase(operation.get());
  }
}

void Executor::Impl::give_back_memory(uint32_t group, int sender) {
  bury([&](RunningOperation& operation) {
    return operation.group_number == group && operation.give_back(sender);
  });
}

// News of a death may come before the kernel has ended the last of its threads, or be wrong: of a
// host that was only out of reach, of a connection. The kernel has the last word.
void Executor::Impl::give_back_memory_of_the_dead() {
  next_look_for_the_dead_ = SteadyNanos::max();
  if (gone_.empty()) return;
  bury([](RunningOperation& operation) { return operation.give_back_of_the_dead(); });
  const auto lends = [](const auto& entry) { return entry.second->has_lent(); };
  if (std::ranges::any_of(zombies_, lends)) next_look_for_the_dead_ = now_ + kGrace;
}

void Executor::Impl::release(RunningOperation& operation) {
  std::shared_ptr<void>& memory =
      operation.is_point_to_point ? operation.point_to_point.keep_alive : operation.spec.keep_alive;
  // Not `memory != nullptr`: an owner of something else may hold a null pointer.
  if (memory.use_count() > 0) actions_.memory.push_back(std::exchange(memory, nullptr));
  return_scratch(std::exchange(operation.scratch, {}));
  operation.filled.clear();
}

void Executor::Impl::cancel_receives(RunningOperation& operation) {
  if (operation.outstanding == 0) return;
  if (!is_dispatching_) return cancel_open_receives(operation);
  to_cancel_.push_back(operation.shared_from_this());
}

void Executor::Impl::cancel_open_receives(RunningOperation& operation) {
  if (operation.check && operation.round < operation.check->rounds() &&
      operation.header().is_receiving) {
    transport_->cancel(operation.header().receive);
  }
  for (StepId id = 0; id < operation.steps.size(); ++id) {
    StepState& step = operation.steps[id];
    if (step.phase == StepState::kPosted && !operation.is_send(id)) {
      transport_->cancel(step.request);
    }
  }
  cancel_offers(operation);
}

void Executor::Impl::cancel_offers(RunningOperation& operation) {
  for (Offer& offer : operation.offers) {
    if (offer.state == Offer::kUnderWay) transport_->cancel(offer.request);
  }
}

void Executor::Impl::fail_group(MemberGroup& g, Failure failure) {
  if (g.failure) return;
  failure.group_survives = false;
  g.failure = std::move(failure);
  for (const OperationPtr& operation : g.unfinished()) end_operation(*operation, *g.failure);
  const std::string bytes = serialize(*g.failure);
  for (int rank = 0; rank < g.config->size; ++rank) {
    if (rank == g.config->rank || g.members[rank].state != Member::kKnown) continue;
    send_control(g, rank, {ControlHead::kFailure, 0, 0}, bytes);
  }
  if (g.failure->kind != FailureKind::kAborted) actions_.dumps.push_back(g.recorder.to_json());
  give_back_memory_of_the_dead();
}

std::vector<int> Executor::Impl::missing_ranks(const RunningOperation& operation) const {
  const GroupConfig& config = *operation.config;
  std::vector<bool> missing(config.size);
  switch (operation.state) {
    case OperationState::kConnecting:
      return operation.unknown;
    case OperationState::kChecking:
      if (operation.round < operation.check->rounds()) {
        missing[operation.check->receive_from(operation.round)] = true;
      }
      break;
    case OperationState::kMoving:
      if (operation.is_point_to_point) {
        const int peer = operation.point_to_point.peer;
        if (peer >= 0) return {peer};
        missing.assign(config.size, true);
        missing[config.rank] = false;
        break;
      }
      for (StepId id = 0; id < operation.steps.size(); ++id) {
        const StepState::Phase phase = operation.steps[id].phase;
        if (phase == StepState::kPosted || phase == StepState::kBroken) {
          missing[operation.step(id).peer] = true;
        }
      }
      break;
    default:
      break;
  }
  std::vector<int> ranks;
  for (int rank = 0; rank < config.size; ++rank) {
    if (missing[rank]) ranks.push_back(rank);
  }
  return ranks;
}

// ---- Timeouts

void Executor::Impl::check_deadlines() {
  next_deadline_ = SteadyNanos::max();
  std::vector<OperationPtr> due;
  for (const auto& [number, g] : groups_) {
    for (const OperationPtr& operation : g->unfinished()) {
      if (operation->deadline <= now_) {
        due.push_back(operation);
      } else {
        next_deadline_ = std::min(next_deadline_, operation->deadline);
      }
    }
  }
  for (const OperationPtr& operation : due) {
    if (!operation->is_ended()) expire(*operation);
  }
}

void Executor::Impl::expire(RunningOperation& operation) {
  if (!operation.is_point_to_point && operation.answers.empty() && ask_members(operation)) {
    operation.deadline = now_ + kAskFor;
    next_deadline_ = std::min(next_deadline_, operation.deadline);
    return;
  }
  MemberGroup& g = *operation.group;
  std::vector<int> ranks;
  std::string text = timeout_text(operation, &ranks);
  fail_group(g, {FailureKind::kTimeout, std::move(text), std::move(ranks)});
}

bool Executor::Impl::ask_members(RunningOperation& operation) {
  MemberGroup& g = *operation.group;
  operation.answers.assign(g.members.size(), -1);
  operation.answers[g.config->rank] = static_cast<int64_t>(g.last_sequence);
  std::vector<int> unknown;
  for (int rank = 0; rank < g.config->size; ++rank) {
    if (rank == g.config->rank) continue;
    if (g.members[rank].state == Member::kKnown) {
      send_control(g, rank, {ControlHead::kQuestion, operation.sequence(), 0});
    } else {
      unknown.push_back(rank);
    }
  }
  look_up(g, unknown);
  return g.config->size > 1;
}

void Executor::Impl::answered(MemberGroup& g, int rank, const ControlHead& head) {
  for (const OperationPtr& operation : g.unfinished()) {
    std::vector<int64_t>& answers = operation->answers;
    if (operation->sequence() != head.sequence || answers.empty()) continue;
    answers[rank] = static_cast<int64_t>(head.called);
    if (std::count(answers.begin(), answers.end(), -1) > 0) continue;
    // All have called it: it has the time that is left.
    if (*std::min_element(answers.begin(), answers.end()) >=
        static_cast<int64_t>(operation->sequence())) {
      continue;
    }
    operation->deadline = now_;
    next_deadline_ = now_;
  }
}

std::string Executor::Impl::timeout_text(const RunningOperation& operation,
                                         std::vector<int>* ranks) const {
  const MemberGroup& g = *operation.group;
  std::vector<int64_t> called = operation.answers;
  std::vector<int> silent;
  for (int rank = 0; rank < static_cast<int>(called.size()); ++rank) {
    if (called[rank] < 0) silent.push_back(rank);
    called[rank] = std::max(called[rank], static_cast<int64_t>(g.members[rank].last_called));
    if (called[rank] < static_cast<int64_t>(operation.sequence())) ranks->push_back(rank);
  }
  const bool some_have_not_called = !ranks->empty() && operation.state < OperationState::kMoving;
  // Several ranks may find that out at once: they say the same.
  std::string text =
      fmt::format("{} timed out{} after {:g} s: ", operation.name(),
                  some_have_not_called ? "" : fmt::format(" on rank {}", g.config->rank),
                  seconds(operation.timeout));
  if (some_have_not_called) {
    text += fmt::format("{} {} not called it", ranks_in_words(*ranks),
                        ranks->size() == 1 ? "has" : "have");
    if (ranks->size() == 1) {
      const int64_t last = called[ranks->front()];
      text += last > 0 ? fmt::format("; its last here was number {}", last)
              : operation.answers[ranks->front()] == 0 ? "; it has called nothing here yet"
                                                       : "; nothing was ever heard of it here";
    }
    text += ranks->size() == 1 ? ". See its log." : ". See their logs.";
  } else {
    *ranks = missing_ranks(operation);
    if (operation.state == OperationState::kQueued) {
      text += fmt::format("it is behind {} others that have not ended", g.collectives.size());
    } else if (operation.is_point_to_point) {
      text += operation.point_to_point.peer < 0 ? "no other rank" : ranks_in_words(*ranks);
      text += operation.is_send()                 ? " has not received it"
              : operation.point_to_point.peer < 0 ? " has sent it"
                                                  : " has not sent it";
    } else {
      text += fmt::format("all have called it, and it waits for {}", ranks_in_words(*ranks));
      if (!silent.empty()) text += fmt::format("; no answer from {}", ranks_in_words(silent));
    }
    text += ".";
  }
  if (!stopping_.empty()) text += fmt::format(" The job is stopping: {}.", stopping_);
  return text;
}

// ---- Ranks that are gone

void Executor::Impl::heard(const PeerNews& news) {
  now_ = clock_.SteadyNow();
  if (const auto* lost = std::get_if<PeerLost>(&news)) {
    gone(lost->world_rank, false, lost->reason);
  } else if (const auto* left = std::get_if<PeerLeft>(&news)) {
    gone(left->world_rank, true, "");
  } else if (const auto* stopping = std::get_if<Stopping>(&news)) {
    stopping_ = stopping->reason;
  } else {
    decided(std::get<WaitVerdict>(news));
  }
}

void Executor::Impl::broken(PeerId peer, const std::string& reason) {
  const auto found = world_rank_of_.find(peer);
  if (found == world_rank_of_.end()) return;
  gone(found->second, false, fmt::format("its connection broke: {}", reason));
}

// The watch knows better why than a connection does, and may say it later; who leaves breaks its
// connections, too.
void Executor::Impl::gone(int world_rank, bool left, const std::string& reason) {
  const auto [entry, is_new] = gone_.try_emplace(world_rank, Gone{left, reason, now_});
  const bool is_of_connection = reason.starts_with("its connection");
  if (!is_new && !entry->second.left && (left || !is_of_connection)) {
    entry->second.left = left;
    entry->second.reason = reason;
  }
  next_gone_check_ = std::min(next_gone_check_, now_ + kGrace);
  give_back_memory_of_the_dead();
}

std::optional<SteadyNanos> Executor::Impl::fails_at(const RunningOperation& operation,
                                                    int* rank) const {
  const bool any_will_do = operation.is_receive() && operation.point_to_point.peer < 0;
  std::optional<SteadyNanos> at;
  for (const int missing : missing_ranks(operation)) {
    const auto found = gone_.find(operation.group->members[missing].world_rank);
    if (found == gone_.end()) {
      if (any_will_do) return std::nullopt;
      continue;
    }
    const SteadyNanos due = std::max({found->second.since, operation.moved, resumed_}) + kGrace;
    if (at && (any_will_do ? due <= *at : due >= *at)) continue;
    at = due;
    *rank = missing;
  }
  return at;
}

void Executor::Impl::check_gone() {
  next_gone_check_ = SteadyNanos::max();
  for (const auto& [number, g] : groups_) {
    for (const OperationPtr& operation : g->unfinished()) {
      if (operation->is_ended()) continue;
      int rank = -1;
      const std::optional<SteadyNanos> at = fails_at(*operation, &rank);
      if (!at) continue;
      if (*at <= now_) {
        fail_group(*g, gone_failure(*operation, rank));
      } else {
        next_gone_check_ = std::min(next_gone_check_, *at);
      }
    }
  }
}

Failure Executor::Impl::gone_failure(const RunningOperation& operation, int rank) const {
  const MemberGroup& g = *operation.group;
  const int world_rank = g.members[rank].world_rank;
  const Gone& gone = gone_.at(world_rank);
  std::string who = fmt::format("rank {}", rank);
  if (world_rank != rank) who += fmt::format(" (rank {} of the job)", world_rank);
  std::string text =
      gone.left ? fmt::format("{} left without taking its part in {}.", who, operation.name())
                : fmt::format("{} was lost during {}: {}.", who, operation.name(), gone.reason);
  if (!stopping_.empty()) text += fmt::format(" The job is stopping: {}.", stopping_);
  return {gone.left ? FailureKind::kPeerLeft : FailureKind::kPeerLost, std::move(text), {rank}};
}

void Executor::Impl::decided(const WaitVerdict& verdict) {
  for (const auto& entry : groups_) {
    const std::unique_ptr<MemberGroup>& g = entry.second;
    const auto is_it = [&g](const WaitVerdict::Group& concerned) {
      const auto same = [](int world_rank, const Member& m) { return world_rank == m.world_rank; };
      return concerned.name == g->config->name &&
             std::equal(concerned.members.begin(), concerned.members.end(), g->members.begin(),
                        g->members.end(), same);
    };
    const auto concerned = std::find_if(verdict.groups.begin(), verdict.groups.end(), is_it);
    if (concerned == verdict.groups.end() || g->failure) continue;
    Failure failure{verdict.deadlock ? FailureKind::kDeadlock : FailureKind::kPeerLeft,
                    verdict.message,
                    {},
                    /*group_survives=*/true};
    bool is_named = false;
    for (int rank = 0; rank < g->config->size; ++rank) {
      const int world_rank = g->members[rank].world_rank;
      if (std::count(verdict.ranks.begin(), verdict.ranks.end(), world_rank) == 0) continue;
      failure.ranks.push_back(rank);
      is_named = is_named || rank == g->config->rank;
    }
    for (const OperationPtr& operation : g->unfinished()) {
      const bool ends =
          operation->is_point_to_point ? is_named : operation->sequence() < concerned->resume_at;
      if (ends && !operation->is_ended()) end_operation(*operation, failure);
    }
    if (concerned->resume_at > 0) {
      g->last_sequence = std::max(g->last_sequence, concerned->resume_at - 1);
    }
  }
  run_ready();
}

}  // namespace meshrun::ucx
