#include "coordinator/api/routes.h"

#include <algorithm>
#include <utility>

namespace meshrun::coordinator {
namespace {

constexpr Parameter kJob{"job", "job_id",
                         "Id of the job; its beginning is enough, where only one job has it."};
constexpr Parameter kNode{"node", "node", "Name or id of the node."};

std::vector<Parameter> LogQuery() {
  return {
      {"ranks", "ranks", "Only these ranks, for example 0,4-7."},
      {"stream", "streams", "Only this stream: stdout or stderr."},
      {"tail", "tail_lines", "Only the last so many lines of each stream as it is now."},
      {"generation", "generation", "Output of this generation; 0: of the current one."},
      {"after", "positions",
       "Only output after this place: `next` of the last answer. `tail` counts only for streams "
       "that have no place in it."},
  };
}

// In the order of the document.
std::vector<Route> MakeRoutes() {
  return {
      {.http = "GET",
       .path = "/me",
       .method = "http:/api/v1/me",
       .answer = AnswerKind::kCaller,
       .summary = "Who the caller is, and which methods its roles allow"},
      {.http = "GET",
       .path = "/cluster",
       .method = "/meshrun.v1.ClusterService/DescribeCluster",
       .query = {{"events", "max_events", "So many of the latest events; 0: 50."}},
       .summary = "Version, term, counts, and the latest events"},
      {.http = "GET",
       .path = "/nodes",
       .method = "/meshrun.v1.ClusterService/ListNodes",
       .query = {{"pageSize", "page_size", "So many nodes at most; 0: all."},
                 {"pageToken", "page_token", "nextPageToken of the last page."}},
       .summary = "Nodes, in natural order of their names"},
      {.http = "GET",
       .path = "/jobs",
       .method = "/meshrun.v1.JobService/ListJobs",
       .query = {{"user", "user", "Only jobs of this submitter."},
                 {"state", "states", "Only jobs in one of these states; may be repeated."},
                 {"activeOnly", "active_only", "Only jobs that have not ended."},
                 {"runningFirst", "running_first",
                  "Jobs with ranks on nodes first, then those in the queue, then those that have "
                  "ended."},
                 {"array", "array_id", "Only jobs of this array: its whole id."},
                 {"pageSize", "page_size", "So many jobs at most; 0: 100."},
                 {"pageToken", "page_token", "nextPageToken of the last page."}},
       .summary = "Jobs without their ranks, newest first"},
      {.http = "GET",
       .path = "/jobs/{job}",
       .method = "/meshrun.v1.JobService/GetJob",
       .path_parameters = {kJob},
       .query = {{"firstRank", "first_rank",
                  "Only ranks from this one on: nextRank of the last page."},
                 {"maxRanks", "max_ranks", "So many ranks at most; 0: 2000."}},
       .summary = "A job with its ranks, events and curve"},
      {.http = "GET",
       .path = "/jobs/{job}/watch",
       .method = "/meshrun.v1.JobService/WatchJob",
       .answer = AnswerKind::kEvents,
       .path_parameters = {kJob},
       .fixed = {{"deltas", true}, {"curve", true}},
       .summary = "A job and its changes as server-sent events, until it has ended"},
      {.http = "GET",
       .path = "/jobs/{job}/events",
       .method = "/meshrun.v1.ClusterService/ListEvents",
       .path_parameters = {kJob},
       .query = {{"after", "after", "Only events after this sequence."},
                 {"limit", "limit", "The oldest so many; 0: 1000."}},
       .summary = "Events of a job, oldest first"},
      {.http = "GET",
       .path = "/events",
       .method = "/meshrun.v1.ClusterService/ListEvents",
       .query = {{"node", "node", "Only events of this node: its name or id."},
                 {"after", "after", "Only events after this sequence."},
                 {"limit", "limit", "The oldest so many; 0: 1000."}},
       .summary = "Events of the cluster or of a node, oldest first"},
      {.http = "GET",
       .path = "/jobs/{job}/logs",
       .method = "/meshrun.v1.JobService/ReadLogs",
       .answer = AnswerKind::kLogPieces,
       .path_parameters = {kJob},
       .query = LogQuery(),
       .summary = "Output of a job's ranks as it is now, in pages of about 1 MiB"},
      {.http = "GET",
       .path = "/jobs/{job}/logs/follow",
       .method = "/meshrun.v1.JobService/ReadLogs",
       .answer = AnswerKind::kLogEvents,
       .path_parameters = {kJob},
       .query = LogQuery(),
       .fixed = {{"follow", true}},
       .summary = "Output of a job's ranks as server-sent events, while they write it"},
      {.http = "GET",
       .path = "/jobs/{job}/pictures",
       .method = "/meshrun.v1.JobService/ReadPictures",
       .answer = AnswerKind::kPictures,
       .path_parameters = {kJob},
       .summary = "Which pictures a job's ranks have written"},
      {.http = "GET",
       .path = "/jobs/{job}/pictures/{rank}/{name}",
       .method = "/meshrun.v1.JobService/ReadPictures",
       .answer = AnswerKind::kPicture,
       .path_parameters = {kJob,
                           {"rank", "rank", "The rank that has written it."},
                           {"name", "name", "Its name, with the suffix: map.png."}},
       .query =
           {{"at", "",
             "Its modifiedAt: a browser asks anew for a picture that has changed. The answer is "
             "the picture as it is now."}},
       .summary = "One of these pictures"},
      {.http = "POST",
       .path = "/jobs/{job}/stacks",
       .method = "/meshrun.v1.JobService/GetStacks",
       .answer = AnswerKind::kStacks,
       .path_parameters = {kJob},
       .body = {"ranks", "native"},
       .summary = "Where the processes of a job's ranks stand"},
      {.http = "POST",
       .path = "/jobs/{job}/flightRecords",
       .method = "/meshrun.v1.JobService/GetFlightRecords",
       .answer = AnswerKind::kFlightRecords,
       .path_parameters = {kJob},
       .summary = "What the collectives of a job's ranks have been doing"},
      {.http = "POST",
       .path = "/jobs/{job}/cancel",
       .method = "/meshrun.v1.JobService/CancelJob",
       .path_parameters = {kJob},
       .body = {"now", "reason"},
       .summary = "Cancels a job, or all jobs of an array"},
      {.http = "POST",
       .path = "/jobs/{job}/hold",
       .method = "/meshrun.v1.JobService/UpdateJob",
       .path_parameters = {kJob},
       .fixed = {{"hold", true}},
       .summary = "Holds a job back in the queue"},
      {.http = "POST",
       .path = "/jobs/{job}/release",
       .method = "/meshrun.v1.JobService/UpdateJob",
       .path_parameters = {kJob},
       .fixed = {{"hold", false}},
       .summary = "Releases a job that is held"},
      {.http = "POST",
       .path = "/jobs/{job}/priority",
       .method = "/meshrun.v1.JobService/UpdateJob",
       .path_parameters = {kJob},
       .body = {"priority"},
       .required = {"priority"},
       .summary = "Changes a job's priority in the queue"},
      {.http = "POST",
       .path = "/nodes/{node}/drain",
       .method = "/meshrun.v1.ClusterService/DrainNode",
       .path_parameters = {kNode},
       .body = {"reason", "deadline"},
       .summary = "Places nothing new on a node"},
      {.http = "POST",
       .path = "/nodes/{node}/undrain",
       .method = "/meshrun.v1.ClusterService/UndrainNode",
       .path_parameters = {kNode},
       .summary = "Takes a drained node back"},
      {.http = "GET",
       .path = "/usage",
       .method = "/meshrun.v1.ClusterService/ListUsage",
       .query = {{"since", "since", "Only jobs that ended at this time or later."},
                 {"until", "until", "Only jobs that ended before this time."},
                 {"user", "user", "Only jobs of this user."},
                 {"account", "account", "Only jobs of this account."},
                 {"after", "after",
                  "Only records after this sequence: `next` of the last answer."}},
       .summary = "What jobs that have ended have used"},
      {.http = "GET",
       .path = "/limits",
       .method = "/meshrun.v1.ClusterService/DescribeLimits",
       .query = {{"user", "user", "The user; none: the caller."}},
       .summary = "What the policy allows a user, and what his jobs have now"},
      {.http = "GET",
       .path = "/openapi.json",
       .method = "http:/api/v1/openapi.json",
       .answer = AnswerKind::kDocument,
       .summary = "This document"},
  };
}

// Parts between slashes: "/jobs/{job}" has "jobs" and "{job}".
std::vector<std::string_view> Parts(std::string_view path) {
  std::vector<std::string_view> out;
  while (path.starts_with('/')) {
    path.remove_prefix(1);
    const size_t end = std::min(path.find('/'), path.size());
    out.push_back(path.substr(0, end));
    path.remove_prefix(end);
  }
  return out;
}

bool Fits(const Route& route, const std::vector<std::string_view>& parts,
          std::map<std::string, std::string>* values) {
  const std::vector<std::string_view> wanted = Parts(route.path);
  if (wanted.size() != parts.size()) return false;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!wanted[i].starts_with('{')) {
      if (wanted[i] != parts[i]) return false;
    } else {
      if (parts[i].empty()) return false;
      (*values)[std::string(wanted[i].substr(1, wanted[i].size() - 2))] = parts[i];
    }
  }
  return true;
}

}  // namespace

std::span<const Route> Routes() {
  static const auto* const routes = new auto(MakeRoutes());
  return *routes;
}

Match FindRoute(std::string_view http, std::string_view path) {
  Match match;
  if (!path.starts_with(kApiBase)) return match;
  const std::vector<std::string_view> parts = Parts(path.substr(kApiBase.size()));
  if (http == "HEAD") http = "GET";
  for (const Route& route : Routes()) {
    std::map<std::string, std::string> values;
    if (!Fits(route, parts, &values)) continue;
    if (route.http != http) {
      match.allowed = route.http;
      continue;
    }
    match.route = &route;
    match.path_values = std::move(values);
    break;
  }
  return match;
}

}  // namespace meshrun::coordinator
