// The calls of a Client to its coordinator: client.cc and cluster_calls.cc alone include this.
#pragma once

#include <google/protobuf/message.h>

#include <chrono>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>

#include "client/client.h"
#include "core/mutex.h"
#include "core/rpc/channel.h"
#include "core/rpc/renewed_channel.h"
#include "core/rpc/status_conversion.h"
#include "core/status.h"
#include "meshrun/v1/cluster_service.grpc.pb.h"
#include "meshrun/v1/job_service.grpc.pb.h"

namespace meshrun::client {

// What one attempt of a call has come to.
struct Attempt {
  // There was progress: an interruption has ended.
  bool alive = false;
  // It was refused, and the next one has another connection.
  bool connects_anew = false;
};

class Client::Impl {
 public:
  // A stream that lasted this long ends an interruption, even if nothing came through it.
  static constexpr std::chrono::seconds kSettled{5};

  Impl(Options options, std::shared_ptr<rpc::RenewedChannel> channel)
      : options(std::move(options)), jobs(channel), cluster(std::move(channel)) {}

  // One call with one answer. Repeated where the coordinator cannot take it now, within
  // `timeout` in all.
  template <typename Service, typename Method, typename Request, typename Response>
  absl::Status Call(rpc::StubOf<Service>& service, Method method, const Request& request,
                    Response* response, std::chrono::nanoseconds timeout) {
    MESHRUN_RETURN_IF_ERROR(CheckText(request));
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    bool anew = false;
    int waits = 0;
    while (true) {
      const auto stub = service.Get();
      grpc::ClientContext context;
      rpc::SetTimeout(context, deadline - std::chrono::steady_clock::now());
      const grpc::Status status = (stub.get()->*method)(&context, request, response);
      if (const auto wait = rpc::WaitBeforeRepeating(rpc::FromGrpc(status))) {
        const auto pause = Spread(*wait, waits++);
        if (std::chrono::steady_clock::now() + pause >= deadline) {
          return Explain(status, options.address);
        }
        std::this_thread::sleep_for(pause);
      } else if (anew || !ConnectsAnew(service, stub, status)) {
        return Explain(status, options.address);
      } else {
        anew = true;
      }
    }
  }
  template <typename Service, typename Method, typename Request, typename Response>
  absl::Status Call(rpc::StubOf<Service>& service, Method method, const Request& request,
                    Response* response) {
    return Call(service, method, request, response, options.timeout);
  }

  // One stream of answers, until it ends or breaks. `on_response` returns whether the answer was
  // news.
  template <typename Method, typename Request, typename Response>
  absl::Status Stream(Method method, const Request& request, const std::stop_token& stop,
                      Attempt* attempt, const std::function<bool(Response&)>& on_response) {
    MESHRUN_RETURN_IF_ERROR(CheckText(request));
    const auto stub = jobs.Get();
    const auto begun = std::chrono::steady_clock::now();
    grpc::ClientContext context;
    // A stream has no deadline of its own: it lives as long as the job. Silence of the connection
    // shows as a broken stream, and `stop` ends it at any time.
    const std::stop_callback cancel(stop, [&] { context.TryCancel(); });
    const auto reader = (stub.get()->*method)(&context, request);
    Response response;
    bool reached = false;
    while (reader->Read(&response)) {
      reached = true;
      attempt->alive |= on_response(response);
    }
    // A job may be silent for hours. Time that was spent on connecting in vain does not count.
    reached |= context.GetServerInitialMetadata().count(rpc::kReachedKey) != 0;
    const grpc::Status status = reader->Finish();
    attempt->alive |= reached && std::chrono::steady_clock::now() - begun >= kSettled;
    attempt->connects_anew = ConnectsAnew(jobs, stub, status);
    return Explain(status, options.address);
  }

  // After UNAUTHENTICATED: a connection keeps the certificate that it began with, and another one
  // may lie in the file by now. True where the next call has another connection than `refused`.
  template <typename Service>
  bool ConnectsAnew(rpc::StubOf<Service>& service,
                    const std::shared_ptr<typename Service::Stub>& refused,
                    const grpc::Status& status) MESHRUN_EXCLUDES(renewing) {
    if (status.error_code() != grpc::StatusCode::UNAUTHENTICATED) return false;
    // Calls that are refused together get one new connection.
    MutexLock lock(renewing);
    if (service.Get() != refused) return true;
    service.OnEnd(rpc::FromGrpc(status));
    return service.Get() != refused;
  }

  // Doubles with each attempt up to a second, and differs between callers: they do not come back
  // together.
  static std::chrono::nanoseconds Spread(std::chrono::nanoseconds wait, int attempt);

  // INVALID_ARGUMENT: a field that is text is not UTF-8. gRPC would answer with an error that names
  // neither the field nor its value.
  static absl::Status CheckText(const google::protobuf::Message& request);

  // The coordinator's own errors are passed on unchanged; those that gRPC made say what to try.
  static absl::Status Explain(const grpc::Status& status, const std::string& address);

  const Options options;
  rpc::StubOf<v1::JobService> jobs;
  rpc::StubOf<v1::ClusterService> cluster;
  Mutex renewing;
};

}  // namespace meshrun::client
