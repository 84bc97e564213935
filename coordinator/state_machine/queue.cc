#include "coordinator/state_machine/queue.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "coordinator/state_machine/dependencies.h"
#include "coordinator/state_machine/refusals.h"
#include "core/job_spec.h"
#include "core/proto_time.h"
#include "core/text.h"

namespace meshrun::coordinator {
namespace {

// A job that could have more nodes waits so long after the last one that joined.
constexpr std::chrono::seconds kLastCall(2);
constexpr QueuePlace kBeforeAll{.level = std::numeric_limits<int64_t>::min()};

// Whether so many nodes have so much free: sorts out most jobs that do not fit, at little cost.
bool EnoughIsFree(const PlacementRequest& request) {
  const v1::JobSpec& spec = request.spec;
  if (spec.procs_per_node().kind_case() != v1::ProcsPerNode::kCount) return true;
  const uint64_t procs = spec.procs_per_node().count();
  uint32_t fitting = 0;
  for (const v1::Node* node : request.nodes) {
    const v1::Resources& all = node->resources();
    const bool fits =
        node->slots_used() + procs * CpusPerProc(spec) <= all.slots() &&
        node->memory_used_bytes() + procs * spec.memory_bytes() <= all.memory_bytes() &&
        node->gpus_used_size() + procs * GpusPerProc(request).value_or(0) <=
            static_cast<uint64_t>(all.gpus_size());
    if (fits && ++fitting >= MinNodes(spec)) return true;
  }
  return false;
}

}  // namespace

Queue::Queue(Context& context, NodeTable& nodes, JobTable& jobs, Departures& departures,
             Continuation& continuation, Generations& generations)
    : context_(context),
      nodes_(nodes),
      jobs_(jobs),
      departures_(departures),
      continuation_(continuation),
      generations_(generations) {
  jobs_.reason_of = [this](const Job& job) { return ReasonOf(job); };
}

bool Queue::PlaceJobs() {
  if (nodes_.recovering() > 0) {
    // Each node that returns, or is given up, brings another pass.
    context_.placement_due = false;
    return false;
  }
  if (std::exchange(composition_, nodes_.composition()) != nodes_.composition()) {
    jobs_.queue().UnparkAll();
    context_.placement_due = true;
  }
  const bool begins = std::exchange(context_.placement_due, false) || !HeadIsCurrent();
  if (!begins) {
    PlaceNew(kBeforeAll);
    if (!next_.has_value()) return false;
  }
  if (!begins || !BeginPass()) GoOn();
  return !next_.has_value();
}

bool Queue::HeadIsCurrent() const {
  if (!head_.has_value()) return true;
  const QueueIndex::Entry* const entry = jobs_.queue().Find(head_->job_id);
  return entry != nullptr && entry->place == head_->place;
}

bool Queue::BeginPass() {
  ++pass_;
  head_.reset();
  waits_in_.clear();
  const std::optional<QueuePlace> stopped = LookFrom(kBeforeAll);
  if (!stopped.has_value()) {
    next_.reset();
    jobs_.queue().TakeNew();
    return true;
  }
  // Without a head all go in their order.
  const bool goes_on_here = !next_.has_value() || *next_ < *stopped || !head_.has_value();
  if (goes_on_here) next_ = stopped;
  PlaceNew(*stopped);
  return goes_on_here;
}

void Queue::GoOn() {
  if (const std::optional<QueuePlace> stopped = LookFrom(*next_)) {
    next_ = stopped;
  } else if (*next_ == kBeforeAll) {
    next_.reset();
  } else {
    // Those before the place where it went on may be unseen.
    next_ = kBeforeAll;
  }
}

std::optional<QueuePlace> Queue::LookFrom(QueuePlace place) {
  for (size_t looked_at = 0; looked_at < kDepth;) {
    const auto entry = jobs_.queue().NextFront(place);
    if (!entry.has_value()) return std::nullopt;
    place = entry->place;
    if (entry->shape->pass == pass_) continue;
    const bool started =
        head_.has_value() && head_->place < place ? Backfill(*entry) : StartOrWait(*entry);
    if (!started) entry->shape->pass = pass_;
    ++looked_at;
  }
  return place;
}

void Queue::PlaceNew(const QueuePlace& after) {
  std::set<const QueueIndex::Shape*> refused;
  for (const QueueIndex::Entry& entry : jobs_.queue().TakeNew()) {
    if (entry.place <= after || entry.shape->parked || refused.contains(entry.shape)) continue;
    // The pass comes to it in its order.
    if (next_.has_value() && !head_.has_value() && *next_ < entry.place) continue;
    bool started = false;
    if (head_.has_value() && head_->place < entry.place) {
      started = Backfill(entry);
    } else {
      started = StartOrWait(entry);
      if (started && head_.has_value()) head_->reservation.reset();
    }
    if (!started) refused.insert(entry.shape);
  }
}

bool Queue::IsDelayed(const QueueIndex::Entry& entry, const Job& job, const Placement* placement) {
  SteadyNanos until = job.not_before;
  std::string reason = "starts again in ";
  const bool first_start = placement != nullptr && job.view.generation() == 0;
  if (first_start && placement->nodes.size() < MaxNodes(job.view.spec()) &&
      MaxNodes(job.view.spec()) > MinNodes(job.view.spec())) {
    until = std::max(until, nodes_.last_joined() + kLastCall);
    reason = fmt::format("could start on {} of at most {} nodes; nodes are joining: last call in ",
                         placement->nodes.size(), MaxNodes(job.view.spec()));
  }
  if (until <= context_.now) return false;
  delayed_.Set(job.id(), until);
  entry.shape->refusal = reason + FormatDuration(until - context_.now);
  return true;
}

bool Queue::StartOrWait(const QueueIndex::Entry& entry) {
  Job& job = *jobs_.Find(entry.job_id);
  if (IsDelayed(entry, job, nullptr)) return false;
  if (IsOverQuota(entry, job)) return false;
  std::string waits;
  std::optional<QuotaRefusal> refused;
  PlacementRequest request = RequestOf(job, &waits);
  PlacementResult result = TryPlaceWithin(job, request, &refused);
  if (!result.placement.has_value() && waits.empty() && job.avoids_nodes()) {
    result = TryAvoidedToo(job, &request, &refused);
  }
  if (result.placement.has_value()) {
    if (refused.has_value()) return NoteOverQuota(entry, job, *refused);
    if (IsDelayed(entry, job, &*result.placement)) return false;
    generations_.Begin(job, *result.placement);
    return true;
  }
  if (!waits.empty()) {
    request.nodes = nodes_.Present(/*healthy_only=*/true);
    PlacementResult later = TryPlace(request);
    result.reason = later.placement.has_value() ? std::move(waits) : std::move(later.reason);
  }
  if (!CouldRun(entry, job)) return false;
  entry.shape->refusal = WithOthers(std::move(result.reason));
  head_ = Head{entry.job_id, entry.place, {}, std::nullopt, {}};
  for (const v1::Node* node : request.nodes) head_->nodes.insert(node->node_id());
  MakeRoom(request, job);
  return false;
}

PlacementResult Queue::TryAvoidedToo(const Job& job, PlacementRequest* request,
                                     std::optional<QuotaRefusal>* refused) {
  std::string waits;
  const std::vector<const v1::Node*> nodes = departures_.Candidates(job, &waits);
  // A node that failed the job is better than none. One that could not prepare it is better than
  // to wait for ever, where no other could: what was wrong there may be gone. Those that have
  // refused less often come first.
  std::set<uint32_t> rounds = {0};
  if (!OthersCouldTake(job, nodes_.Taking())) {
    for (const v1::Node* node : nodes) rounds.insert(TimesRefused(job, node->node_id()));
  }
  PlacementResult result;
  for (const uint32_t most : rounds) {
    request->nodes = nodes;
    std::erase_if(request->nodes,
                  [&](const v1::Node* node) { return TimesRefused(job, node->node_id()) > most; });
    result = TryPlaceWithin(job, *request, refused);
    if (result.placement.has_value()) break;
  }
  return result;
}

bool Queue::CouldRun(const QueueIndex::Entry& entry, const Job& job) {
  QueueIndex::Shape& shape = *entry.shape;
  if (shape.fits == composition_) return true;
  PlacementRequest alone = job.RequestOn(nodes_.Taking());
  alone.ignore_usage = true;
  PlacementResult result = TryPlace(alone);
  if (result.placement.has_value()) {
    shape.fits = composition_;
    return true;
  }
  shape.refusal = WithOthers(std::move(result.reason));
  jobs_.queue().Park(shape);
  return false;
}

std::string Queue::WithOthers(std::string reason) const {
  for (const auto& [count, are] :
       {std::pair(nodes_.draining(), "draining"), std::pair(nodes_.unhealthy(), "unhealthy")}) {
    if (count == 0) continue;
    reason += count == 1 ? fmt::format("; 1 that is {} does not count", are)
                         : fmt::format("; {} that are {} do not count", count, are);
  }
  return reason;
}

bool Queue::Backfill(const QueueIndex::Entry& entry) {
  Job& job = *jobs_.Find(entry.job_id);
  if (!CouldRun(entry, job) || IsDelayed(entry, job, nullptr) || IsOverQuota(entry, job))
    return false;
  std::string waits;
  PlacementRequest request = RequestOf(job, &waits);
  if (request.nodes.size() < MinNodes(job.view.spec()) || !EnoughIsFree(request)) return false;
  const Reservation& reservation = HeadsReservation();
  const std::optional<SteadyNanos> gone_by = GoneBy(job);
  const bool gone_in_time =
      reservation.at.has_value() && gone_by.has_value() && *gone_by <= *reservation.at;
  if (!gone_in_time) {
    std::erase_if(request.nodes, [&](const v1::Node* node) {
      return reservation.nodes.contains(node->node_id());
    });
    if (!EnoughIsFree(request)) return false;
  }
  std::optional<QuotaRefusal> refused;
  const PlacementResult result = TryPlaceWithin(job, request, &refused);
  if (!result.placement.has_value()) return false;
  if (refused.has_value()) return NoteOverQuota(entry, job, *refused);
  context_.Record("JobBackfilled", job.id(), "",
                  fmt::format("starts before {}, which it does not delay", head_->job_id));
  generations_.Begin(job, *result.placement);
  return true;
}

const Reservation& Queue::HeadsReservation() {
  if (!head_->reservation.has_value()) {
    std::string waits;
    const Job& job = *jobs_.Find(head_->job_id);
    PlacementRequest request = job.RequestOn(departures_.Candidates(job, &waits));
    std::erase_if(request.nodes,
                  [this](const v1::Node* node) { return !head_->nodes.contains(node->node_id()); });
    head_->reservation = Reserve(request, Holders());
    placements_ += head_->reservation->placements;
  }
  return *head_->reservation;
}

void Queue::MakeRoom(const PlacementRequest& request, const Job& job) {
  const std::vector<Holder> holders = Holders();
  for (const std::string& id :
       Victims(request, job.view.spec().priority(), holders, &placements_)) {
    head_->victims.push_back(id);
    generations_.Stop(
        *jobs_.Find(id), v1::STOP_INTENT_REQUEUE, "JobPreempted", "",
        fmt::format("preempted by {}, whose priority is {}", job.id(), job.view.spec().priority()));
  }
}

PlacementRequest Queue::RequestOf(const Job& job, std::string* waits) const {
  PlacementRequest request = job.RequestOn({});
  for (const v1::Node* node : departures_.Candidates(job, waits)) {
    if (!job.Avoids(node->node_id())) request.nodes.push_back(node);
  }
  return request;
}

bool Queue::IsOverQuota(const QueueIndex::Entry& entry, const Job& job) {
  entry.shape->over_quota = false;
  const std::vector<PolicyScope> scopes = jobs_.ScopesOf(job);
  for (const PolicyScope& scope : scopes) {
    const auto first = waits_in_.find(scope.Key());
    if (first == waits_in_.end() || first->second == job.id()) continue;
    entry.shape->over_quota = true;
    // What is said of a job of the same shape is true of this one too.
    const QueueIndex::Entry* const waiting = jobs_.queue().Find(first->second);
    if (waiting == nullptr || waiting->shape != entry.shape) {
      entry.shape->refusal =
          fmt::format("behind job {}, for which {} has no room", first->second, scope.Words());
    }
    return true;
  }
  // Before it is placed: a job that may not start is no head, and nobody makes room for it.
  const v1::JobSpec& spec = job.view.spec();
  const uint64_t ranks = uint64_t{MinNodes(spec)} * std::max(spec.procs_per_node().count(), 1u);
  const uint64_t gpus_per_rank =
      spec.has_gpus_per_proc() ? spec.gpus_per_proc() : job.record.gpus_per_proc();
  const auto refused =
      jobs_.quotas().Refusal(job.counted.usage, scopes, ranks, ranks * gpus_per_rank);
  if (!refused.has_value()) return false;
  const bool ever = !RefusalAlone(scopes, ranks, ranks * gpus_per_rank).has_value();
  NoteOverQuota(entry, job, *refused, ever);
  return true;
}

bool Queue::NoteOverQuota(const QueueIndex::Entry& entry, const Job& job,
                          const QuotaRefusal& refused, bool ever) {
  entry.shape->over_quota = true;
  entry.shape->refusal = refused.text;
  // Else small jobs of others would go past a large one for ever. A user has his own order.
  if (ever && refused.kind != v1::LimitScope::KIND_USER) waits_in_.emplace(refused.key, job.id());
  return false;
}

PlacementResult Queue::TryPlaceWithin(const Job& job, const PlacementRequest& request,
                                      std::optional<QuotaRefusal>* refused) {
  const std::vector<PolicyScope> scopes = jobs_.ScopesOf(job);
  return PlaceWithin(
      request, [this](const PlacementRequest& each) { return TryPlace(each); },
      [&](uint64_t ranks, uint64_t gpus) {
        return jobs_.quotas().Refusal(job.counted.usage, scopes, ranks, gpus);
      },
      refused);
}

PlacementResult Queue::TryPlace(const PlacementRequest& request) {
  ++placements_;
  return Place(request);
}

std::vector<Holder> Queue::Holders() const {
  std::map<std::string, Holder> holders;
  for (const auto& [node_id, node] : nodes_.all()) {
    for (const std::string& job_id : node.jobs) {
      Job* const job = jobs_.Find(job_id);
      const Member* const member = job == nullptr ? nullptr : job->FindMember(node_id);
      if (member == nullptr || member->ended) continue;
      const auto [it, is_new] = holders.try_emplace(job_id);
      Holder& holder = it->second;
      if (is_new) {
        holder.job_id = job_id;
        holder.until = GoneBy(*job);
        holder.stopping = job->stopping();
        holder.restartable = job->MayRunAgain() && !job->record.cancel_requested();
        holder.priority = job->view.spec().priority();
        holder.since = context_.now - jobs_.run_clock().Used(job->view);
      }
      holder.holds[node_id] = Resource{member->slots, member->memory_bytes, member->gpus};
    }
  }
  std::vector<Holder> out;
  out.reserve(holders.size());
  for (auto& [job_id, holder] : holders) out.push_back(std::move(holder));
  return out;
}

std::optional<SteadyNanos> Queue::GoneBy(const Job& job) const {
  if (job.stopping()) {
    return jobs_.Deadline(job);
  }
  const std::optional<SteadyNanos> end = jobs_.run_clock().End(job.view);
  if (!end.has_value()) return std::nullopt;
  // A job that is being prepared has its whole time before it.
  const auto preparing = job.view.has_running_since() ? SteadyNanos(0) : kPrepareTimeout;
  return *end + preparing + job.kill_grace() + kStopSlack;
}

void Queue::ExpireDue() {
  while (delayed_.PopDue(context_.now).has_value()) context_.placement_due = true;
  while (const auto job_id = jobs_.run_clock().PopDue()) {
    Job* const job = jobs_.Find(*job_id);
    if (job == nullptr) continue;
    generations_.Stop(*job, v1::STOP_INTENT_TIME_LIMIT, "TimeLimitReached", "",
                      fmt::format("TIMED OUT: it ran for its time limit of {}",
                                  FormatDuration(FromProto(job->view.spec().time_limit()))));
  }
  while (const auto node_id = drains_.PopDue(context_.now)) {
    Node* const node = nodes_.Find(*node_id);
    if (node == nullptr || !node->record.drained()) continue;
    v1::DrainNodeResponse unused;
    MoveJobs(*node, Move::kRestartable, &unused);
  }
}

std::optional<SteadyNanos> Queue::NextDeadline() const {
  std::optional<SteadyNanos> next;
  if (next_.has_value()) next = context_.now;
  for (const auto& deadline : {jobs_.run_clock().NextDeadline(), drains_.Next(), delayed_.Next()}) {
    if (deadline.has_value() && (!next.has_value() || *deadline < *next)) next = deadline;
  }
  return next;
}

std::string Queue::ReasonOf(const Job& job) const {
  const std::string note = job.record.queue_note().empty() ? "" : job.record.queue_note() + "; ";
  if (job.record.held()) {
    return fmt::format("{}held: 'meshrun release {}' lets it go on", note, job.id());
  }
  if (!job.record.waits_for().empty()) return note + WaitsFor(job);
  if (nodes_.recovering() > 0) {
    return fmt::format(
        "{}the coordinator has restarted and waits up to {} for {} of {} nodes to report", note,
        FormatDuration(context_.lease), nodes_.recovering(), nodes_.all().size());
  }
  const QueueIndex::Entry* const entry = jobs_.queue().Find(job.id());
  if (entry == nullptr) return job.view.reason();
  if (entry->shape->parked || entry->shape->over_quota) return note + entry->shape->refusal;
  const QueueIndex::Entry* const head =
      head_.has_value() ? jobs_.queue().Find(head_->job_id) : nullptr;
  if (head != nullptr && head->place < entry->place) {
    return fmt::format("{}behind job {}, which {}", note, head->job_id, head->shape->refusal);
  }
  std::string reason = note + entry->shape->refusal;
  // Nobody has looked at it: it came with others, and its turn is later.
  if (entry->shape->refusal.empty()) {
    reason = !note.empty()                ? job.record.queue_note()
             : !job.view.reason().empty() ? job.view.reason()
                                          : "waits for its turn";
  }
  if (head != nullptr && head->job_id == job.id() && !head_->victims.empty()) {
    reason += fmt::format(
        "; {} stopped for it: {}",
        head_->victims.size() == 1 ? "a job of lower priority is" : "jobs of lower priority are",
        fmt::join(head_->victims, ", "));
  }
  return reason;
}

}  // namespace meshrun::coordinator
