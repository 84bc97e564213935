#include "client/job_client.h"

#include <cstdlib>
#include <utility>

#include "client/client.h"
#include "client/coordinator_address.h"
#include "client/job_context.h"
#include "client/job_file.h"
#include "client/job_messages.h"
#include "core/status.h"

namespace meshrun::client {
namespace {

std::string Given(const std::string& value, const char* variable) {
  if (!value.empty()) return value;
  const char* set = std::getenv(variable);
  return set == nullptr ? "" : set;
}

}  // namespace

class JobClient::Impl {
 public:
  explicit Impl(std::unique_ptr<Client> client) : client(std::move(client)) {}

  absl::StatusOr<JobStatus> Submit(const v1::JobSpec& spec, bool must_fit,
                                   const std::string& request_id) const {
    std::string too_big;
    MESHRUN_ASSIGN_OR_RETURN(const v1::Job job,
                             client->Submit(spec, must_fit, request_id, &too_big));
    JobStatus status = StatusOf(job);
    status.too_big = std::move(too_big);
    return status;
  }

  const std::unique_ptr<Client> client;
};

JobClient::JobClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
JobClient::~JobClient() = default;

const std::string& JobClient::address() const { return impl_->client->address(); }

absl::StatusOr<std::unique_ptr<JobClient>> JobClient::Connect(const CoordinatorOptions& options) {
  if (options.timeout.count() <= 0) {
    return absl::InvalidArgumentError("timeout: write a time above 0, for example 5 s");
  }
  MESHRUN_ASSIGN_OR_RETURN(const CoordinatorAddress where, FindCoordinator(options.address));
  Options resolved;
  resolved.address = where.address;
  resolved.security.tls = {.cert = Given(options.tls_cert, "MESHRUN_TLS_CERT"),
                           .key = Given(options.tls_key, "MESHRUN_TLS_KEY"),
                           .ca = Given(options.tls_ca, "MESHRUN_TLS_CA")};
  resolved.security.insecure_loopback = options.insecure_loopback;
  resolved.timeout = resolved.connect_timeout = options.timeout;
  MESHRUN_ASSIGN_OR_RETURN(std::unique_ptr<Client> client, Client::Connect(resolved));
  return std::unique_ptr<JobClient>(new JobClient(std::make_unique<Impl>(std::move(client))));
}

absl::StatusOr<JobStatus> JobClient::Submit(const JobRequest& request) {
  MESHRUN_ASSIGN_OR_RETURN(const v1::JobSpec spec, SpecOf(request, RealJobContext()));
  return impl_->Submit(spec, request.must_fit, request.request_id);
}

absl::StatusOr<JobStatus> JobClient::SubmitFile(const std::string& path) {
  MESHRUN_ASSIGN_OR_RETURN(v1::JobSpec spec, ReadJobFile(path));
  if (const absl::Status status = CompleteSpec(RealJobContext(), &spec); !status.ok()) {
    return Annotate(status, path);
  }
  return impl_->Submit(spec, /*must_fit=*/false, /*request_id=*/"");
}

absl::StatusOr<JobStatus> JobClient::Get(const std::string& job_id) {
  MESHRUN_ASSIGN_OR_RETURN(const v1::GetJobResponse found, impl_->client->Get(job_id));
  return StatusOf(found.job());
}

absl::StatusOr<std::vector<JobStatus>> JobClient::List(bool active_only, size_t limit) {
  MESHRUN_ASSIGN_OR_RETURN(const std::vector<v1::Job> jobs,
                           impl_->client->List(active_only, limit));
  std::vector<JobStatus> out;
  out.reserve(jobs.size());
  for (const v1::Job& job : jobs) out.push_back(StatusOf(job));
  return out;
}

absl::StatusOr<JobStatus> JobClient::Cancel(const std::string& job_id, bool now,
                                            const std::string& reason) {
  MESHRUN_ASSIGN_OR_RETURN(const v1::Job job, impl_->client->Cancel(job_id, now, reason));
  return StatusOf(job);
}

absl::StatusOr<JobStatus> JobClient::Watch(const std::string& job_id,
                                           const std::function<void(const JobStatus&)>& on_change,
                                           const StreamOptions& options) {
  JobStatus last;
  MESHRUN_RETURN_IF_ERROR(impl_->client->Watch(
      job_id,
      [&](const v1::Job& job) {
        last = StatusOf(job);
        if (on_change) on_change(last);
      },
      options));
  return last;
}

absl::Status JobClient::ReadOutput(const OutputQuery& query,
                                   const std::function<void(const OutputPiece&)>& on_piece,
                                   const StreamOptions& options) {
  LogQuery wanted;
  wanted.job_id = query.job_id;
  wanted.ranks = query.ranks;
  wanted.follow = query.follow;
  wanted.tail_lines = query.tail_lines;
  wanted.generation = query.generation;
  return impl_->client->ReadLogs(
      wanted,
      [&](const v1::ReadLogsResponse& chunk) {
        on_piece({.rank = chunk.rank(),
                  .is_stderr = chunk.stream() == v1::LOG_STREAM_STDERR,
                  .data = chunk.data(),
                  .dropped = chunk.dropped()});
      },
      options);
}

}  // namespace meshrun::client
