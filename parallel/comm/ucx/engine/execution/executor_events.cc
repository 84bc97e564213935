// What comes from outside, and what fails for it.
#include <algorithm>
#include <utility>
#include <variant>

#include "parallel/comm/ucx/engine/execution/executor.h"

namespace meshrun::ucx {

void Executor::found(uint32_t number, int rank, std::optional<AddressRecord> record,
                     const std::string& reason) {
  MemberGroup* const g = find(number);
  if (g == nullptr || closed_) return;
  now_ = clock_.SteadyNow();
  if (std::optional<Failure> refusal = Connections::refusal(*g, rank, record, reason)) {
    return fail_group(*g, *std::move(refusal));
  }
  if (std::optional<Failure> mismatch = connections_.connect(*g, rank, *record)) {
    fail_group(*g, *std::move(mismatch));
  }
  // Others were told when it failed.
  if (g->failure) return control_.send_failure(*g, rank);
  timeouts_.answer_if_asked(*g, rank);
  timeouts_.ask_member(*g, rank);
  for (const OperationPtr& operation : g->unfinished()) {
    if (operation->state != OperationState::kConnecting) continue;
    std::erase(operation->unknown, rank);
    if (operation->unknown.empty()) start(*operation);
  }
  steps_.run();
}

void Executor::heard(const PeerNews& news) {
  now_ = clock_.SteadyNow();
  if (const auto* stopping = std::get_if<Stopping>(&news)) {
    return liveness_.stopping(stopping->reason);
  }
  if (const auto* superseded = std::get_if<Superseded>(&news)) {
    return liveness_.superseded(superseded->reason, now_);
  }
  if (const auto* verdict = std::get_if<WaitVerdict>(&news)) return decided(*verdict);
  if (const auto* lost = std::get_if<PeerLost>(&news)) {
    liveness_.lost(lost->world_rank, lost->reason, now_);
  } else {
    liveness_.left(std::get<PeerLeft>(news).world_rank, now_);
  }
  look_for_the_dead();
}

void Executor::abort(uint32_t number, const Failure& failure) {
  if (MemberGroup* const g = find(number)) fail_group(*g, failure);
}

void Executor::leave(uint32_t number, const Failure& failure) {
  MemberGroup* const g = find(number);
  if (g == nullptr || g->failure) return;
  g->failure = failure;
  for (const OperationPtr& operation : g->unfinished()) end_operation(*operation, failure);
  control_.send_left(*g);
}

void Executor::control_received(const ControlMessage& message) {
  const ControlHead& head = message.head;
  // Also of a group that is gone here.
  if (head.type == ControlHead::kFailure) zombies_.give_back(message.group, message.sender);
  MemberGroup* const g = find(message.group);
  if (g == nullptr || message.sender >= g->config->size) return;
  switch (head.type) {
    case ControlHead::kFailure:
      g->members[message.sender].touches_no_more = true;
      if (message.failure) fail_group(*g, *message.failure);
      break;
    case ControlHead::kQuestion:
      timeouts_.asked(*g, message.sender, head.sequence);
      break;
    case ControlHead::kAnswer:
      timeouts_.answered(*g, message.sender, head, now_);
      break;
    case ControlHead::kLeft:
      g->members[message.sender].left = now_;
      liveness_.left_group(now_);
      break;
  }
}

void Executor::fail_group(MemberGroup& g, Failure failure) {
  if (g.failure) return;
  failure.group_survives = false;
  g.failure = std::move(failure);
  for (const OperationPtr& operation : g.unfinished()) end_operation(*operation, *g.failure);
  control_.send_failure(g);
  if (g.failure->kind != FailureKind::kAborted) {
    actions_.make_seldom().dumps.push_back(g.recorder.to_json());
  }
  look_for_the_dead();
}

void Executor::check_timeouts() {
  for (const OperationPtr& operation : timeouts_.due(groups_, now_)) {
    if (operation->is_ended() || timeouts_.ask_members(*operation, now_)) continue;
    fail_group(*operation->group, Timeouts::failure(*operation, liveness_.stopping_sentence()));
  }
}

void Executor::check_gone() {
  liveness_.begin_checks();
  for (const auto& [number, g] : groups_) {
    if (std::optional<Failure> failure = liveness_.check(*g, now_)) {
      fail_group(*g, *std::move(failure));
    }
  }
}

void Executor::look_for_the_dead() {
  if (liveness_.is_anyone_gone()) zombies_.look_for_the_dead(now_);
}

void Executor::decided(const WaitVerdict& verdict) {
  for (const auto& [number, g] : groups_) {
    if (g->failure) continue;
    const std::optional<GroupVerdict> found = verdict_on(*g, verdict);
    if (!found) continue;
    for (const OperationPtr& operation : g->unfinished()) {
      if (found->ends(*operation) && !operation->is_ended()) {
        end_operation(*operation, found->failure);
      }
    }
    if (found->resume_at > 0) {
      g->last_sequence = std::max(g->last_sequence, found->resume_at - 1);
    }
  }
  steps_.run();
}

}  // namespace meshrun::ucx
