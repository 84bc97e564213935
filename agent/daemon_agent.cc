#include "agent/daemon_agent.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "agent/deadlines.h"
#include "core/mesh_messages.h"
#include "core/os/routes.h"
#include "core/proto_time.h"
#include "core/rpc/channel.h"
#include "core/rpc/status_conversion.h"
#include "core/status.h"
#include "core/wait_messages.h"

namespace meshrun::agent {
namespace {

// Nobody waits longer for a flight record.
constexpr std::chrono::seconds kUploadTimeout(2);
// A watch lasts as long as the generation; it is opened anew from time to time.
constexpr std::chrono::hours kWatchTimeout(24);
// A daemon that is there again answers at once; else it is asked again.
constexpr std::chrono::seconds kTellAgainTimeout(1);

// At timeout 0 the store says NOT_FOUND; here a timeout is a timeout.
absl::Status AsTimeout(const absl::Status& status) {
  return absl::IsNotFound(status) ? absl::DeadlineExceededError(status.message()) : status;
}

v1::Progress ProgressOf(const Progress& progress) {
  v1::Progress out;
  if (progress.step) out.set_step(*progress.step);
  if (progress.total_steps) out.set_total_steps(*progress.total_steps);
  if (progress.loss) out.set_loss(*progress.loss);
  for (const auto& [name, value] : progress.metrics) (*out.mutable_metrics())[name] = value;
  out.set_note(progress.note);
  return out;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Agent>> DaemonAgent::Connect(const AgentEnvironment& environment,
                                                            Milliseconds timeout, bool in_process) {
  MESHRUN_ASSIGN_OR_RETURN(auto channel, rpc::MakeChannel("agent", environment.address, {}));
  std::unique_ptr<DaemonAgent> agent(new DaemonAgent(environment, std::move(channel)));
  MESHRUN_RETURN_IF_ERROR(agent->Register(timeout, in_process));
  return agent;
}

DaemonAgent::DaemonAgent(const AgentEnvironment& environment,
                         std::shared_ptr<grpc::Channel> channel)
    : environment_(environment),
      agent_(v1::AgentService::NewStub(channel)),
      store_(v1::StoreService::NewStub(channel)),
      reports_(environment.report_socket),
      calls_(fmt::format("the worker daemon at {}", environment.address), environment.token) {}

DaemonAgent::~DaemonAgent() {
  if (::getpid() != process_) {
    // The connection and the threads are the parent's: never released here.
    static_cast<void>(agent_.release());
    static_cast<void>(store_.release());
    new std::vector<std::thread>(std::move(watchers_));
    return;
  }
  calls_.CancelAll();
  std::vector<std::thread> watchers;
  {
    MutexLock lock(mu_);
    watchers.swap(watchers_);
  }
  for (std::thread& watcher : watchers) watcher.join();
}

v1::Fence DaemonAgent::Fence() const {
  v1::Fence fence;
  fence.set_job_id(environment_.job_id);
  fence.set_generation(environment_.generation);
  return fence;
}

absl::Status DaemonAgent::Register(Milliseconds timeout, bool in_process) {
  v1::RegisterRankRequest request;
  request.set_in_process(in_process);
  *request.mutable_fence() = Fence();
  request.set_rank(environment_.rank);
  request.set_pid(::getpid());
  request.set_token(environment_.token);
  v1::RegisterRankResponse response;
  MESHRUN_RETURN_IF_ERROR(calls_.Run(After(timeout), [&](grpc::ClientContext& context, auto) {
    return agent_->RegisterRank(&context, request, &response);
  }));
  assignment_ = {.job_id = environment_.job_id,
                 .generation = environment_.generation,
                 .rank = response.assignment().rank(),
                 .world_size = response.world_size(),
                 .local_rank = response.assignment().local_rank(),
                 .local_world_size = response.local_world_size(),
                 .node_rank = response.assignment().node_rank(),
                 .node_count = response.node_count(),
                 .node_name = response.node_name(),
                 .master_addr = response.master_addr(),
                 .master_port = static_cast<int>(response.master_port())};
  assignment_.mesh = AxesOf(response.mesh());
  return absl::OkStatus();
}

absl::StatusOr<WorldTable> DaemonAgent::World(Milliseconds timeout) {
  v1::GetWorldRequest request;
  *request.mutable_fence() = Fence();
  v1::GetWorldResponse response;
  MESHRUN_RETURN_IF_ERROR(calls_.Run(After(timeout), [&](grpc::ClientContext& context, auto) {
    return store_->GetWorld(&context, request, &response);
  }));
  WorldTable table;
  table.node_ranks.resize(assignment_.world_size, -1);
  table.addresses.resize(assignment_.world_size);
  std::map<std::string, std::string> address_of;
  for (const v1::NodeAddresses& node : response.world().addresses()) {
    address_of[node.node_id()] =
        os::FirstWithRoute({node.addresses().begin(), node.addresses().end()});
  }
  for (const v1::RankAssignment& rank : response.world().ranks()) {
    if (rank.rank() < 0 || rank.rank() >= assignment_.world_size) continue;
    table.node_ranks[rank.rank()] = rank.node_rank();
    table.addresses[rank.rank()] = address_of[rank.node_id()];
  }
  if (std::count(table.node_ranks.begin(), table.node_ranks.end(), -1) > 0) {
    return absl::InternalError(fmt::format("the world table has {} ranks, the world {}",
                                           response.world().ranks_size(), assignment_.world_size));
  }
  return table;
}

template <typename Request>
Request DaemonAgent::NewRequest() {
  Request request;
  *request.mutable_fence() = Fence();
  if constexpr (requires { request.set_request_id(""); })
    request.set_request_id(NewRequestId(ids_));
  return request;
}

template <typename Request, typename Response>
absl::Status DaemonAgent::Call(Method<Request, Response> method, const Request& request,
                               Response* response) {
  return calls_.Run(After(kCallTimeout), [&](grpc::ClientContext& context, auto) {
    return ((*store_).*method)(&context, request, response);
  });
}

template <typename Request, typename Response>
absl::Status DaemonAgent::WaitingCall(Method<Request, Response> method, Request request,
                                      Milliseconds timeout, Response* response,
                                      const std::stop_token& stop) {
  auto counted = std::chrono::steady_clock::now();
  return AsTimeout(calls_.Run(
      After(timeout),
      [&](grpc::ClientContext& context, std::chrono::nanoseconds remaining) {
        *request.mutable_timeout() = ToProtoDuration(remaining);
        const grpc::Status status = ((*store_).*method)(&context, request, response);
        // Here, with the pause before: once the call is over this object may be gone.
        const auto now = std::chrono::steady_clock::now();
        AddWaited(now - std::exchange(counted, now));
        return status;
      },
      stop));
}

void DaemonAgent::Report(const Progress& progress) {
  Progress with_wait = progress;
  with_wait.waited_seconds = static_cast<double>(waited_.load()) * 1e-9;
  reports_.Send(with_wait);
}

absl::Status DaemonAgent::Set(std::string_view key, std::string_view value) {
  return MultiSet({std::string(key)}, {std::string(value)});
}

absl::Status DaemonAgent::MultiSet(const std::vector<std::string>& keys,
                                   const std::vector<std::string>& values) {
  if (keys.size() != values.size()) {
    return absl::InvalidArgumentError(
        fmt::format("MultiSet: {} keys and {} values", keys.size(), values.size()));
  }
  auto request = NewRequest<v1::SetValuesRequest>();
  for (size_t i = 0; i < keys.size(); ++i) (*request.mutable_values())[keys[i]] = values[i];
  v1::SetValuesResponse response;
  return Call(&v1::StoreService::Stub::SetValues, request, &response);
}

absl::StatusOr<std::string> DaemonAgent::Get(std::string_view key, Milliseconds timeout) {
  MESHRUN_ASSIGN_OR_RETURN(std::vector<std::string> values,
                           MultiGet({std::string(key)}, timeout, {}));
  return std::move(values.front());
}

absl::StatusOr<std::vector<std::string>> DaemonAgent::MultiGet(const std::vector<std::string>& keys,
                                                               Milliseconds timeout,
                                                               const std::stop_token& stop) {
  auto request = NewRequest<v1::GetValuesRequest>();
  request.mutable_keys()->Add(keys.begin(), keys.end());
  v1::GetValuesResponse response;
  MESHRUN_RETURN_IF_ERROR(WaitingCall(&v1::StoreService::Stub::GetValues, std::move(request),
                                      timeout, &response, stop));
  if (response.values_size() != static_cast<int>(keys.size())) {
    return absl::InternalError(
        fmt::format("asked for {} keys, got {} values", keys.size(), response.values_size()));
  }
  return std::vector<std::string>(response.values().begin(), response.values().end());
}

absl::Status DaemonAgent::Wait(const std::vector<std::string>& keys, Milliseconds timeout) {
  auto request = NewRequest<v1::WaitKeysRequest>();
  request.mutable_keys()->Add(keys.begin(), keys.end());
  v1::WaitKeysResponse response;
  return WaitingCall(&v1::StoreService::Stub::WaitKeys, std::move(request), timeout, &response);
}

absl::StatusOr<bool> DaemonAgent::Check(const std::vector<std::string>& keys) {
  auto request = NewRequest<v1::CountKeysRequest>();
  request.mutable_keys()->Add(keys.begin(), keys.end());
  v1::CountKeysResponse response;
  MESHRUN_RETURN_IF_ERROR(Call(&v1::StoreService::Stub::CountKeys, request, &response));
  return response.existing() == keys.size();
}

absl::StatusOr<int64_t> DaemonAgent::Add(std::string_view key, int64_t amount) {
  auto request = NewRequest<v1::AddValueRequest>();
  request.set_key(std::string(key));
  request.set_amount(amount);
  v1::AddValueResponse response;
  MESHRUN_RETURN_IF_ERROR(Call(&v1::StoreService::Stub::AddValue, request, &response));
  return response.value();
}

absl::StatusOr<std::string> DaemonAgent::CompareSet(std::string_view key, std::string_view expected,
                                                    std::string_view desired) {
  auto request = NewRequest<v1::CompareSetValueRequest>();
  request.set_key(std::string(key));
  request.set_expected(std::string(expected));
  request.set_desired(std::string(desired));
  v1::CompareSetValueResponse response;
  MESHRUN_RETURN_IF_ERROR(Call(&v1::StoreService::Stub::CompareSetValue, request, &response));
  return response.has_value() ? response.value() : std::string(expected);
}

absl::Status DaemonAgent::Append(std::string_view key, std::string_view value) {
  auto request = NewRequest<v1::AppendValueRequest>();
  request.set_key(std::string(key));
  request.set_value(std::string(value));
  v1::AppendValueResponse response;
  return Call(&v1::StoreService::Stub::AppendValue, request, &response);
}

absl::StatusOr<bool> DaemonAgent::Delete(std::string_view key) {
  auto request = NewRequest<v1::DeleteKeyRequest>();
  request.set_key(std::string(key));
  v1::DeleteKeyResponse response;
  MESHRUN_RETURN_IF_ERROR(Call(&v1::StoreService::Stub::DeleteKey, request, &response));
  return response.deleted();
}

absl::StatusOr<int64_t> DaemonAgent::CountKeys() {
  const auto request = NewRequest<v1::CountKeysRequest>();
  v1::CountKeysResponse response;
  MESHRUN_RETURN_IF_ERROR(Call(&v1::StoreService::Stub::CountKeys, request, &response));
  return static_cast<int64_t>(response.total());
}

absl::Status DaemonAgent::Barrier(std::string_view name, const std::vector<int>& ranks,
                                  Milliseconds timeout) {
  auto request = NewRequest<v1::EnterBarrierRequest>();
  request.set_name(std::string(name));
  request.set_rank(environment_.rank);
  request.mutable_ranks()->Add(ranks.begin(), ranks.end());
  v1::EnterBarrierResponse response;
  return WaitingCall(&v1::StoreService::Stub::EnterBarrier, std::move(request), timeout, &response);
}

absl::Status DaemonAgent::PublishUniqueId(std::string_view group, std::string_view unique_id) {
  auto request = NewRequest<v1::PublishUniqueIdRequest>();
  request.set_group(std::string(group));
  request.set_rank(environment_.rank);
  request.set_unique_id(std::string(unique_id));
  v1::PublishUniqueIdResponse response;
  return Call(&v1::StoreService::Stub::PublishUniqueId, request, &response);
}

absl::StatusOr<std::string> DaemonAgent::AwaitUniqueId(std::string_view group,
                                                       Milliseconds timeout) {
  auto request = NewRequest<v1::AwaitUniqueIdRequest>();
  request.set_group(std::string(group));
  request.set_rank(environment_.rank);
  v1::AwaitUniqueIdResponse response;
  MESHRUN_RETURN_IF_ERROR(
      WaitingCall(&v1::StoreService::Stub::AwaitUniqueId, std::move(request), timeout, &response));
  return response.unique_id();
}

absl::Status DaemonAgent::RegisterGroup(std::string_view name, const std::vector<int>& ranks,
                                        std::string_view backend) {
  auto request = NewRequest<v1::RegisterGroupRequest>();
  request.set_name(std::string(name));
  request.mutable_ranks()->Add(ranks.begin(), ranks.end());
  request.set_backend(std::string(backend));
  v1::RegisterGroupResponse response;
  return Call(&v1::StoreService::Stub::RegisterGroup, request, &response);
}

absl::Status DaemonAgent::ReportReliably(const Progress& progress) {
  // Sent by datagram too: else an older datagram could overwrite this report.
  Report(progress);
  v1::ReportProgressRequest request;
  *request.mutable_fence() = Fence();
  request.set_rank(environment_.rank);
  *request.mutable_progress() = ProgressOf(progress);
  request.set_token(environment_.token);
  v1::ReportProgressResponse response;
  return calls_.Run(After(kCallTimeout), [&](grpc::ClientContext& context, auto) {
    return agent_->ReportProgress(&context, request, &response);
  });
}

void DaemonAgent::OnStop(std::function<void(std::string)> on_stop) {
  MutexLock lock(mu_);
  watchers_.emplace_back([this, on_stop = std::move(on_stop)] {
    std::optional<std::string> reason;
    ReadEvents([&](const v1::WatchGenerationResponse& event) {
      if (event.stopping()) reason = event.reason();
      return !reason.has_value();
    });
    if (reason) on_stop(*reason);
  });
}

void DaemonAgent::Watch(GenerationListener listener) {
  MutexLock lock(mu_);
  // Past verdicts are told again with each stream; they may not end later operations, of this
  // listener or of a later one.
  watchers_.emplace_back([this, listener = std::move(listener), known = verdicts_told_]() mutable {
    ReadEvents([&](const v1::WatchGenerationResponse& event) {
      if (event.stopping()) listener.on_stopping(event.reason());
      for (const v1::RankLost& lost : event.news().lost()) {
        listener.on_lost(lost.rank(), lost.reason());
      }
      for (const int rank : event.news().left()) listener.on_left(rank);
      for (const v1::WaitVerdict& verdict : event.news().verdicts()) {
        if (verdict.number() != 0) {
          if (!known.insert(verdict.number()).second) continue;
          NoteVerdict(verdict.number());
        }
        listener.on_verdict(FromProto(verdict));
      }
      if (event.has_quiesce() && listener.on_quiesce) {
        listener.on_quiesce(
            {event.quiesce().reason(), event.quiesce().save(),
             std::chrono::duration_cast<Milliseconds>(FromProto(event.quiesce().deadline()))});
      }
      if (event.has_new_generation() && listener.on_superseded) {
        listener.on_superseded(event.new_generation().fence().generation());
      }
      if (event.flight_record_request() != 0) {
        Upload(event.flight_record_request(), listener.flight_record());
      }
      return true;
    });
  });
}

void DaemonAgent::NoteVerdict(uint64_t number) {
  MutexLock lock(mu_);
  verdicts_told_.insert(number);
}

void DaemonAgent::ReadEvents(
    const std::function<bool(const v1::WatchGenerationResponse&)>& listener) {
  v1::WatchGenerationRequest request;
  *request.mutable_fence() = Fence();
  request.set_rank(environment_.rank);
  request.set_token(environment_.token);
  bool goes_on = true;
  bool again = false;
  absl::Status status;
  do {
    status = calls_.Run(After(kWatchTimeout), [&](grpc::ClientContext& context, auto) {
      if (std::exchange(again, true)) {
        const absl::Status told = TellWaitAgain();
        if (absl::IsUnavailable(told) || absl::IsDeadlineExceeded(told)) {
          return grpc::Status(grpc::StatusCode::UNAVAILABLE, std::string(told.message()));
        }
      }
      const auto reader = agent_->WatchGeneration(&context, request);
      v1::WatchGenerationResponse event;
      while (goes_on && reader->Read(&event)) goes_on = listener(event);
      if (!goes_on) context.TryCancel();
      const grpc::Status end = reader->Finish();
      return goes_on ? end : grpc::Status::OK;
    });
  } while (absl::IsDeadlineExceeded(status) || absl::IsUnavailable(status));
}

void DaemonAgent::Upload(uint64_t request, std::string flight_record) {
  v1::UploadFlightRecordRequest upload;
  *upload.mutable_fence() = Fence();
  upload.set_token(environment_.token);
  upload.set_request(request);
  upload.mutable_record()->set_rank(environment_.rank);
  if (flight_record.empty()) {
    upload.mutable_record()->set_error("its process groups have ended");
  } else {
    upload.mutable_record()->set_json(std::move(flight_record));
  }
  v1::UploadFlightRecordResponse response;
  // The person who asked may be gone. The coordinator names the ranks that did not answer.
  static_cast<void>(calls_.Run(After(kUploadTimeout), [&](grpc::ClientContext& context, auto) {
    return agent_->UploadFlightRecord(&context, upload, &response);
  }));
}

absl::Status DaemonAgent::ReportWait(const WaitReport& report, Milliseconds timeout) {
  {
    MutexLock lock(mu_);
    waiting_ = report;
  }
  return TellWait(After(timeout));
}

absl::Status DaemonAgent::WithdrawWait(Milliseconds timeout) {
  {
    MutexLock lock(mu_);
    waiting_.reset();
  }
  return TellWait(After(timeout));
}

absl::Status DaemonAgent::TellWaitAgain() {
  {
    MutexLock lock(mu_);
    if (!waiting_) return absl::OkStatus();
  }
  return TellWait(After(kTellAgainTimeout));
}

absl::Status DaemonAgent::TellWait(Calls::Deadline deadline) {
  std::optional<WaitReport> waiting;
  {
    MutexLock lock(mu_);
    while (telling_ && told_.WaitUntil(mu_, deadline)) continue;
    if (telling_) {
      return absl::DeadlineExceededError("an earlier report of this rank's wait is not answered");
    }
    telling_ = true;
    waiting = waiting_;
  }
  absl::Status status;
  if (waiting) {
    v1::ReportWaitRequest request;
    *request.mutable_fence() = Fence();
    request.set_token(environment_.token);
    *request.mutable_report() = ToProto(*waiting);
    v1::ReportWaitResponse response;
    status = calls_.Run(deadline, [&](grpc::ClientContext& context, auto) {
      return agent_->ReportWait(&context, request, &response);
    });
  } else {
    v1::WithdrawWaitRequest request;
    *request.mutable_fence() = Fence();
    request.set_rank(environment_.rank);
    request.set_token(environment_.token);
    v1::WithdrawWaitResponse response;
    status = calls_.Run(deadline, [&](grpc::ClientContext& context, auto) {
      return agent_->WithdrawWait(&context, request, &response);
    });
  }
  MutexLock lock(mu_);
  telling_ = false;
  told_.NotifyAll();
  return status;
}

}  // namespace meshrun::agent
