#include "parallel/comm/ucx/engine/execution/timeouts.h"

#include <utility>

#include "fmt/format.h"

namespace meshrun::ucx {
namespace {

double seconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

// What to say of an operation that not all ranks have called.
std::string who_has_not_called(const RunningOperation& operation, const std::vector<int>& ranks,
                               const std::vector<int64_t>& called) {
  const bool is_one = ranks.size() == 1;
  std::string text =
      fmt::format("{} {} not called it", ranks_in_words(ranks), is_one ? "has" : "have");
  if (is_one) {
    const int64_t last = called[ranks.front()];
    text += last > 0 ? fmt::format("; its last here was number {}", last)
            : operation.answers[ranks.front()] == 0 ? "; it has called nothing here yet"
                                                    : "; nothing was ever heard of it here";
  }
  return text + (is_one ? ". See its log." : ". See their logs.");
}

// What to say of an operation that all ranks have called, or of a send or receive.
std::string who_is_missing(const RunningOperation& operation, const std::vector<int>& ranks,
                           const std::vector<int>& silent) {
  if (operation.state == OperationState::kQueued) {
    return fmt::format("it is behind {} others that have not ended.",
                       operation.group->collectives.size());
  }
  if (operation.is_point_to_point) {
    const bool is_any = operation.point_to_point.peer < 0;
    return fmt::format("{} {}.", is_any ? "no other rank" : ranks_in_words(ranks),
                       operation.is_send() ? "has not received it"
                       : is_any            ? "has sent it"
                                           : "has not sent it");
  }
  std::string text = fmt::format("all have called it, and it waits for {}", ranks_in_words(ranks));
  if (!silent.empty()) text += fmt::format("; no answer from {}", ranks_in_words(silent));
  return text + ".";
}

}  // namespace

std::vector<OperationPtr> Timeouts::due(const Groups& groups, SteadyNanos now) {
  next_ = SteadyNanos::max();
  std::vector<OperationPtr> due;
  for (const auto& [number, g] : groups) {
    for (OperationPtr& operation : g->unfinished()) {
      if (operation->deadline <= now) {
        due.push_back(std::move(operation));
      } else {
        watch(operation->deadline);
      }
    }
  }
  return due;
}

bool Timeouts::ask_members(RunningOperation& operation, SteadyNanos now) {
  MemberGroup& g = *operation.group;
  if (operation.is_point_to_point || !operation.answers.empty()) return false;
  operation.answers.assign(g.members.size(), -1);
  operation.answers[g.config->rank] = static_cast<int64_t>(g.last_sequence);
  std::vector<int> unknown;
  for (int rank = 0; rank < g.config->size; ++rank) {
    if (rank == g.config->rank) continue;
    if (g.members[rank].state == Member::kKnown) {
      control_.send(g, rank, {ControlHead::kQuestion, operation.sequence()});
    } else {
      unknown.push_back(rank);
    }
  }
  connections_.look_up(g, unknown);
  if (g.config->size == 1) return false;
  operation.deadline = now + kAskFor;
  watch(operation.deadline);
  return true;
}

void Timeouts::ask_member(MemberGroup& g, int rank) {
  for (const OperationPtr& operation : g.unfinished()) {
    if (operation->answers.empty()) continue;
    control_.send(g, rank, {ControlHead::kQuestion, operation->sequence()});
  }
}

void Timeouts::asked(MemberGroup& g, int rank, uint64_t sequence) {
  g.members[rank].asks_about = sequence;
  if (g.members[rank].state == Member::kKnown) return answer_if_asked(g, rank);
  connections_.look_up(g, {rank});
}

void Timeouts::answer_if_asked(MemberGroup& g, int rank) {
  if (const uint64_t about = std::exchange(g.members[rank].asks_about, 0)) {
    control_.send(g, rank, {ControlHead::kAnswer, about, g.last_sequence});
  }
}

void Timeouts::answered(MemberGroup& g, int rank, const ControlHead& answer, SteadyNanos now) {
  for (const OperationPtr& operation : g.unfinished()) {
    std::vector<int64_t>& answers = operation->answers;
    if (operation->sequence() != answer.sequence || answers.empty()) continue;
    answers[rank] = static_cast<int64_t>(answer.called);
    if (std::count(answers.begin(), answers.end(), -1) > 0) continue;
    // All have called it: it has the time that is left.
    if (*std::min_element(answers.begin(), answers.end()) >=
        static_cast<int64_t>(operation->sequence())) {
      continue;
    }
    operation->deadline = now;
    next_ = now;
  }
}

Failure Timeouts::failure(const RunningOperation& operation, const std::string& suffix) {
  const MemberGroup& g = *operation.group;
  std::vector<int64_t> called = operation.answers;
  std::vector<int> ranks, silent;
  for (int rank = 0; rank < static_cast<int>(called.size()); ++rank) {
    if (called[rank] < 0) silent.push_back(rank);
    called[rank] = std::max(called[rank], static_cast<int64_t>(g.members[rank].last_called));
    if (called[rank] < static_cast<int64_t>(operation.sequence())) ranks.push_back(rank);
  }
  const bool some_have_not_called = !ranks.empty() && operation.state < OperationState::kMoving;
  if (!some_have_not_called) ranks = operation.missing_ranks();
  // Several ranks may find that out at once: they say the same.
  std::string text =
      fmt::format("{} timed out{} after the timeout of {:g} s: ", operation.name(),
                  some_have_not_called ? "" : fmt::format(" on rank {}", g.config->rank),
                  seconds(operation.timeout));
  text += some_have_not_called ? who_has_not_called(operation, ranks, called)
                               : who_is_missing(operation, ranks, silent);
  return {FailureKind::kTimeout, text + suffix, std::move(ranks)};
}

}  // namespace meshrun::ucx
