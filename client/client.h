// The client library: the calls of a command or of another program to a coordinator.
//
//   auto client = Client::Connect({.address = "unix:/run/user/1000/meshrun/coordinator.sock"});
//   auto job = (*client)->Submit(spec);
//   (*client)->Watch(job->job_id(), [](const v1::Job& j) { ... });
//
// Values are the messages of proto/meshrun/v1. Thread-safe; Watch and ReadLogs call back on the
// thread that called them. Every call has a deadline. Errors keep the coordinator's code and text;
// a coordinator that does not answer is UNAVAILABLE (or DEADLINE_EXCEEDED) with its address and
// what to try.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/stream_options.h"
#include "core/rpc/security.h"
#include "meshrun/v1/cluster_service.pb.h"
#include "meshrun/v1/flight_record.pb.h"
#include "meshrun/v1/job_service.pb.h"

namespace meshrun::client {

inline constexpr int kDefaultPort = 7480;

struct Options {
  // unix:PATH, or with TLS host:port, or host (the default port). Of several coordinators all, with
  // commas: calls go to the one that leads, and follow when another one is elected. They go to no
  // coordinator of another cluster than that of the first answer.
  std::string address;
  rpc::Security security;
  // Timeout of each call that does not stream.
  std::chrono::nanoseconds timeout = std::chrono::seconds(5);
  // Timeout of the check in Connect.
  std::chrono::nanoseconds connect_timeout = std::chrono::seconds(3);
  // False: Connect does not check that a coordinator answers; the first call finds out.
  bool check = true;
};

struct LogQuery {
  std::string job_id;
  // Empty: all.
  std::vector<int> ranks;
  std::vector<v1::LogStream> streams;
  bool follow = false;
  // Only the last so many lines of each stream; absent: all.
  std::optional<int64_t> tail_lines;
  // 0: the current one.
  uint64_t generation = 0;
  // Leave out processes that live on from an earlier generation.
  bool started_there = false;
};

// "host" -> "host:7480". INVALID_ARGUMENT: the text cannot be an address.
absl::StatusOr<std::string> NormalizeAddress(std::string_view text);

// Each address of a list with commas (rpc::SplitAddresses).
absl::StatusOr<std::string> NormalizeAddresses(std::string_view text);

// True for SUCCEEDED, FAILED and CANCELLED.
bool HasEnded(v1::JobState state);
// Exit code for a job that has ended.
int ExitCodeOf(const v1::Job& job);

class Client {
 public:
  // Errors: INVALID_ARGUMENT (address, TLS files), PERMISSION_DENIED (another user could have put a
  // socket at this path: nothing was sent), UNAVAILABLE.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(const Options& options);
  ~Client();

  // must_fit: FAILED_PRECONDITION instead of a queue that the job could never leave. A call that
  // broke half-way is repeated with the same request id: never two jobs.
  // `request_id`: that of an earlier call which got no answer; empty: a new one. If an error leaves
  // open whether the job was accepted, its text names the request id.
  // `too_big`: if not null, set to the reason why the registered nodes could never run the job, or
  // cleared.
  absl::StatusOr<v1::Job> Submit(const v1::JobSpec& spec, bool must_fit = false,
                                 const std::string& request_id = "",
                                 std::string* too_big = nullptr);
  absl::StatusOr<v1::GetJobResponse> Get(const std::string& job_id);
  // Newest first.
  // `*more`: where not null, whether there are others beyond the limit.
  absl::StatusOr<std::vector<v1::Job>> List(bool active_only = false, size_t limit = 1000,
                                            bool* more = nullptr);
  // Those that the request asks for; its page size and token are this call's own.
  absl::StatusOr<std::vector<v1::Job>> List(v1::ListJobsRequest request, size_t limit,
                                            bool* more = nullptr);
  // The recent collectives of each rank, or an error where a rank has ended or does not answer
  // within `wait`. FAILED_PRECONDITION: no generation of the job runs.
  absl::StatusOr<std::vector<v1::FlightRecord>> GetFlightRecords(const std::string& job_id,
                                                                 std::chrono::nanoseconds wait);
  // The same with the times at which they came: all that the request asks for; its timeout is this
  // call's `wait`.
  absl::StatusOr<std::vector<v1::GetFlightRecordsResponse>> GetFlightRecords(
      v1::GetFlightRecordsRequest request, std::chrono::nanoseconds wait);
  // Where the processes of ranks stand (`ranks` empty: of all), or an error where a rank has ended
  // or its host does not answer within `wait`. `native`: with frames of machine code, where there
  // are Python's. FAILED_PRECONDITION: no generation of the job runs.
  absl::StatusOr<std::vector<v1::RankStack>> GetStacks(const std::string& job_id,
                                                       const std::vector<int>& ranks, bool native,
                                                       std::chrono::nanoseconds wait);
  // `first_signal`: what the ranks get before SIGTERM, or 0.
  absl::StatusOr<v1::Job> Cancel(const std::string& job_id, bool now, const std::string& reason,
                                 int first_signal = 0);
  // Hold, release, priority.
  absl::StatusOr<v1::Job> Update(const v1::UpdateJobRequest& request);
  // To the rank processes of the running generation; `ranks`: empty: all.
  absl::StatusOr<v1::Job> Signal(const std::string& job_id, int signal,
                                 const std::vector<int>& ranks = {});
  absl::StatusOr<std::vector<v1::Node>> ListNodes();
  absl::StatusOr<v1::DrainNodeResponse> DrainNode(const v1::DrainNodeRequest& request);
  absl::StatusOr<v1::Node> UndrainNode(const std::string& node);
  // Forgets a lost node.
  absl::StatusOr<v1::Node> RemoveNode(const std::string& node, bool gone = false);
  // What the policy allows this user, and what his jobs have; empty: the caller.
  absl::StatusOr<v1::DescribeLimitsResponse> DescribeLimits(const std::string& user = "");
  // The coordinator's state as an SQLite file, whole and checked. `*term`: the coordinator's.
  absl::StatusOr<std::string> Backup(uint64_t* term);
  // All pages, oldest first; `next` of the answer is 0.
  absl::StatusOr<v1::ListUsageResponse> ListUsage(v1::ListUsageRequest request);
  absl::StatusOr<v1::ListAuditResponse> ListAudit(v1::ListAuditRequest request);
  // All that the coordinator keeps, oldest first; `limit` of the request is the size of a page.
  absl::StatusOr<std::vector<v1::ClusterEvent>> ListEvents(v1::ListEventsRequest request);
  absl::StatusOr<v1::DescribeClusterResponse> DescribeCluster(uint32_t max_events = 0);

  // The job as it is, then its changes until it has ended; resumed over interruptions.
  absl::Status Watch(const std::string& job_id,
                     const std::function<void(const v1::Job&)>& on_change,
                     const StreamOptions& options = {});

  // The output of one generation: each byte once, each rank's stream in order, also over
  // interruptions.
  absl::Status ReadLogs(const LogQuery& query,
                        const std::function<void(const v1::ReadLogsResponse&)>& on_data,
                        const StreamOptions& options = {});

  // What was given; the addresses of several coordinators with commas.
  const std::string& address() const;

 private:
  class Impl;
  explicit Client(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace meshrun::client
