// The calls of a Client to its coordinator: client.cc and cluster_calls.cc alone include this.
#pragma once

#include <google/protobuf/message.h>

#include <chrono>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <utility>

#include "client/client.h"
#include "core/rpc/channel.h"
#include "core/rpc/status_conversion.h"
#include "core/status.h"
#include "meshrun/v1/cluster_service.grpc.pb.h"
#include "meshrun/v1/job_service.grpc.pb.h"

namespace meshrun::client {

class Client::Impl {
 public:
  // A stream that lasted this long ends an interruption, even if nothing came through it.
  static constexpr std::chrono::seconds kSettled{5};

  Impl(Options options, std::shared_ptr<grpc::Channel> channel)
      : options(std::move(options)),
        jobs(v1::JobService::NewStub(channel)),
        cluster(v1::ClusterService::NewStub(channel)) {}

  // One call with one answer.
  template <typename Stub, typename Method, typename Request, typename Response>
  absl::Status Call(Stub& stub, Method method, const Request& request, Response* response,
                    std::chrono::nanoseconds timeout) {
    MESHRUN_RETURN_IF_ERROR(CheckText(request));
    grpc::ClientContext context;
    rpc::SetTimeout(context, timeout);
    return Explain((stub.*method)(&context, request, response), options.address);
  }
  template <typename Stub, typename Method, typename Request, typename Response>
  absl::Status Call(Stub& stub, Method method, const Request& request, Response* response) {
    return Call(stub, method, request, response, options.timeout);
  }

  // One stream of answers, until it ends or breaks. `on_response` returns whether the answer was
  // news.
  template <typename Method, typename Request, typename Response>
  absl::Status Stream(Method method, const Request& request, const std::stop_token& stop,
                      bool* alive, const std::function<bool(Response&)>& on_response) {
    MESHRUN_RETURN_IF_ERROR(CheckText(request));
    const auto begun = std::chrono::steady_clock::now();
    grpc::ClientContext context;
    // A stream has no deadline of its own: it lives as long as the job. Silence of the connection
    // shows as a broken stream, and `stop` ends it at any time.
    const std::stop_callback cancel(stop, [&] { context.TryCancel(); });
    const auto reader = (jobs.get()->*method)(&context, request);
    Response response;
    bool reached = false;
    while (reader->Read(&response)) {
      reached = true;
      *alive |= on_response(response);
    }
    // A job may be silent for hours. Time that was spent on connecting in vain does not count.
    reached |= context.GetServerInitialMetadata().count(rpc::kReachedKey) != 0;
    const grpc::Status status = reader->Finish();
    *alive |= reached && std::chrono::steady_clock::now() - begun >= kSettled;
    return Explain(status, options.address);
  }

  // INVALID_ARGUMENT: a field that is text is not UTF-8. gRPC would answer with an error that names
  // neither the field nor its value.
  static absl::Status CheckText(const google::protobuf::Message& request);

  // The coordinator's own errors are passed on unchanged; those that gRPC made say what to try.
  static absl::Status Explain(const grpc::Status& status, const std::string& address);

  const Options options;
  const std::unique_ptr<v1::JobService::Stub> jobs;
  const std::unique_ptr<v1::ClusterService::Stub> cluster;
};

}  // namespace meshrun::client
