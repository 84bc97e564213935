#include "coordinator/metrics/coordinator_metrics.h"

#include <algorithm>
#include <chrono>

namespace meshrun::coordinator {
namespace {

using metrics::Exposition;

double Seconds(SteadyNanos time) { return std::chrono::duration<double>(time).count(); }

std::string Lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

std::string StateLabel(v1::JobState state) {
  return Lower(v1::JobState_Name(state).substr(sizeof("JOB_STATE_") - 1));
}

void CollectJobs(const Tallies& tallies, Exposition& out) {
  auto jobs = out.Gauge("meshrun_jobs",
                        "Jobs that have not ended, by state and user. The jobs of users beyond the "
                        "first 50 are counted for the user \"other\".");
  for (const auto& [user, states] : tallies.jobs()) {
    for (size_t state = 0; state < states.size(); ++state) {
      if (states[state] == 0) continue;
      jobs.Add(states[state],
               {{"state", StateLabel(static_cast<v1::JobState>(state))}, {"user", user}});
    }
  }
  auto ended = out.Counter("meshrun_jobs_ended_total", "Jobs that have ended, by how they did.");
  for (const v1::JobState state :
       {v1::JOB_STATE_SUCCEEDED, v1::JOB_STATE_FAILED, v1::JOB_STATE_CANCELLED}) {
    const auto found = tallies.ended().find(state);
    ended.Add(found == tallies.ended().end() ? 0 : static_cast<double>(found->second),
              {{"state", StateLabel(state)}});
  }
  auto generations = out.Counter(
      "meshrun_generations_total",
      "Generations of jobs that were begun, by why: \"first\" is a job's first one, \"planned\" "
      "one that nobody is charged for, and the others name the failure of the one before.");
  for (const auto& [reason, count] : tallies.generations())
    generations.Add(static_cast<double>(count), {{"reason", reason}});
  auto events = out.Counter("meshrun_events_total", "Events of the cluster, by kind.");
  for (const auto& [kind, count] : tallies.events())
    events.Add(static_cast<double>(count), {{"kind", kind}});
}

void CollectTimes(const Measures& measures, const metrics::Buckets& commit, Exposition& out) {
  const Tallies& tallies = measures.tallies;
  out.Histogram("meshrun_queue_wait_seconds",
                "How long jobs waited in the queue before they were placed for the first time.")
      .Add(tallies.queue_wait());
  out.Histogram("meshrun_rendezvous_seconds",
                "How long the phases of a generation's start took: \"prepare\" until all hosts had "
                "agreed, \"commit\" until that was durable, \"start\" until all ranks ran.")
      .Add(tallies.prepare(), {{"phase", "prepare"}})
      .Add(commit, {{"phase", "commit"}})
      .Add(tallies.start(), {{"phase", "start"}});
  out.Counter("meshrun_held_rank_seconds_total",
              "Time for which jobs held resources, once for each rank, in seconds.")
      .Add(measures.held_rank_seconds);
  out.Counter("meshrun_stepping_rank_seconds_total",
              "The part of the held time in which training went on: between two reports of one "
              "generation of which the second had a new highest step.")
      .Add(tallies.stepping_rank_seconds());
  out.Gauge("meshrun_effective_training_time_ratio",
            "Stepping time by held time, since this coordinator leads.")
      .Add(measures.held_rank_seconds > 0
               ? tallies.stepping_rank_seconds() / measures.held_rank_seconds
               : 1);
}

void CollectNodes(const Measures& measures, Exposition& out) {
  auto nodes = out.Gauge("meshrun_nodes", "Nodes by state. The lease of a lost node has ended.");
  for (const char* const state : {"healthy", "suspect", "lost", "draining", "unhealthy"}) {
    const auto found = measures.nodes.find(state);
    nodes.Add(found == measures.nodes.end() ? 0 : found->second, {{"state", state}});
  }
  out.Gauge("meshrun_nodes_drained",
            "Nodes on which a person, or the quarantine, lets nothing new be placed.")
      .Add(measures.nodes_drained);
  out.Gauge("meshrun_slots", "CPU slots of the nodes that are not lost.")
      .Add(static_cast<double>(measures.slots));
  out.Gauge("meshrun_slots_used", "CPU slots that jobs hold.")
      .Add(static_cast<double>(measures.slots_used));
  out.Gauge("meshrun_gpus", "GPUs of the nodes that are not lost.")
      .Add(static_cast<double>(measures.gpus));
  out.Gauge("meshrun_gpus_used", "GPUs that jobs hold.")
      .Add(static_cast<double>(measures.gpus_used));
  out.Gauge("meshrun_ranks_held", "Ranks of jobs that hold resources.")
      .Add(measures.tallies.held_ranks());
  out.Gauge("meshrun_queued_jobs", "Jobs in the queue that are not held back.")
      .Add(static_cast<double>(measures.queued_jobs));
  out.Gauge("meshrun_known_jobs",
            "Jobs that the coordinator remembers, with those that have ended.")
      .Add(static_cast<double>(measures.known_jobs));
}

void CollectConnections(const CoordinatorMetrics::Sources& sources, Exposition& out) {
  auto open = out.Gauge("meshrun_connections", "Open connections, by port.");
  auto closed = out.Counter("meshrun_connections_closed_total",
                            "Connections that were closed to make room for others, by port.");
  auto refused = out.Counter("meshrun_connections_refused_total",
                             "Connections that were refused for want of room, by port.");
  const auto add = [&](const char* port, const CoordinatorMetrics::Sources::Connections& counts) {
    open.Add(static_cast<double>(counts.open), {{"port", port}});
    closed.Add(static_cast<double>(counts.closed), {{"port", port}});
    refused.Add(static_cast<double>(counts.refused), {{"port", port}});
  };
  if (sources.grpc) add("grpc", *sources.grpc);
  add("http", sources.http);
}

}  // namespace

void CoordinatorMetrics::BeginTerm() {
  MutexLock lock(mu_);
  generation_commit_ = metrics::Buckets(metrics::kShortSeconds);
}

void CoordinatorMetrics::OnCall(std::string_view method, absl::StatusCode code, SteadyNanos took) {
  MutexLock lock(mu_);
  auto found = calls_.find(std::pair<std::string, absl::StatusCode>(method, code));
  if (found == calls_.end()) {
    if (calls_.size() >= kMostCalls) return;
    found = calls_.try_emplace({std::string(method), code}, metrics::kShortSeconds).first;
  }
  found->second.Observe(Seconds(took));
}

void CoordinatorMetrics::OnCommit(const EventLoop::Options::Committed& committed) {
  const double took = Seconds(committed.took);
  MutexLock lock(mu_);
  commit_seconds_.Observe(took);
  commit_events_.Observe(static_cast<double>(committed.events));
  commit_rows_.Observe(static_cast<double>(committed.rows));
  if (committed.generations > 0) generation_commit_.Observe(took, committed.generations);
}

void CoordinatorMetrics::CollectShell(const Sources& sources, Exposition& out) const {
  out.Gauge("meshrun_coordinator_leader",
            "1 where this coordinator leads the cluster, 0 where it stands by.")
      .Add(sources.leads ? 1 : 0);
  if (sources.term) {
    out.Gauge("meshrun_coordinator_term",
              "The coordinator's term: it rises with each start and each election.")
        .Add(static_cast<double>(*sources.term));
  }
  out.Gauge("meshrun_coordinator_read_only", "1 while the state cannot be written.")
      .Add(sources.read_only ? 1 : 0);
  out.Gauge("meshrun_events_queued", "Events that wait for the coordinator's loop.")
      .Add(static_cast<double>(sources.queued_events));
  MutexLock lock(mu_);
  auto calls = out.Histogram("meshrun_rpc_seconds",
                             "How long calls with one answer took, by method and gRPC's code.");
  for (const auto& [call, took] : calls_) {
    calls.Add(took, {{"method", call.first}, {"code", absl::StatusCodeToString(call.second)}});
  }
  out.Histogram("meshrun_commit_seconds", "How long commits of the state took.")
      .Add(commit_seconds_);
  out.Histogram("meshrun_commit_events", "Events that were committed together.")
      .Add(commit_events_);
  out.Histogram("meshrun_commit_rows", "Rows that were written together.").Add(commit_rows_);
}

void CoordinatorMetrics::Collect(const Sources& sources, Exposition* out) const {
  CollectShell(sources, *out);
  if (sources.measures != nullptr) {
    CollectJobs(sources.measures->tallies, *out);
    MutexLock lock(mu_);
    CollectTimes(*sources.measures, generation_commit_, *out);
    CollectNodes(*sources.measures, *out);
  }
  CollectConnections(sources, *out);
  if (sources.store_bytes) {
    out->Gauge("meshrun_store_bytes", "Size of the durable state, in bytes.")
        .Add(static_cast<double>(*sources.store_bytes));
  }
  if (sources.store_quota_bytes) {
    out->Gauge("meshrun_store_quota_bytes", "The most that the durable state may have, in bytes.")
        .Add(static_cast<double>(*sources.store_quota_bytes));
  }
  metrics::AddCertificates(*out, sources.certificates);
  metrics::AddProcess(*out, "meshrun-coordinator");
}

}  // namespace meshrun::coordinator
