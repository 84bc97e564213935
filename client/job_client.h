// Jobs for programs of other projects: submits a job, watches it, reads its output. Installed with
// libmeshrun_client.so (docs/cpp_client.md), so that a program needs no header of gRPC, of protobuf
// or of LibTorch; client.h is the whole client, for programs inside this repository.
//
//   auto client = JobClient::Connect();
//   auto job = (*client)->Submit({.command = {"./train"}, .fields = {{"nodes", "1:4"}}});
//   auto end = (*client)->Watch(job->id, [](const JobStatus& now) { ... });
//   return end->exit_code;
//
// Thread-safe; Watch and ReadOutput call back on the thread that called them. Every call has a
// deadline, save those that follow a job: StreamOptions ends these. Errors keep the coordinator's
// code and text; a coordinator that does not answer is UNAVAILABLE or DEADLINE_EXCEEDED with its
// address and what to try. JobId arguments: the beginning of an id that no other job has is enough.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "client/stream_options.h"
#include "core/exit_codes.h"

namespace meshrun::client {

struct CoordinatorOptions {
  // unix:PATH, or with TLS HOST:PORT; of several coordinators all, with commas. Empty:
  // $MESHRUN_COORDINATOR, the cluster of `meshrun dev up`, this user's socket, in this order.
  std::string address{};
  // PEM files, all three or none. Empty: $MESHRUN_TLS_CERT, $MESHRUN_TLS_KEY, $MESHRUN_TLS_CA.
  std::string tls_cert{};
  std::string tls_key{};
  std::string tls_ca{};
  // For tests: plaintext on 127.0.0.1.
  bool insecure_loopback = false;
  // Timeout of each call that does not follow a job.
  std::chrono::nanoseconds timeout = std::chrono::seconds(5);
};

struct JobRequest {
  // Program and arguments. If `job` is set: the arguments of that job.
  std::vector<std::string> command{};
  // Name of a job that ships with meshrun.
  std::string job{};
  // Empty: from the command.
  std::string name{};
  // Empty: the directory of this process.
  std::string working_dir{};
  // Variables for the ranks; nothing of this process's environment is sent.
  std::map<std::string, std::string> env{};
  // All other fields: a key of job.yaml, and the value that the flag of `meshrun submit` takes:
  // {"nodes", "1:4"}, {"procs_per_node", "gpu"}, {"mesh", "dp=-1,spatial=2"}, {"time_limit", "2h"}.
  // Keys with lists (constraints, exclude_nodes) stand once for each element.
  std::vector<std::pair<std::string, std::string>> fields{};
  // FAILED_PRECONDITION, and not a queue that the job could never leave.
  bool must_fit = false;
  // That of an earlier call which got no answer: never two jobs. Empty: a new one.
  std::string request_id{};
};

// QUEUED -> ADMITTED -> RENDEZVOUS -> RUNNING -> SUCCEEDED, FAILED or CANCELLED
// (docs/architecture.md). A coordinator of a later version may send a state that is kUnknown here.
enum class JobState {
  kUnknown,
  kQueued,
  kAdmitted,
  kRendezvous,
  kRunning,
  kQuiescing,
  kWaiting,
  kSuspended,
  kSucceeded,
  kFailed,
  kCancelled,
};
// "QUEUED", as the command shows it.
std::string_view StateName(JobState state);
// True for SUCCEEDED, FAILED and CANCELLED.
bool HasEnded(JobState state);

// First failure of the last generation that failed; what came after it is a consequence.
struct JobFailure {
  // One sentence.
  std::string message;
  // Absent: no rank is to blame.
  std::optional<int> rank;
  std::string node;
  // How the process of that rank ended: one of the two, or neither.
  std::optional<int> exit_code;
  std::optional<int> signal;
  // What the rank last wrote, at most 20 lines.
  std::vector<std::string> last_lines;
};

// What the lowest rank that reports said last. Absent: it did not report that.
struct JobProgress {
  std::optional<int64_t> step;
  std::optional<int64_t> total_steps;
  std::optional<double> loss;
  // All its other numbers by name.
  std::map<std::string, double> metrics;
  std::string note;
};

struct JobStatus {
  std::string id;
  std::string name;
  JobState state = JobState::kUnknown;
  // Why it is in this state, in one sentence; may be empty.
  std::string reason;
  uint64_t generation = 0;
  uint32_t world_size = 0;
  uint32_t restarts = 0;
  std::optional<std::chrono::system_clock::time_point> submitted_at;
  std::optional<std::chrono::system_clock::time_point> started_at;
  std::optional<std::chrono::system_clock::time_point> finished_at;
  std::optional<JobFailure> failure;
  JobProgress progress;
  // Answers of Submit: why the registered nodes could never run it; empty: they can.
  std::string too_big;
  // What `meshrun wait` would return to the shell; absent until the job has ended.
  std::optional<int> exit_code;
};

struct OutputQuery {
  std::string job_id{};
  // Empty: all.
  std::vector<int> ranks{};
  // Go on until the generation has ended.
  bool follow = false;
  // Only the last so many lines of each stream; absent: all that is kept.
  std::optional<int64_t> tail_lines{};
  // 0: the current one.
  uint64_t generation = 0;
};

struct OutputPiece {
  int rank = 0;
  bool is_stderr = false;
  // Bytes as the rank wrote them; a piece may end inside a line. Valid during the callback.
  std::string_view data;
  // Bytes right before these that are no longer kept.
  uint64_t dropped = 0;
};

class JobClient {
 public:
  // Errors: INVALID_ARGUMENT (address, TLS files), PERMISSION_DENIED (another user could have made
  // the socket), UNAVAILABLE, DEADLINE_EXCEEDED.
  static absl::StatusOr<std::unique_ptr<JobClient>> Connect(const CoordinatorOptions& options = {});
  ~JobClient();

  // The job as it was accepted; it may have to wait. INVALID_ARGUMENT: which field is wrong, and
  // what to write. NOT_FOUND: no worker offers this shipped job. If an error leaves open whether
  // the job was accepted, its text names the request id.
  absl::StatusOr<JobStatus> Submit(const JobRequest& request);
  // The job of a job.yaml, as `meshrun submit -f`.
  absl::StatusOr<JobStatus> SubmitFile(const std::string& path);

  absl::StatusOr<JobStatus> Get(const std::string& job_id);
  // Newest first.
  absl::StatusOr<std::vector<JobStatus>> List(bool active_only = false, size_t limit = 1000);
  // Asks for its end and returns at once. `now`: SIGKILL without a grace.
  absl::StatusOr<JobStatus> Cancel(const std::string& job_id, bool now = false,
                                   const std::string& reason = "by a client");

  // Calls `on_change` with the job as it is, then at its changes until it has ended; returns the
  // job as it ended. Goes on over restarts of the coordinator. Changes that a slow reader misses
  // are folded into one.
  absl::StatusOr<JobStatus> Watch(const std::string& job_id,
                                  const std::function<void(const JobStatus&)>& on_change = nullptr,
                                  const StreamOptions& options = {});

  // Output of one generation: each byte once, the stream of each rank in order.
  // FAILED_PRECONDITION: it has not started.
  absl::Status ReadOutput(const OutputQuery& query,
                          const std::function<void(const OutputPiece&)>& on_piece,
                          const StreamOptions& options = {});

  const std::string& address() const;

 private:
  class Impl;
  explicit JobClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace meshrun::client
