#include "parallel/comm/ucx/engine/execution/executor.h"

#include <algorithm>
#include <utility>

#include "fmt/format.h"
#include "parallel/base/digest.h"
#include "parallel/comm/ucx/engine/execution/executor_impl.h"

namespace meshrun::ucx {
namespace {

// Longer than who moves operations forward ever sleeps (wait_policy.h).
constexpr std::chrono::milliseconds kPause{50};

// A peer may still write into its memory: that must never be anything else's.
void keep_for_ever(const OperationPtr& operation) {
  static Mutex& mu = *new Mutex;
  static auto& kept = *new std::vector<OperationPtr>;
  MutexLock lock(mu);
  kept.push_back(operation);
}

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

const RunningOperation& running(const Operation& operation) {
  return static_cast<const RunningOperation&>(operation);
}

}  // namespace

std::vector<OperationPtr> MemberGroup::unfinished() const {
  std::vector<OperationPtr> all = collectives;
  all.insert(all.end(), queued.begin(), queued.end());
  for (const auto& [sequence, operation] : point_to_point) all.push_back(operation);
  return all;
}

// An address is unique among processes alive, and UCX's holds a random number of its worker.
Executor::Impl::Impl(std::unique_ptr<Transport> transport, const Clock& clock, uint64_t host,
                     SharedHeap* heap)
    : transport_(std::move(transport)),
      clock_(clock),
      host_(host),
      process_(digest_of(transport_->address())),
      heap_(heap),
      control_buffer_(sizeof(ControlHead) + kMaxFailureBytes) {
  host_of_process_[process_] = host_;
  post_control_receive();
}

uint32_t Executor::Impl::add_group(const GroupConfig& config) {
  if (last_group_ == kMaxGroups - 1) return 0;
  const uint32_t number = ++last_group_;
  auto group = std::make_unique<MemberGroup>(config, number);
  for (int rank = 0; rank < config.size; ++rank) {
    Member member;
    member.world_rank = config.world_rank(rank);
    group->members.push_back(member);
  }
  group->members[config.rank].state = Member::kKnown;
  group->members[config.rank].group = number;
  group->known = 1;
  groups_[number] = std::move(group);
  return number;
}

void Executor::Impl::remove_group(uint32_t number) {
  MemberGroup* group = find(number);
  if (group == nullptr) return;
  const int rank = group->config->rank;
  if (!group->unfinished().empty()) {
    fail_group(*group, {FailureKind::kAborted,
                        fmt::format("rank {} destroyed group \"{}\" with operations under way",
                                    rank, group->config->name),
                        {rank}});
  }
  groups_.erase(number);
}

AddressRecord Executor::Impl::address_record(uint32_t number) const {
  const MemberGroup& g = group(number);
  AddressRecord record;
  record.process = process_;
  record.world_rank = g.members[g.config->rank].world_rank;
  record.group = number;
  record.host = host_;
  record.algorithm_version = kAlgorithmVersion;
  record.checks_headers = g.config->check_headers;
  if (heap_ != nullptr) record.heap = heap_->address();
  record.transport_address = transport_->address();
  return record;
}

MemberGroup* Executor::Impl::find(uint32_t number) const {
  const auto found = groups_.find(number);
  return found == groups_.end() ? nullptr : found->second.get();
}

MemberGroup& Executor::Impl::group(uint32_t number) const { return *groups_.at(number); }

template <typename Spec>
OperationPtr Executor::Impl::try_submit(uint32_t number, Spec&& spec) {
  MemberGroup& g = group(number);
  if (g.is_full(std::is_same_v<Spec, PointToPointSpec>)) return nullptr;
  return submit_to(g, std::move(spec), std::nullopt);
}

template <typename Spec>
OperationPtr Executor::Impl::submit(uint32_t number, Spec&& spec,
                                    std::optional<SteadyNanos> since) {
  return submit_to(group(number), std::move(spec), since);
}

template <typename Spec>
OperationPtr Executor::Impl::submit_to(MemberGroup& g, Spec&& spec,
                                       std::optional<SteadyNanos> since) {
  constexpr bool kIsCollective = std::is_same_v<Spec, OperationSpec>;
  uint64_t& last = kIsCollective ? g.last_sequence : g.last_point_to_point;
  now_ = clock_.SteadyNow();
  refuse_if_too_long(spec);
  const auto operation = std::make_shared<RunningOperation>(g.config, std::move(spec), last + 1);
  if (g.failure) {
    operation->state = OperationState::kFailed;
    operation->end(Failure{FailureKind::kAborted,
                           fmt::format("{} was not started, since the group has failed: {}",
                                       operation->name(), g.failure->message),
                           g.failure->ranks},
                   -1);
    release(*operation);
    actions_.finished.push_back(operation);
    return operation;
  }
  ++last;
  accept(g, operation, since.value_or(now_));
  run_ready();
  return operation;
}

void Executor::Impl::accept(MemberGroup& g, const OperationPtr& operation, SteadyNanos since) {
  operation->group = &g;
  operation->group_number = g.number;
  operation->moved = now_;
  operation->deadline = since + operation->timeout;
  next_deadline_ = std::min(next_deadline_, operation->deadline);
  if (!gone_.empty()) next_gone_check_ = std::min(next_gone_check_, now_ + kGrace);
  FlightRecord record = operation->record;
  record.submitted = now_;
  operation->ticket = g.recorder.put(record);
  ++counters_.operations;
  ++unfinished_;
  if (operation->drive == Drive::kThread) ++unfinished_for_thread_;
  if (operation->is_point_to_point) {
    g.point_to_point[operation->sequence()] = operation;
    start(operation);
  } else {
    g.queued.push_back(operation);
    start_queued(g);
  }
}

void Executor::Impl::start_queued(MemberGroup& g) {
  // An operation that ends while it starts comes back here.
  if (std::exchange(g.is_starting, true)) return;
  // Tags tell kSequences operations apart (tag.h).
  const auto may_start = [&](const OperationPtr& next) {
    return g.collectives.empty() ||
           (g.collectives.size() < kMaxActive &&
            next->sequence() - g.collectives.front()->sequence() < kSequences);
  };
  while (!g.queued.empty() && may_start(g.queued.front())) {
    const OperationPtr operation = std::move(g.queued.front());
    g.queued.pop_front();
    g.collectives.push_back(operation);
    start(operation);
  }
  g.is_starting = false;
}

bool Executor::Impl::progress() {
  if (closed_) return false;
  now_ = clock_.SteadyNow();
  if (now_ - std::exchange(last_round_, now_) > kPause) resumed_ = now_;
  bool moved = transport_->progress(completions_);
  // Posting below may not add to it: done at once is told at once.
  is_dispatching_ = true;
  for (Request* request : completions_.done) dispatch(*request);
  is_dispatching_ = false;
  completions_.done.clear();
  for (const OperationPtr& operation : to_cancel_) {
    operation->is_ended() ? cancel_open_receives(*operation) : cancel_offers(*operation);
  }
  to_cancel_.clear();
  for (const BrokenPeer& peer : completions_.broken) broken(peer.peer, peer.reason);
  completions_.broken.clear();
  moved = moved || !computes_.empty();
  run_ready();
  if (moved && !gone_.empty()) next_gone_check_ = std::min(next_gone_check_, now_ + kGrace);
  if (now_ >= next_deadline_) check_deadlines();
  if (now_ >= next_gone_check_) check_gone();
  if (now_ >= next_look_for_the_dead_) give_back_memory_of_the_dead();
  return moved;
}

void Executor::Impl::dispatch(Request& request) {
  if (request.owner == nullptr) return control_done(request);
  RunningOperation& operation = *static_cast<RunningOperation*>(request.owner);
  --operation.outstanding;
  operation.moved = now_;
  if (request.step & kHeaderReceive) {
    operation.header().is_receiving = false;
  } else if (!(request.step & (kHeaderSend | kOfferSend | kOfferReceive))) {
    operation.steps[request.step].phase = StepState::kBroken;
  }
  if (!operation.is_ended()) return message_done(operation, request);
  const bool has_come =
      request.status == MessageStatus::kOk || request.status == MessageStatus::kTruncated;
  if (request.step <= kStepMask && has_come) {
    operation.steps[request.step].phase = StepState::kFinished;
  }
  if (operation.outstanding == 0 && !operation.has_lent()) {
    const auto buried = zombies_.find(&operation);
    actions_.memory.push_back(buried->second);
    release(operation);
    zombies_.erase(buried);
  }
}

std::optional<SteadyNanos> Executor::Impl::next_deadline() const {
  if (unfinished_ == 0) return std::nullopt;
  const SteadyNanos next = std::min(next_deadline_, next_gone_check_);
  if (next == SteadyNanos::max()) return std::nullopt;
  return next;
}

WaitCall Executor::Impl::wait_call(const RunningOperation& operation) const {
  WaitCall call;
  const GroupConfig& config = *operation.config;
  call.group = config.name;
  for (int rank = 0; rank < config.size; ++rank) call.members.push_back(config.world_rank(rank));
  call.sequence = operation.sequence();
  if (operation.is_point_to_point) {
    for (const int rank : missing_ranks(operation)) call.peers.push_back(config.world_rank(rank));
  }
  call.operation = operation.name();
  call.is_moving = operation.state == OperationState::kMoving || !config.check_headers;
  return call;
}

WaitReport Executor::Impl::wait_report(const std::vector<const Operation*>& operations) const {
  WaitReport report;
  for (const Operation* blocked : operations) {
    const RunningOperation& operation = running(*blocked);
    report.rank = operation.config->world_rank(operation.config->rank);
    WaitCall call = wait_call(operation);
    const bool is_told =
        std::find(report.calls.begin(), report.calls.end(), call) != report.calls.end();
    if (!is_told) report.calls.push_back(std::move(call));
  }
  for (const auto& [number, g] : groups_) {
    uint64_t& called = report.called[g->config->name];
    // Of two groups with one name, which cannot be told apart: what makes no verdict.
    called = std::max(called, g->last_sequence);
    for (const auto& [sequence, message] : g->point_to_point) {
      std::set<int>& ranks = message->is_send() ? report.sending_to : report.receiving_from;
      const int peer = message->point_to_point.peer;
      for (int rank = 0; rank < g->config->size; ++rank) {
        const bool may_be = peer < 0 ? rank != g->config->rank : rank == peer;
        if (may_be) ranks.insert(g->members[rank].world_rank);
      }
    }
  }
  return report;
}

std::vector<std::pair<std::string, std::vector<FlightRecord>>> Executor::Impl::flight_records()
    const {
  std::vector<std::pair<std::string, std::vector<FlightRecord>>> all;
  for (const auto& [number, g] : groups_) {
    all.emplace_back(g->recorder.group_name(), g->recorder.records());
  }
  return all;
}

void Executor::Impl::close(const std::string& reason) {
  if (std::exchange(closed_, true)) return;
  for (const auto& [number, g] : groups_) {
    if (!g->unfinished().empty()) {
      fail_group(*g, {FailureKind::kAborted, reason, {g->config->rank}});
    } else if (!g->failure) {
      g->failure = Failure{FailureKind::kAborted, reason, {g->config->rank}};
    }
  }
  // Or UCX warns of it. Nothing else that is still posted can be cancelled.
  transport_->cancel(control_receive_);
  transport_->close();
  give_back_memory_of_the_dead();
  for (const auto& [key, operation] : zombies_) {
    if (operation->has_lent()) {
      keep_for_ever(operation);
      continue;
    }
    actions_.memory.push_back(operation);
    release(*operation);
  }
  zombies_.clear();
  control_sends_.clear();
}

Executor::Executor(std::unique_ptr<Transport> transport, const Clock& clock, uint64_t host,
                   SharedHeap* heap)
    : impl_(std::make_unique<Impl>(std::move(transport), clock, host, heap)) {}
Executor::~Executor() { close("the engine was destroyed"); }

uint32_t Executor::add_group(const GroupConfig& config) { return impl_->add_group(config); }
void Executor::remove_group(uint32_t group) { impl_->remove_group(group); }
AddressRecord Executor::address_record(uint32_t group) const {
  return impl_->address_record(group);
}
std::shared_ptr<Operation> Executor::try_submit(uint32_t group, OperationSpec&& spec) {
  return impl_->try_submit(group, std::move(spec));
}
std::shared_ptr<Operation> Executor::try_submit(uint32_t group, PointToPointSpec&& spec) {
  return impl_->try_submit(group, std::move(spec));
}
std::shared_ptr<Operation> Executor::submit(uint32_t group, OperationSpec&& spec,
                                            std::optional<SteadyNanos> since) {
  return impl_->submit(group, std::move(spec), since);
}
std::shared_ptr<Operation> Executor::submit(uint32_t group, PointToPointSpec&& spec,
                                            std::optional<SteadyNanos> since) {
  return impl_->submit(group, std::move(spec), since);
}
bool Executor::is_full(uint32_t group, bool is_point_to_point) const {
  return impl_->group(group).is_full(is_point_to_point);
}
void Executor::found(uint32_t group, int rank, std::optional<AddressRecord> record,
                     const std::string& reason) {
  impl_->found(group, rank, record, reason);
}
void Executor::heard(const PeerNews& news) { impl_->heard(news); }
void Executor::abort(uint32_t group, const Failure& failure) {
  if (MemberGroup* const g = impl_->find(group)) impl_->fail_group(*g, failure);
}
bool Executor::progress() { return impl_->progress(); }
bool Executor::has_actions() const { return !impl_->actions_.empty(); }
Executor::Actions Executor::take() { return std::exchange(impl_->actions_, {}); }
std::optional<SteadyNanos> Executor::next_deadline() const { return impl_->next_deadline(); }
bool Executor::has_unfinished() const { return impl_->unfinished_ > 0; }
bool Executor::has_unfinished_for_thread() const { return impl_->unfinished_for_thread_ > 0; }
void Executor::set_drive(Operation& operation, Drive drive) {
  auto& op = static_cast<RunningOperation&>(operation);
  if (op.is_ended() || op.drive == drive) return;
  impl_->unfinished_for_thread_ += drive == Drive::kThread ? 1 : -1;
  op.drive = drive;
}
WaitReport Executor::wait_report(const std::vector<const Operation*>& operations) const {
  return impl_->wait_report(operations);
}
std::vector<int> Executor::missing_ranks(const Operation& operation) const {
  return impl_->missing_ranks(running(operation));
}
std::vector<std::shared_ptr<Operation>> Executor::unfinished(uint32_t group) const {
  const std::vector<OperationPtr> all = impl_->group(group).unfinished();
  return {all.begin(), all.end()};
}
std::optional<Failure> Executor::group_failure(uint32_t group) const {
  return impl_->group(group).failure;
}
std::shared_ptr<Operation> Executor::oldest_collective(uint32_t group) const {
  const MemberGroup& g = impl_->group(group);
  if (!g.collectives.empty()) return g.collectives.front();
  return g.queued.empty() ? nullptr : g.queued.front();
}
uint64_t Executor::sequence(uint32_t group) const { return impl_->group(group).last_sequence; }
const FlightRecorder& Executor::flight_recorder(uint32_t group) const {
  return impl_->group(group).recorder;
}
std::vector<std::pair<std::string, std::vector<FlightRecord>>> Executor::flight_records() const {
  return impl_->flight_records();
}
Counters Executor::counters() const { return impl_->counters_; }
int Executor::local_ranks() const {
  return static_cast<int>(
      std::count_if(impl_->host_of_process_.begin(), impl_->host_of_process_.end(),
                    [&](const auto& entry) { return entry.second == impl_->host_; }));
}
Transport& Executor::transport() { return *impl_->transport_; }
void Executor::close(const std::string& reason) { impl_->close(reason); }

}  // namespace meshrun::ucx
