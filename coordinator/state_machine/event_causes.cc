#include "coordinator/state_machine/event_causes.h"

#include <string_view>

namespace meshrun::coordinator {
namespace {

// How an event of a job changes the job's open cause.
enum class Kind {
  // Opens one where none is open; else it is a consequence.
  kFailure,
  // Somebody, or the clock, wants another course: opens a new one.
  kRequest,
  // Follows from the open one, by itself.
  kEffect,
  // Was done about the open one.
  kAction,
  // The same, and closes it.
  kEnd,
};

struct Named {
  std::string_view name;
  Kind kind;
};

constexpr Named kJobEvents[] = {
    {"RankFailed", Kind::kFailure},      {"NodeFailed", Kind::kFailure},
    {"PrepareFailed", Kind::kFailure},   {"RanksWaitInVain", Kind::kFailure},
    {"HangSuspected", Kind::kFailure},   {"RankHung", Kind::kFailure},
    {"HangStacks", Kind::kEffect},       {"StepsGoOn", Kind::kEnd},
    {"CancelRequested", Kind::kRequest}, {"JobPreempted", Kind::kRequest},
    {"JobMoved", Kind::kRequest},        {"TimeLimitReached", Kind::kRequest},
    {"JobGrows", Kind::kRequest},        {"GenerationStarted", Kind::kEnd},
    {"JobSucceeded", Kind::kEnd},        {"JobFailed", Kind::kEnd},
    {"JobCancelled", Kind::kEnd},
};

// Events of a node alone: kFailure opens a cause, kEnd closes it.
constexpr Named kNodeEvents[] = {
    {"NodeSuspect", Kind::kFailure},  {"NodeLost", Kind::kFailure},    {"NodeLeft", Kind::kFailure},
    {"NodeDraining", Kind::kFailure}, {"NodeDrained", Kind::kFailure}, {"NodeReturned", Kind::kEnd},
    {"NodeJoined", Kind::kEnd},       {"NodeUndrained", Kind::kEnd},   {"NodeRemoved", Kind::kEnd},
};

template <size_t kSize>
Kind KindOf(const Named (&table)[kSize], std::string_view name) {
  for (const Named& named : table) {
    if (named.name == name) return named.kind;
  }
  return Kind::kAction;
}

uint64_t OpenIn(const std::unordered_map<std::string, uint64_t>& open, const std::string& id) {
  const auto it = open.find(id);
  return it == open.end() ? 0 : it->second;
}

}  // namespace

void EventCauses::Link(v1::ClusterEvent& event) {
  const bool of_job = !event.job_id().empty();
  const Kind kind = of_job ? KindOf(kJobEvents, event.kind()) : KindOf(kNodeEvents, event.kind());
  const uint64_t of_node = event.node_id().empty() ? 0 : OpenIn(of_node_, event.node_id());
  const uint64_t open = of_job ? OpenIn(of_job_, event.job_id()) : of_node;
  if (kind == Kind::kRequest || (kind == Kind::kFailure && (!of_job || open == 0))) {
    event.set_role(v1::EVENT_ROLE_CAUSE);
    event.set_cause(of_node);
  } else {
    event.set_role(open == 0                                         ? v1::EVENT_ROLE_FACT
                   : kind == Kind::kFailure || kind == Kind::kEffect ? v1::EVENT_ROLE_CONSEQUENCE
                                                                     : v1::EVENT_ROLE_ACTION);
    event.set_cause(open);
  }
  Remember(event);
}

void EventCauses::Restore(const v1::ClusterEvent& event) { Remember(event); }

void EventCauses::Remember(const v1::ClusterEvent& event) {
  const bool of_job = !event.job_id().empty();
  if (!of_job && event.node_id().empty()) return;
  auto& open = of_job ? of_job_ : of_node_;
  const std::string& id = of_job ? event.job_id() : event.node_id();
  const Kind kind = of_job ? KindOf(kJobEvents, event.kind()) : KindOf(kNodeEvents, event.kind());
  if (event.role() == v1::EVENT_ROLE_CAUSE) {
    open[id] = event.sequence();
  } else if (kind == Kind::kEnd) {
    open.erase(id);
  }
}

}  // namespace meshrun::coordinator
