// Groups, submission, rounds, the end.
#include "parallel/comm/ucx/engine/execution/executor.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "fmt/format.h"
#include "parallel/comm/ucx/engine/execution/wait_reports.h"
#include "parallel/comm/ucx/engine/values/tag.h"

namespace meshrun::ucx {
namespace {

// All ranks are told, through the header. A schedule that is too long for this rank may be none for
// another one, which sends less.
void refuse_if_too_long(OperationSpec& spec) {
  if (spec.schedule == nullptr || spec.schedule->most_messages <= kMaxMessages) return;
  spec.text = [text = std::move(spec.text), messages = spec.schedule->most_messages] {
    return fmt::format(
        "between two ranks it has {} messages, and tags number {}: divide it into several calls{}",
        messages, kMaxMessages, text ? " (" + text() + ")" : std::string());
  };
  spec.signature.flags |= kHasProblem;
  spec.schedule = nullptr;
}
void refuse_if_too_long(const PointToPointSpec&) {}

}  // namespace

Executor::Executor(std::unique_ptr<Transport> transport, const Clock& clock, uint64_t host,
                   SharedHeap* heap, bool watch_sees_ends)
    : transport_(std::move(transport)),
      clock_(clock),
      connections_(*transport_, host, heap, actions_),
      control_(*transport_),
      scratch_(heap, actions_),
      zombies_(scratch_, actions_),
      requests_(*transport_, connections_, counters_),
      headers_(requests_),
      offers_(requests_, counters_, heap),
      steps_(requests_, offers_, counters_, *this),
      liveness_(watch_sees_ends),
      timeouts_(connections_, control_) {}

Executor::~Executor() { close("the engine was destroyed"); }

// ---- Groups

uint32_t Executor::add_group(const GroupConfig& config) {
  if (last_group_ == kMaxGroups - 1) return 0;
  const uint32_t number = ++last_group_;
  groups_[number] = std::make_unique<MemberGroup>(config, number);
  return number;
}

void Executor::remove_group(uint32_t number) {
  MemberGroup* const g = find(number);
  if (g == nullptr) return;
  const int rank = g->config->rank;
  if (!g->unfinished().empty()) {
    fail_group(*g, {FailureKind::kAborted,
                    fmt::format("rank {} destroyed group \"{}\" with operations under way", rank,
                                g->config->name),
                    {rank}});
  }
  groups_.erase(number);
}

AddressRecord Executor::address_record(uint32_t number) const {
  return connections_.record(group(number));
}

MemberGroup* Executor::find(uint32_t number) const {
  const auto found = groups_.find(number);
  return found == groups_.end() ? nullptr : found->second.get();
}

// ---- Submission

bool Executor::is_full(uint32_t number, bool is_point_to_point) const {
  return group(number).is_full(is_point_to_point);
}

template <typename Spec>
std::shared_ptr<Operation> Executor::submit(uint32_t number, Spec&& spec,
                                            std::optional<SteadyNanos> since) {
  constexpr bool kIsCollective = std::is_same_v<Spec, OperationSpec>;
  MemberGroup& g = group(number);
  uint64_t& last = kIsCollective ? g.last_sequence : g.last_point_to_point;
  now_ = clock_.SteadyNow();
  refuse_if_too_long(spec);
  auto operation = std::make_shared<RunningOperation>(g.config, std::move(spec), last + 1);
  if (g.failure) {
    operation->state = OperationState::kFailed;
    // A wrong program's later calls are its errors too.
    const bool is_mismatch = g.failure->kind == FailureKind::kMismatch;
    operation->end(Failure{is_mismatch ? FailureKind::kMismatch : FailureKind::kAborted,
                           fmt::format("{} was not started, since the group has failed: {}",
                                       operation->name(), g.failure->message),
                           g.failure->ranks},
                   -1);
    zombies_.release(*operation);
    actions_.finished.push_back(operation);
    return operation;
  }
  ++last;
  operation->group = &g;
  operation->group_number = number;
  operation->moved = now_;
  operation->deadline = since.value_or(now_) + operation->timeout;
  timeouts_.watch(operation->deadline);
  liveness_.look_soon(now_);
  operation->record.submitted = now_;
  operation->ticket = g.recorder.put(operation->record);
  ++counters_.operations;
  ++unfinished_;
  if (operation->drive == Drive::kThread) ++unfinished_for_thread_;
  if constexpr (kIsCollective) {
    g.queued.push_back(operation);
    start_queued(g);
  } else {
    g.point_to_point[operation->sequence()] = operation;
    start(*operation);
  }
  steps_.run();
  return operation;
}

template std::shared_ptr<Operation> Executor::submit(uint32_t, OperationSpec&&,
                                                     std::optional<SteadyNanos>);
template std::shared_ptr<Operation> Executor::submit(uint32_t, PointToPointSpec&&,
                                                     std::optional<SteadyNanos>);

// ---- Rounds

bool Executor::progress() {
  if (closed_) return false;
  now_ = clock_.SteadyNow();
  liveness_.note_round(now_);
  bool moved = transport_->progress(completions_);
  // Posting below may not add to it: done at once is told at once.
  requests_.begin_round();
  for (Request* request : completions_.done) dispatch(*request);
  completions_.done.clear();
  requests_.end_round();
  for (const BrokenPeer& broken : completions_.broken) {
    const std::optional<int> rank = connections_.world_rank_of(broken.peer);
    if (!rank) continue;
    liveness_.connection_broke(*rank, broken.reason, now_);
    look_for_the_dead();
  }
  completions_.broken.clear();
  moved = moved || steps_.has_computations();
  steps_.run();
  if (moved) liveness_.look_soon(now_);
  if (now_ >= timeouts_.next()) check_timeouts();
  if (now_ >= liveness_.next_check()) check_gone();
  if (now_ >= zombies_.next_look()) look_for_the_dead();
  return moved;
}

void Executor::dispatch(Request& request) {
  if (request.owner == nullptr) {
    if (const auto message = control_.done(request)) control_received(*message);
    return;
  }
  RunningOperation& operation = *static_cast<RunningOperation*>(request.owner);
  operation.note_done(request, now_);
  operation.is_ended() ? zombies_.request_done(operation) : message_done(operation, request);
}

std::optional<SteadyNanos> Executor::next_deadline() const {
  if (unfinished_ == 0) return std::nullopt;
  const SteadyNanos next = std::min(timeouts_.next(), liveness_.next_check());
  if (next == SteadyNanos::max()) return std::nullopt;
  return next;
}

// ---- What others ask

void Executor::set_drive(Operation& operation, Drive drive) {
  auto& op = static_cast<RunningOperation&>(operation);
  if (op.is_ended() || op.drive == drive) return;
  unfinished_for_thread_ += drive == Drive::kThread ? 1 : -1;
  op.drive = drive;
}

WaitReport Executor::wait_report(const std::vector<const Operation*>& operations) const {
  return wait_report_of(operations, groups_);
}

std::vector<std::shared_ptr<Operation>> Executor::unfinished(uint32_t number) const {
  const std::vector<OperationPtr> all = group(number).unfinished();
  return {all.begin(), all.end()};
}

std::optional<Failure> Executor::group_failure(uint32_t number) const {
  return group(number).failure;
}

std::shared_ptr<Operation> Executor::oldest_collective(uint32_t number) const {
  const MemberGroup& g = group(number);
  if (!g.collectives.empty()) return g.collectives.front();
  return g.queued.empty() ? nullptr : g.queued.front();
}

uint64_t Executor::sequence(uint32_t number) const { return group(number).last_sequence; }

const FlightRecorder& Executor::flight_recorder(uint32_t number) const {
  return group(number).recorder;
}

std::vector<std::pair<std::string, std::vector<FlightRecord>>> Executor::flight_records(
    int most) const {
  std::vector<std::pair<std::string, std::vector<FlightRecord>>> all;
  for (const auto& [number, g] : groups_) {
    all.emplace_back(g->recorder.group_name(), g->recorder.records(most));
  }
  return all;
}

// ---- The end

void Executor::give_up(const std::string& reason) {
  closed_ = true;
  for (const auto& [number, g] : groups_) {
    const Failure failure{FailureKind::kTransport, reason, {g->config->rank}};
    if (!g->failure) g->failure = failure;
    for (const OperationPtr& operation : g->unfinished()) {
      if (!operation->is_done()) operation->end(failure, -1);
    }
  }
}

void Executor::close(const std::string& reason) {
  if (std::exchange(closed_, true)) return;
  for (const auto& [number, g] : groups_) {
    if (!g->unfinished().empty()) {
      fail_group(*g, {FailureKind::kAborted, reason, {g->config->rank}});
    } else if (!g->failure) {
      g->failure = Failure{FailureKind::kAborted, reason, {g->config->rank}};
    }
  }
  control_.cancel_receive();
  transport_->close();
  look_for_the_dead();
  zombies_.close();
  control_.forget_sends();
}

}  // namespace meshrun::ucx
