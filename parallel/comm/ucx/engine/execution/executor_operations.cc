// An operation from its start to its end.
#include <utility>

#include "fmt/format.h"
#include "parallel/comm/ucx/engine/execution/executor.h"
#include "parallel/comm/ucx/engine/values/tag.h"

namespace meshrun::ucx {

void Executor::start_queued(MemberGroup& g) {
  // An operation that ends while it starts comes back here.
  if (std::exchange(g.is_starting, true)) return;
  while (const OperationPtr operation = g.start_next()) start(*operation);
  g.is_starting = false;
}

void Executor::enter(RunningOperation& operation, OperationState state) {
  operation.state = state;
  operation.group->recorder.advance(operation.ticket, state, now_);
}

void Executor::start(RunningOperation& operation) {
  operation.unknown = connections_.missing(operation);
  connections_.look_up(*operation.group, operation.unknown);
  // A receive is posted at once: its place among receives from any rank is that of its submission.
  if (!operation.unknown.empty() && !operation.is_receive()) {
    return enter(operation, OperationState::kConnecting);
  }
  if (!operation.is_point_to_point && operation.schedule != nullptr) {
    operation.steps.resize(operation.schedule->steps.size());
    operation.scratch = scratch_.take(operation.schedule->scratch_bytes);
    offers_.prepare(operation);
  }
  if (operation.is_point_to_point || !operation.config->check_headers) {
    return begin_moving(operation);
  }
  enter(operation, OperationState::kChecking);
  advance(operation, headers_.begin(operation));
}

void Executor::advance(RunningOperation& operation, HeaderRounds::State headers) {
  switch (headers) {
    case HeaderRounds::State::kUnderWay:
      return;
    case HeaderRounds::State::kAgree:
      return begin_moving(operation);
    case HeaderRounds::State::kDisagree:
      return finish_if_done(operation);
  }
}

void Executor::begin_moving(RunningOperation& operation) {
  enter(operation, OperationState::kMoving);
  if (operation.is_point_to_point) return steps_.post_point_to_point(operation);
  if (operation.spec.signature.flags & kHasProblem) {
    // Headers are not compared, so nobody else knows.
    const int rank = operation.config->rank;
    return fail_group(*operation.group, {FailureKind::kInvalidArgument,
                                         fmt::format("{} has wrong arguments on rank {}: {}",
                                                     operation.name(), rank, operation.words()),
                                         {rank}});
  }
  steps_.begin(operation);
  finish_if_done(operation);
}

void Executor::message_done(RunningOperation& operation, const Request& request) {
  // A header that is lost is missed by the rank that waits for it.
  if (request.step & (kHeaderSend | kOfferSend)) return finish_if_done(operation);
  if (request.status == MessageStatus::kFailed) return connection_broke(operation, request);
  if (request.step & kHeaderReceive) {
    return advance(operation, headers_.received(operation, request));
  }
  if (request.step & kOfferReceive) {
    if (!offers_.received(operation, request)) return finish_if_done(operation);
    return steps_.offer_known(operation, request.step & kStepMask);
  }
  if (!steps_.message_done(operation, request)) wrong_length(operation, request);
}

void Executor::connection_broke(RunningOperation& operation, const Request& request) {
  int rank;
  if (request.step & kHeaderReceive) {
    rank = operation.check->receive_from(operation.round);
  } else {
    rank = operation.peer_of(request.step & kStepMask);
    // From any rank: from another one, then.
    if (rank < 0) return steps_.post_point_to_point(operation);
    operation.steps[request.step & kStepMask].phase = StepState::kBroken;
  }
  // What is open is ended by check_gone(): by then a better reason may be known.
  liveness_.connection_broke(operation.group->members[rank].world_rank, "", now_);
  look_for_the_dead();
}

void Executor::wrong_length(RunningOperation& operation, const Request& request) {
  const bool is_longer = request.status != MessageStatus::kOk;
  int rank = operation.peer_of(request.step);
  if (rank < 0 && !is_longer) rank = sender_of(request.tag);
  const int64_t expected = operation.bytes_of(request.step);
  const int own = operation.config->rank;
  Failure failure{FailureKind::kMismatch,
                  fmt::format("{}: rank {} expects {} bytes, and {} sent {}", operation.name(), own,
                              expected, rank < 0 ? "a rank" : fmt::format("rank {}", rank),
                              is_longer ? "more" : fmt::format("{}", request.bytes)),
                  {own}};
  if (rank >= 0) failure.ranks.push_back(rank);
  operation.steps[request.step].phase = StepState::kFinished;
  if (!operation.is_point_to_point) return fail_group(*operation.group, std::move(failure));
  failure.group_survives = true;
  end_operation(operation, std::move(failure));
}

void Executor::finish_if_done(RunningOperation& operation) {
  if (operation.outstanding > 0) return;
  if (operation.disagreement) return end_operation(operation, operation.disagreement);
  if (operation.state != OperationState::kMoving || operation.steps_left > 0) return;
  int source = -1;
  if (operation.is_receive()) source = sender_of(operation.steps[0].request.tag);
  end_operation(operation, std::nullopt, source);
}

void Executor::end_operation(RunningOperation& operation, std::optional<Failure> failure,
                             int source) {
  const OperationPtr self = operation.shared_from_this();
  MemberGroup& g = *operation.group;
  if (failure) requests_.cancel_receives(operation);
  enter(operation, failure ? OperationState::kFailed : OperationState::kDone);
  operation.group = nullptr;
  --unfinished_;
  if (operation.drive == Drive::kThread) --unfinished_for_thread_;
  steps_.forget(operation);
  for (size_t rank = 0; rank < g.members.size() && operation.has_lent(); ++rank) {
    if (g.members[rank].touches_no_more) operation.give_back(static_cast<int>(rank));
  }
  zombies_.add(self);
  // From here on nothing that keeps its memory needs memory: it is always in one of the two lists.
  g.remove(self);
  operation.end(std::move(failure), source);
  actions_.finished.push_back(self);
  if (!g.failure) start_queued(g);
}

}  // namespace meshrun::ucx
