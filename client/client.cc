#include "client/client.h"

#include <fmt/format.h>
#include <google/protobuf/util/message_differencer.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <utility>

#include "client/client_impl.h"
#include "core/error_detail.h"
#include "core/exit_codes.h"
#include "core/ids.h"
#include "core/job_delta.h"
#include "core/parse_integer.h"
#include "core/proto_time.h"
#include "core/rpc/channel.h"
#include "core/rpc/leader_choice.h"
#include "core/rpc/status_conversion.h"
#include "core/status.h"
#include "core/utf8.h"

namespace meshrun::client {
namespace {

using google::protobuf::util::MessageDifferencer;
using std::chrono::nanoseconds;
using SteadyTime = std::chrono::steady_clock::time_point;

// How long a coordinator may put a call off, where the caller has no patience of his own.
constexpr std::chrono::seconds kBusyPatience(5);
constexpr std::chrono::seconds kLongestSpread(1);
// To connect to the one coordinator, and to one of several.
constexpr std::chrono::milliseconds kAttempt(2000);
constexpr std::chrono::milliseconds kShortAttempt(1000);

bool IsRetriable(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

// Waits, or returns at once when told to stop. True when it waited to the end.
bool Pause(const std::stop_token& stop, nanoseconds time) {
  std::mutex mu;
  std::condition_variable_any cv;
  std::unique_lock<std::mutex> lock(mu);
  return !cv.wait_for(lock, stop, time, [&] { return stop.stop_requested(); });
}

// Runs `attempt` until it succeeds, fails for good, is stopped, or the coordinator has been away
// for the whole patience. An answer without news does not end an interruption (a read-only
// coordinator gives one, and then ends the call). A refusal is final where the next attempt has no
// other connection, and where it was refused, too.
absl::Status Persist(const StreamOptions& options,
                     const std::function<absl::Status(Attempt*)>& run) {
  auto backoff = std::chrono::milliseconds(20);
  SteadyTime away_since{};
  bool away = false;
  absl::Status refused;
  std::optional<SteadyTime> busy_since;
  while (true) {
    if (options.stop.stop_requested()) return absl::CancelledError("stopped");
    Attempt attempt;
    const absl::Status status = run(&attempt);
    if (options.stop.stop_requested() && !status.ok()) return absl::CancelledError("stopped");
    if (attempt.alive) {
      refused = absl::OkStatus();
      busy_since.reset();
    }
    if (absl::IsUnauthenticated(status) && attempt.connects_anew && refused.ok()) {
      refused = status;
      continue;
    }
    if (const auto wait = rpc::WaitBeforeRepeating(status)) {
      const auto now = std::chrono::steady_clock::now();
      if (!busy_since) busy_since = now;
      if (now - *busy_since >= std::max<nanoseconds>(options.patience, kBusyPatience)) {
        return status;
      }
      if (!Pause(options.stop, *wait)) return absl::CancelledError("stopped");
      continue;
    }
    if (status.ok() || !IsRetriable(status)) return status;
    // A certificate that has ended gets no connection, and so no answer that says why.
    const absl::Status& why = refused.ok() ? status : refused;
    if (attempt.alive || !away) {
      away = true;
      away_since = std::chrono::steady_clock::now();
      backoff = std::chrono::milliseconds(20);
      if (options.patience.count() > 0 && options.on_interruption) options.on_interruption(why);
    }
    if (std::chrono::steady_clock::now() - away_since >= options.patience) return why;
    if (!Pause(options.stop, attempt.pause.value_or(backoff)))
      return absl::CancelledError("stopped");
    backoff = std::min(backoff * 2, std::chrono::milliseconds(1000));
  }
}

}  // namespace

nanoseconds Client::Impl::Spread(nanoseconds wait, int attempt) {
  thread_local std::minstd_rand random{std::random_device()()};
  const nanoseconds doubled = std::min<nanoseconds>(wait * (1 << std::min(attempt, 10)),
                                                    std::max<nanoseconds>(wait, kLongestSpread));
  return doubled / 2 +
         nanoseconds(std::uniform_int_distribution<int64_t>(0, doubled.count())(random));
}

absl::Status Client::Impl::CheckText(const google::protobuf::Message& request) {
  using google::protobuf::FieldDescriptor;
  const google::protobuf::Reflection& in = *request.GetReflection();
  std::vector<const FieldDescriptor*> set;
  in.ListFields(request, &set);
  for (const FieldDescriptor* field : set) {
    const int size = field->is_repeated() ? in.FieldSize(request, field) : 1;
    for (int i = 0; i < size; ++i) {
      if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        MESHRUN_RETURN_IF_ERROR(CheckText(field->is_repeated()
                                              ? in.GetRepeatedMessage(request, field, i)
                                              : in.GetMessage(request, field)));
      } else if (field->type() == FieldDescriptor::TYPE_STRING) {
        const std::string text = field->is_repeated() ? in.GetRepeatedString(request, field, i)
                                                      : in.GetString(request, field);
        if (!IsUtf8(text)) {
          return absl::InvalidArgumentError(
              fmt::format("{}: '{}' is not UTF-8 text", field->name(), EscapeBytes(text)));
        }
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> NormalizeAddresses(std::string_view text) {
  std::string out;
  for (const std::string& address : rpc::SplitAddresses(text)) {
    MESHRUN_ASSIGN_OR_RETURN(const std::string one, NormalizeAddress(address));
    out += (out.empty() ? "" : ",") + one;
  }
  return out;
}

absl::StatusOr<std::string> NormalizeAddress(std::string_view text) {
  if (text.starts_with("unix:")) return std::string(text);
  const absl::Status wrong =
      absl::InvalidArgumentError(fmt::format("'{}' is not the address of a coordinator: write "
                                             "unix:PATH or HOST:PORT, for example head:{}",
                                             text, kDefaultPort));
  if (text.find(';') != std::string_view::npos) {
    return absl::InvalidArgumentError(
        fmt::format("'{}' is not the address of a coordinator: write several with commas, for "
                    "example head1:{},head2:{}",
                    text, kDefaultPort, kDefaultPort));
  }
  if (text.empty() || text.find("//") != std::string_view::npos ||
      text.find(' ') != std::string_view::npos) {
    return wrong;
  }
  if (text.back() == ']') return fmt::format("{}:{}", text, kDefaultPort);
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return fmt::format("{}:{}", text, kDefaultPort);
  const auto port = ParseInteger<uint16_t>(text.substr(colon + 1));
  if (colon == 0 || !port || *port == 0) return wrong;
  return std::string(text);
}

bool HasEnded(v1::JobState state) {
  return state == v1::JOB_STATE_SUCCEEDED || state == v1::JOB_STATE_FAILED ||
         state == v1::JOB_STATE_CANCELLED;
}

int ExitCodeOf(const v1::Job& job) {
  if (job.state() == v1::JOB_STATE_SUCCEEDED) return kExitOk;
  switch (job.failure().cause()) {
    case v1::FAILURE_CAUSE_RANK_EXITED:
      // The rank's own exit code reaches the shell.
      return job.failure().exit().exit_code() == kExitDoNotRequeue ? kExitDoNotRequeue
                                                                   : kExitJobFailed;
    case v1::FAILURE_CAUSE_BAD_COMMAND:
      return kExitUsage;
    case v1::FAILURE_CAUSE_QUEUE_TIMEOUT:
      return kExitTryAgain;
    case v1::FAILURE_CAUSE_TIME_LIMIT:
      return kExitDeadline;
    default:
      return kExitJobFailed;
  }
}

Client::Client(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Client::~Client() = default;

const std::string& Client::address() const { return impl_->options.address; }

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(const Options& options) {
  Options resolved = options;
  MESHRUN_ASSIGN_OR_RETURN(resolved.address, NormalizeAddresses(options.address));
  const auto choice = rpc::LeaderChoice::Of(resolved.address);
  // One of several may be on a host that is gone, and swallows what is sent.
  const auto attempt = choice->HasOthers() ? kShortAttempt : kAttempt;
  auto channel = rpc::RenewedChannel::Create(
      {.choice = choice,
       .make =
           [resolved, attempt](const std::string& address) {
             return rpc::MakeChannel("meshrun", address, resolved.security, {}, attempt);
           },
       .run = [](const std::function<void()>& work) { work(); }});
  if (absl::IsNotFound(channel.status()) && resolved.address.starts_with("unix:")) {
    return Client::Impl::NoCoordinator(resolved.address, "no such file or directory");
  }
  if (!channel.ok()) return channel.status();
  std::unique_ptr<Client> client(new Client(std::make_unique<Impl>(resolved, *std::move(channel))));
  if (options.check) {
    v1::DescribeClusterRequest request;
    request.set_max_events(1);
    v1::DescribeClusterResponse response;
    MESHRUN_RETURN_IF_ERROR(client->impl_->Call(client->impl_->cluster,
                                                &v1::ClusterService::Stub::DescribeCluster, request,
                                                &response, resolved.connect_timeout));
  }
  return client;
}

absl::StatusOr<v1::Job> Client::Submit(const v1::JobSpec& spec, bool must_fit,
                                       const std::string& request_id, std::string* too_big) {
  RandomIdSource ids;
  v1::SubmitJobRequest request;
  *request.mutable_spec() = spec;
  request.set_request_id(request_id.empty() ? NewRequestId(ids) : request_id);
  request.set_must_fit(must_fit);
  v1::SubmitJobResponse response;
  StreamOptions once_more;
  once_more.patience = impl_->options.timeout / 2;
  const absl::Status status = Persist(once_more, [&](Attempt*) {
    return impl_->Call(impl_->jobs, &v1::JobService::Stub::SubmitJob, request, &response);
  });
  if (IsRetriable(status)) {
    return absl::Status(
        status.code(),
        fmt::format("{}; the job may have been accepted: submit it again with --request-id {}, "
                    "which never makes two of it",
                    std::string(status.message()), request.request_id()));
  }
  MESHRUN_RETURN_IF_ERROR(status);
  if (too_big != nullptr) *too_big = response.too_big();
  return std::move(*response.mutable_job());
}

absl::StatusOr<v1::GetJobResponse> Client::Get(const std::string& job_id) {
  v1::GetJobRequest request;
  request.set_job_id(job_id);
  v1::GetJobResponse response;
  MESHRUN_RETURN_IF_ERROR(
      impl_->Call(impl_->jobs, &v1::JobService::Stub::GetJob, request, &response));
  while (response.next_rank() != 0) {
    request.set_first_rank(response.next_rank());
    v1::GetJobResponse page;
    MESHRUN_RETURN_IF_ERROR(
        impl_->Call(impl_->jobs, &v1::JobService::Stub::GetJob, request, &page));
    if (page.job().generation() != response.job().generation()) return Get(job_id);
    response.mutable_job()->mutable_ranks()->MergeFrom(page.job().ranks());
    response.set_next_rank(page.next_rank());
  }
  return response;
}

absl::StatusOr<std::vector<v1::Job>> Client::List(bool active_only, size_t limit, bool* more) {
  v1::ListJobsRequest request;
  request.set_active_only(active_only);
  return List(std::move(request), limit, more);
}

absl::StatusOr<std::vector<v1::Job>> Client::List(v1::ListJobsRequest request, size_t limit,
                                                  bool* more) {
  if (more != nullptr) *more = false;
  std::vector<v1::Job> jobs;
  while (jobs.size() < limit) {
    request.set_page_size(static_cast<uint32_t>(std::min<size_t>(limit - jobs.size(), 200)));
    v1::ListJobsResponse response;
    MESHRUN_RETURN_IF_ERROR(
        impl_->Call(impl_->jobs, &v1::JobService::Stub::ListJobs, request, &response));
    for (v1::Job& job : *response.mutable_jobs()) jobs.push_back(std::move(job));
    if (response.next_page_token().empty()) break;
    if (more != nullptr) *more = jobs.size() >= limit;
    request.set_page_token(response.next_page_token());
  }
  return jobs;
}

absl::StatusOr<std::vector<v1::FlightRecord>> Client::GetFlightRecords(const std::string& job_id,
                                                                       nanoseconds wait) {
  v1::GetFlightRecordsRequest request;
  request.set_job_id(job_id);
  MESHRUN_ASSIGN_OR_RETURN(auto answers, GetFlightRecords(std::move(request), wait));
  std::vector<v1::FlightRecord> records;
  for (v1::GetFlightRecordsResponse& answer : answers) {
    records.push_back(std::move(*answer.mutable_record()));
  }
  return records;
}

absl::StatusOr<std::vector<v1::GetFlightRecordsResponse>> Client::GetFlightRecords(
    v1::GetFlightRecordsRequest request, nanoseconds wait) {
  *request.mutable_timeout() = ToProtoDuration(wait);
  MESHRUN_RETURN_IF_ERROR(Impl::CheckText(request));
  std::vector<v1::GetFlightRecordsResponse> answers;
  StreamOptions once;
  once.patience = impl_->PatienceOfAnswer();
  MESHRUN_RETURN_IF_ERROR(Persist(once, [&](Attempt* attempt) {
    answers.clear();
    grpc::ClientContext context;
    rpc::SetTimeout(context, wait + impl_->options.timeout);
    std::string address;
    const auto stub = impl_->jobs.Get(&address);
    if (const grpc::Status met = impl_->Meet(address, impl_->options.timeout); !met.ok()) {
      return impl_->End(impl_->jobs, stub, address, met, attempt);
    }
    const auto reader = stub->GetFlightRecords(&context, request);
    v1::GetFlightRecordsResponse answer;
    while (reader->Read(&answer)) answers.push_back(std::move(answer));
    return impl_->End(impl_->jobs, stub, address, reader->Finish(), attempt);
  }));
  return answers;
}

absl::StatusOr<std::vector<v1::RankStack>> Client::GetStacks(const std::string& job_id,
                                                             const std::vector<int>& ranks,
                                                             bool native, nanoseconds wait) {
  v1::GetStacksRequest request;
  request.set_job_id(job_id);
  *request.mutable_timeout() = ToProtoDuration(wait);
  request.mutable_ranks()->Assign(ranks.begin(), ranks.end());
  request.set_native(native);
  MESHRUN_RETURN_IF_ERROR(Impl::CheckText(request));
  std::vector<v1::RankStack> stacks;
  StreamOptions once;
  once.patience = impl_->PatienceOfAnswer();
  MESHRUN_RETURN_IF_ERROR(Persist(once, [&](Attempt* attempt) {
    stacks.clear();
    grpc::ClientContext context;
    rpc::SetTimeout(context, wait + impl_->options.timeout);
    std::string address;
    const auto stub = impl_->jobs.Get(&address);
    if (const grpc::Status met = impl_->Meet(address, impl_->options.timeout); !met.ok()) {
      return impl_->End(impl_->jobs, stub, address, met, attempt);
    }
    const auto reader = stub->GetStacks(&context, request);
    v1::GetStacksResponse response;
    while (reader->Read(&response)) stacks.push_back(std::move(*response.mutable_stack()));
    return impl_->End(impl_->jobs, stub, address, reader->Finish(), attempt);
  }));
  return stacks;
}

absl::StatusOr<v1::Job> Client::Cancel(const std::string& job_id, bool now,
                                       const std::string& reason, int first_signal) {
  v1::CancelJobRequest request;
  request.set_job_id(job_id);
  request.set_now(now);
  request.set_reason(reason);
  request.set_first_signal(first_signal);
  v1::CancelJobResponse response;
  MESHRUN_RETURN_IF_ERROR(
      impl_->Call(impl_->jobs, &v1::JobService::Stub::CancelJob, request, &response));
  return std::move(*response.mutable_job());
}

absl::Status Client::Watch(const std::string& job_id,
                           const std::function<void(const v1::Job&)>& on_change,
                           const StreamOptions& options) {
  v1::WatchJobRequest request;
  request.set_job_id(job_id);
  request.set_deltas(true);
  bool ended = false;
  v1::Job last;
  return Persist(options, [&](Attempt* attempt) -> absl::Status {
    const std::function<bool(v1::WatchJobResponse&)> deliver = [&](v1::WatchJobResponse& response) {
      if (response.has_delta()) {
        *response.mutable_job() = last;
        Fold(response.delta(), response.mutable_job());
      }
      v1::Job& job = *response.mutable_job();
      ended = HasEnded(job.state());
      // A new stream begins with the job as it is, which may be what the last one ended with. The
      // revision alone does not tell: it can fall back and rise again where a coordinator restarts.
      if (job.revision() == last.revision() && MessageDifferencer::Equals(job, last)) return false;
      last.Swap(&job);
      on_change(last);
      return true;
    };
    const absl::Status status =
        impl_->Stream(&v1::JobService::Stub::WatchJob, request, options.stop, attempt, deliver);
    if (status.ok() && !ended) return absl::UnavailableError("the coordinator closed the stream");
    return ended ? absl::OkStatus() : status;
  });
}

absl::Status Client::ReadLogs(const LogQuery& query,
                              const std::function<void(const v1::ReadLogsResponse&)>& on_data,
                              const StreamOptions& options) {
  v1::ReadLogsRequest request;
  request.set_job_id(query.job_id);
  for (const int rank : query.ranks) request.add_ranks(rank);
  for (const v1::LogStream stream : query.streams) request.add_streams(stream);
  request.set_follow(query.follow);
  if (query.tail_lines) request.set_tail_lines(*query.tail_lines);
  request.set_generation(query.generation);
  request.set_started_there(query.started_there);
  // The first byte not yet delivered, by rank and stream.
  std::map<std::pair<int, int>, uint64_t> next;
  return Persist(options, [&](Attempt* attempt) -> absl::Status {
    if (!next.empty()) {
      request.clear_positions();
      request.clear_tail_lines();
      for (const auto& [key, offset] : next) {
        v1::LogPosition* position = request.add_positions();
        position->set_rank(key.first);
        position->set_stream(static_cast<v1::LogStream>(key.second));
        position->set_offset(offset);
      }
    }
    const std::function<bool(v1::ReadLogsResponse&)> deliver = [&](v1::ReadLogsResponse& chunk) {
      request.set_generation(chunk.generation());
      uint64_t& offset =
          next.try_emplace({chunk.rank(), chunk.stream()}, chunk.offset() - chunk.dropped())
              .first->second;
      const uint64_t end = chunk.offset() + chunk.data().size();
      if (end <= offset) return false;
      // Said before, where a stream has been resumed.
      chunk.set_dropped(
          std::min(chunk.dropped(), chunk.offset() - std::min(chunk.offset(), offset)));
      if (chunk.offset() < offset) {
        chunk.mutable_data()->erase(0, offset - chunk.offset());
        chunk.set_offset(offset);
      }
      offset = end;
      on_data(chunk);
      return true;
    };
    return impl_->Stream(&v1::JobService::Stub::ReadLogs, request, options.stop, attempt, deliver);
  });
}

}  // namespace meshrun::client
