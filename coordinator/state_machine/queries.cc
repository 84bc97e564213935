// Queries of clients. Nothing here changes the state, except the list of watchers.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "coordinator/state_machine/privacy.h"
#include "coordinator/state_machine/state_machine.h"
#include "core/parse_integer.h"
#include "core/proto_time.h"
#include "core/text.h"
#include "core/version.h"

namespace meshrun::coordinator {
namespace {

// Most bytes for all files of a reader together, and for one message: LogRelay buffers as much
// again.
constexpr size_t kMostLogBytes = 1 << 20;
constexpr size_t kMostChunk = 1 << 16;
constexpr size_t kLeastChunk = 1 << 10;
// Files that one call reads on one host at a time. A worker serves 1024 (LogUploads), and a session
// holds 4096 commands.
constexpr size_t kMostFilesOfNode = 512;
// An answer that lists things ends when it has so many bytes; the next page begins there.
constexpr size_t kPageBytes = 4 << 20;

// The last of `events` that fit into a page, oldest first.
template <typename Events, typename Event>
std::vector<const v1::ClusterEvent*> LastThatFit(const Events& events, size_t most,
                                                 const Event& event_of) {
  std::vector<const v1::ClusterEvent*> out;
  size_t bytes = 0;
  for (auto it = events.rbegin(); it != events.rend() && out.size() < most; ++it) {
    const v1::ClusterEvent& event = event_of(*it);
    bytes += event.ByteSizeLong();
    if (bytes > kPageBytes && !out.empty()) break;
    out.push_back(&event);
  }
  std::reverse(out.begin(), out.end());
  return out;
}

// Reads a page token of ListJobs, "group.number"; an empty one is the beginning.
std::optional<JobTable::ListPlace> ParsePlace(std::string_view token) {
  JobTable::ListPlace place;
  if (token.empty()) return place;
  const size_t dot = std::min(token.find('.'), token.size());
  const auto group = ParseInteger<int>(token.substr(0, dot));
  const auto before = ParseInteger<uint64_t>(token.substr(std::min(dot + 1, token.size())));
  if (!group || *group < 0 || *group > 2 || !before || *before == 0) return std::nullopt;
  return JobTable::ListPlace{*group, *before};
}

absl::Status BelowZero(const char* field, int64_t value, const char* what) {
  return absl::InvalidArgumentError(
      fmt::format("{}: {} is not {}: write 0 or more", field, value, what));
}

}  // namespace

void StateMachine::GetJob(uint64_t call_id, const v1::GetJobRequest& request) {
  Context& context = parts_->context;
  auto job = parts_->jobs.Lookup(request.job_id());
  if (!job.ok()) {
    context.Reply(call_id, job.status());
    return;
  }
  if (request.first_rank() < 0) {
    return context.Reply(call_id, BelowZero("first_rank", request.first_rank(), "a rank"));
  }
  v1::GetJobResponse response;
  const v1::Job& view = (*job)->view;
  const int first = std::min(request.first_rank(), view.ranks_size());
  const int most =
      static_cast<int>(std::min(request.max_ranks() == 0 ? 2000u : request.max_ranks(), 1u << 20));
  int count = 0;
  for (size_t bytes = 0; count < std::min(most, view.ranks_size() - first); ++count) {
    bytes += view.ranks(first + count).ByteSizeLong();
    if (bytes > kPageBytes && count > 0) break;
  }
  const bool may_see = MaySee(context, view);
  *response.mutable_job() = parts_->jobs.View(**job, /*with_ranks=*/false);
  parts_->jobs.AddRanks(**job, first, count, response.mutable_job());
  if (!may_see) Conceal(response.mutable_job());
  if (view.ranks_size() - first > count) response.set_next_rank(first + count);
  // The first page has the rest.
  if (first > 0) return context.Reply(call_id, std::move(response));
  if (may_see) {
    *response.mutable_job()->mutable_groups() = view.groups();
    (*job)->curve.Since(0, response.mutable_curve());
  }
  // With the events of nodes that led to its own.
  std::set<uint64_t> wanted;
  for (const v1::ClusterEvent* event : context.EventsOf((*job)->id())) {
    wanted.insert(event->sequence());
    const v1::ClusterEvent* cause = context.FindEvent(event->cause());
    if (cause != nullptr && cause->job_id().empty()) wanted.insert(cause->sequence());
  }
  const auto event_of = [&context](uint64_t sequence) -> const v1::ClusterEvent& {
    return *context.FindEvent(sequence);
  };
  for (const v1::ClusterEvent* event : LastThatFit(wanted, wanted.size(), event_of)) {
    *response.add_events() = EventFor(context, *event);
  }
  context.Reply(call_id, std::move(response));
}

void StateMachine::ListEvents(uint64_t call_id, const v1::ListEventsRequest& request) {
  Context& context = parts_->context;
  std::string job_id = request.job_id();
  // Events of a job outlive it.
  if (!job_id.empty() && context.EventsOf(job_id).empty()) {
    const auto job = parts_->jobs.Lookup(job_id);
    if (!job.ok()) return context.Reply(call_id, job.status());
    job_id = (*job)->id();
  }
  std::string node_id = request.node();
  if (!node_id.empty()) {
    const auto node = parts_->nodes.Lookup(node_id);
    if (!node.ok()) return context.Reply(call_id, node.status());
    node_id = (*node)->id();
  }
  const size_t limit = request.limit() == 0 ? 1000 : std::min(request.limit(), 10'000u);
  v1::ListEventsResponse response;
  size_t bytes = 0;
  const auto add = [&](const v1::ClusterEvent& event) {
    if (response.more() || event.sequence() <= request.after() ||
        (!job_id.empty() && event.job_id() != job_id) ||
        (!node_id.empty() && event.node_id() != node_id)) {
      return;
    }
    bytes += event.ByteSizeLong();
    if (static_cast<size_t>(response.events_size()) == limit ||
        (bytes > kPageBytes && response.events_size() > 0)) {
      response.set_more(true);
    } else {
      *response.add_events() = EventFor(context, event);
    }
  };
  if (!job_id.empty()) {
    for (const v1::ClusterEvent* event : context.EventsOf(job_id)) add(*event);
  } else {
    for (const v1::ClusterEvent& event : context.events()) add(event);
  }
  context.Reply(call_id, std::move(response));
}

void StateMachine::ListJobs(uint64_t call_id, const v1::ListJobsRequest& request) {
  Context& context = parts_->context;
  const std::string& token = request.page_token();
  const std::optional<JobTable::ListPlace> place = ParsePlace(token);
  if (!place.has_value()) {
    context.Reply(call_id, absl::InvalidArgumentError(
                               fmt::format("page_token: '{}' does not come from ListJobs", token)));
    return;
  }
  const size_t limit = request.page_size() == 0 ? 100 : std::min(request.page_size(), 1000u);
  std::vector<const Job*> jobs = parts_->jobs.List(request, *place, limit + 1);
  v1::ListJobsResponse response;
  size_t bytes = 0;
  const Job* last = nullptr;
  for (const Job* job : jobs) {
    v1::Job view = parts_->jobs.View(*job, /*with_ranks=*/false);
    if (!MaySee(context, view)) Conceal(&view);
    bytes += view.ByteSizeLong();
    if (last != nullptr &&
        (bytes > kPageBytes || static_cast<size_t>(response.jobs_size()) == limit)) {
      response.set_next_page_token(fmt::format("{}.{}", JobTable::ListGroup(*last, request),
                                               last->record.submit_sequence()));
      break;
    }
    *response.add_jobs() = std::move(view);
    last = job;
  }
  context.Reply(call_id, std::move(response));
}

void StateMachine::WatchJob(uint64_t call_id, const v1::WatchJobRequest& request) {
  Context& context = parts_->context;
  auto job = parts_->jobs.Lookup(request.job_id());
  if (!job.ok()) {
    context.Reply(call_id, job.status());
    return;
  }
  parts_->jobs.AddWatcher(**job, call_id, request);
}

void StateMachine::DescribeLimits(uint64_t call_id, const v1::DescribeLimitsRequest& request) {
  const Context& context = parts_->context;
  const std::string& user = request.user().empty() ? context.user : request.user();
  v1::DescribeLimitsResponse response;
  for (const PolicyScope& scope : ScopesFor(context.policy, user)) {
    const JobUsage usage = parts_->jobs.quotas().Of(scope.Key());
    v1::LimitScope& out = *response.add_scopes();
    out.set_kind(scope.kind);
    out.set_name(scope.name);
    *out.mutable_limits() = scope.limits;
    out.set_queued_jobs(usage.queued_jobs);
    out.set_running_jobs(usage.running_jobs);
    out.set_running_ranks(usage.ranks);
    out.set_running_gpus(usage.gpus);
    if (scope.kind == v1::LimitScope::KIND_USER) {
      out.set_weight(WeightOf(context.policy, user));
      if (!scope.limits.has_kill_grace())
        *out.mutable_limits()->mutable_kill_grace() = ToProtoDuration(kMostKillGrace);
    }
  }
  const auto own = context.policy.users().find(user);
  if (own != context.policy.users().end()) response.set_default_account(own->second.account());
  response.set_default_partition(context.policy.default_partition());
  parts_->context.Reply(call_id, std::move(response));
}

void StateMachine::ListUsage(uint64_t call_id, const v1::ListUsageRequest& request) {
  Context& context = parts_->context;
  v1::ListUsageResponse response;
  const auto take = [&](v1::UsageRecord record) {
    if ((!request.user().empty() && record.user() != request.user()) ||
        (!request.account().empty() && record.account() != request.account()) ||
        (request.has_until() && FromProto(record.finished_at()) >= FromProto(request.until()))) {
      return false;
    }
    *response.add_records() = UsageFor(context, std::move(record));
    return true;
  };
  const JobTable::UsageLog& usage = parts_->jobs.usage();
  response.set_next(usage.Page(request.after(), FromProto(request.since()), take));
  if (const auto until = usage.forgotten_until())
    *response.mutable_complete_since() = ToProtoTimestamp(*until);
  context.Reply(call_id, std::move(response));
}

void StateMachine::ListAudit(uint64_t call_id, const v1::ListAuditRequest& request) {
  v1::ListAuditResponse response;
  const auto take = [&](v1::AuditRecord record) {
    if ((!request.actor().empty() && record.actor() != request.actor()) ||
        (request.refused_only() && record.code() == 0)) {
      return false;
    }
    *response.add_records() = std::move(record);
    return true;
  };
  response.set_next(
      parts_->audit.records().Page(request.after(), FromProto(request.since()), take));
  parts_->context.Reply(call_id, std::move(response));
}

void StateMachine::ListNodes(uint64_t call_id, const v1::ListNodesRequest& request) {
  // A page begins behind the last node of the one before, which may be gone.
  using Place = std::pair<std::string_view, std::string_view>;
  const auto place_of = [](const v1::Node* node) { return Place(node->name(), node->node_id()); };
  const auto before = [](const Place& a, const Place& b) {
    return a.first != b.first ? NaturalLess(a.first, b.first) : a.second < b.second;
  };
  // "LENGTH.NAMEID": both may have any characters.
  const std::string_view token = request.page_token();
  const size_t dot = std::min(token.find('.'), token.size());
  const auto length = ParseInteger<size_t>(token.substr(0, dot));
  if (!token.empty() && (!length || token.size() - dot <= *length)) {
    parts_->context.Reply(call_id, absl::InvalidArgumentError(fmt::format(
                                       "page_token: '{}' does not come from ListNodes", token)));
    return;
  }
  const Place from = token.empty()
                         ? Place()
                         : Place(token.substr(dot + 1, *length), token.substr(dot + 1 + *length));
  std::vector<const v1::Node*> nodes;
  for (const auto& [id, node] : parts_->nodes.all()) {
    if (token.empty() || before(from, place_of(&node.record))) nodes.push_back(&node.record);
  }
  std::sort(nodes.begin(), nodes.end(),
            [&](const v1::Node* a, const v1::Node* b) { return before(place_of(a), place_of(b)); });
  v1::ListNodesResponse response;
  const v1::Node* last = nullptr;
  size_t bytes = 0;
  for (const v1::Node* node : nodes) {
    bytes += node->ByteSizeLong();
    const bool is_full =
        bytes > kPageBytes || static_cast<size_t>(response.nodes_size()) == request.page_size();
    if (request.page_size() > 0 && last != nullptr && is_full) {
      response.set_next_page_token(
          fmt::format("{}.{}{}", last->name().size(), last->name(), last->node_id()));
      break;
    }
    *response.add_nodes() = *node;
    last = node;
  }
  parts_->context.Reply(call_id, std::move(response));
}

void StateMachine::DescribeCluster(uint64_t call_id, const v1::DescribeClusterRequest& request) {
  Context& context = parts_->context;
  v1::DescribeClusterResponse response;
  response.set_version(kVersion);
  response.set_term(context.term);
  response.set_cluster_id(context.cluster_id);
  *response.mutable_started_at() = ToProtoTimestamp(context.started_at);
  *response.mutable_now() = ToProtoTimestamp(context.wall);
  response.set_nodes_healthy(parts_->nodes.Present(/*healthy_only=*/true).size());
  response.set_nodes_total(parts_->nodes.all().size());
  response.set_jobs_active(parts_->jobs.active_count());
  response.set_jobs_total(parts_->jobs.size());
  const auto& events = context.events();
  const size_t wanted = request.max_events() == 0 ? 50 : request.max_events();
  const auto event_of = [](const v1::ClusterEvent& event) -> const v1::ClusterEvent& {
    return event;
  };
  for (const v1::ClusterEvent* event : LastThatFit(events, wanted, event_of)) {
    *response.add_events() = EventFor(context, *event);
  }
  context.Reply(call_id, std::move(response));
}

Measures StateMachine::Measure() const {
  const Context& context = parts_->context;
  Measures out;
  out.tallies = context.tallies;
  for (const auto& [id, node] : parts_->nodes.all()) {
    const v1::Node& record = node.record;
    std::string state = v1::NodeState_Name(record.state()).substr(sizeof("NODE_STATE_") - 1);
    std::transform(state.begin(), state.end(), state.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    ++out.nodes[state];
    if (record.drained()) ++out.nodes_drained;
    if (node.lost()) continue;
    out.slots += record.resources().slots();
    out.slots_used += record.slots_used();
    out.gpus += static_cast<uint64_t>(record.resources().gpus_size());
    out.gpus_used += static_cast<uint64_t>(record.gpus_used_size());
  }
  out.queued_jobs = parts_->jobs.queue().size();
  out.known_jobs = parts_->jobs.size();
  out.held_rank_seconds = context.tallies.HeldRankSeconds(context.now);
  return out;
}

// Finds which node holds which file. The bytes themselves never pass through the state machine.
void StateMachine::ReadLogs(uint64_t call_id, const v1::ReadLogsRequest& request) {
  Context& context = parts_->context;
  const auto found = LookupVisible(context, parts_->jobs, request.job_id());
  if (!found.ok()) {
    context.Reply(call_id, found.status());
    return;
  }
  if (request.tail_lines() < 0) {
    return context.Reply(call_id,
                         BelowZero("tail_lines", request.tail_lines(), "a number of lines"));
  }
  const Job& job = **found;
  // After a roll call a job's number may be beyond its last generation.
  const uint64_t last = job.worlds.empty() ? job.view.generation() : job.worlds.rbegin()->first;
  const uint64_t generation = request.generation() == 0 ? last : request.generation();
  const auto world = job.worlds.find(generation);
  if (world == job.worlds.end()) {
    context.Reply(
        call_id,
        job.view.generation() == 0
            ? absl::FailedPreconditionError(fmt::format(
                  "job {} has not started yet: it is {}{}{}", job.id(), StateName(job.view.state()),
                  parts_->jobs.ReasonOf(job).empty() ? "" : ", ", parts_->jobs.ReasonOf(job)))
            : absl::NotFoundError(fmt::format("job {} has generations 1 to {}, not {}", job.id(),
                                              job.view.generation(), generation)));
    return;
  }
  // Each once, in the order of their numbers.
  std::set<int> ranks(request.ranks().begin(), request.ranks().end());
  const int world_size = world->second->ranks_size();
  if (ranks.empty()) {
    for (int rank = 0; rank < world_size; ++rank) ranks.insert(ranks.end(), rank);
  }
  std::set<int> streams(request.streams().begin(), request.streams().end());
  if (streams.empty()) streams = {v1::LOG_STREAM_STDOUT, v1::LOG_STREAM_STDERR};
  std::map<std::pair<int, int>, uint64_t> positions;
  for (const v1::LogPosition& position : request.positions()) {
    positions[{position.rank(), position.stream()}] = position.offset();
  }
  std::map<const Node*, size_t> files_of_node;
  OpenLogRelay relay;
  relay.call_id = call_id;
  for (const int rank : ranks) {
    if (rank < 0 || rank >= world_size) {
      context.Reply(call_id, absl::NotFoundError(fmt::format("job {} has ranks 0 to {}, not {}",
                                                             job.id(), world_size - 1, rank)));
      return;
    }
    if (request.started_there() && !IsFresh(world->second->ranks(rank), generation)) continue;
    Node* node = parts_->nodes.Find(world->second->ranks(rank).node_id());
    if (node == nullptr || node->session_id == 0) {
      relay.end = absl::UnavailableError(fmt::format(
          "the output of rank {} is on {}, which is not connected", rank,
          node == nullptr ? "node " + world->second->ranks(rank).node_id() : node->record.name()));
      continue;
    }
    if ((files_of_node[node] += streams.size()) > kMostFilesOfNode) {
      context.Reply(call_id, absl::InvalidArgumentError(fmt::format(
                                 "more than {} files of these ranks are on {}: name fewer ranks",
                                 kMostFilesOfNode, node->record.name())));
      return;
    }
    for (const int stream : streams) {
      LogSource& source = relay.sources.emplace_back();
      source.node_id = node->id();
      source.node_name = node->record.name();
      source.session_id = node->session_id;
      source.fence.set_term(context.term);
      source.fence.set_job_id(job.id());
      source.fence.set_generation(generation);
      source.fence.set_incarnation(node->record.incarnation());
      source.open.set_stream_id(fmt::format("{}-{}-{}-{}", context.term, call_id, rank, stream));
      source.open.set_job_id(job.id());
      source.rank = rank;
      source.generation = generation;
      const v1::RankAssignment& process = world->second->ranks(rank);
      const bool named = process.process_generation() != 0;
      source.open.set_generation(named ? process.process_generation() : generation);
      source.open.set_rank(named ? process.process_rank() : rank);
      source.open.set_stream(static_cast<v1::LogStream>(stream));
      source.open.set_follow(request.follow());
      if (const auto position = positions.find({rank, stream}); position != positions.end()) {
        source.open.set_offset(position->second);
      } else if (request.has_tail_lines()) {
        source.open.set_tail_lines(request.tail_lines());
      }
    }
  }
  // Each of them may have a message under way beyond what the relay buffers for the reader.
  const size_t chunk = std::clamp(kMostLogBytes / std::max<size_t>(relay.sources.size(), 1),
                                  kLeastChunk, kMostChunk);
  for (LogSource& source : relay.sources) {
    source.open.set_chunk_bytes(static_cast<uint32_t>(chunk));
  }
  context.Add(std::move(relay));
}

}  // namespace meshrun::coordinator
