// The calls of a Client to its coordinator: client.cc and cluster_calls.cc alone include this.
#pragma once

#include <google/protobuf/message.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>

#include "client/client.h"
#include "client/cluster_of_client.h"
#include "client/reached_addresses.h"
#include "core/error_detail.h"
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
  // When the next one is due, where there are several coordinators.
  std::optional<std::chrono::nanoseconds> pause;
};

// Whether a call may be made twice.
enum class Repeat { kAlways, kIfNothingWasDone };

class Client::Impl {
 public:
  // A stream that lasted this long ends an interruption, even if nothing came through it.
  static constexpr std::chrono::seconds kSettled{5};

  Impl(Options options, std::shared_ptr<rpc::RenewedChannel> channel)
      : options(std::move(options)),
        where(rpc::JoinAddresses(channel->choice().given())),
        jobs(channel),
        cluster(std::move(channel)) {}

  // One call with one answer. Repeated where the coordinator cannot take it now, within
  // `timeout` in all. Where there are several coordinators it goes on to the one that leads, and
  // has twice the time: until another leader is elected.
  template <typename Service, typename Method, typename Request, typename Response>
  absl::Status Call(rpc::StubOf<Service>& service, Method method, const Request& request,
                    Response* response, std::chrono::nanoseconds timeout,
                    Repeat repeat = Repeat::kAlways) {
    MESHRUN_RETURN_IF_ERROR(CheckText(request));
    const auto begun = std::chrono::steady_clock::now();
    bool anew = false;
    int waits = 0;
    std::string address;
    while (true) {
      const auto now = std::chrono::steady_clock::now();
      const auto deadline = begun + (service.choice().HasOthers() ? 2 * timeout : timeout);
      const auto stub = service.Get(&address);
      const auto time_left = std::min<std::chrono::nanoseconds>(deadline - now, timeout);
      constexpr bool kSaysTheCluster = std::is_same_v<Response, v1::DescribeClusterResponse>;
      grpc::Status status = kSaysTheCluster ? grpc::Status::OK : Meet(address, time_left);
      if (status.ok()) {
        grpc::ClientContext context;
        rpc::SetTimeout(context, time_left);
        status = rpc::EndOf((stub.get()->*method)(&context, request, response),
                            /*cancelled=*/false);
        if constexpr (kSaysTheCluster) {
          if (status.ok()) status = Judge(address, response->cluster_id());
        }
      }
      reached.OnEnd(address, status);
      std::chrono::nanoseconds pause;
      if (const auto wait = rpc::WaitBeforeRepeating(rpc::FromGrpc(status))) {
        pause = Spread(*wait, waits++);
      } else if (GoesOn(service, stub, status, repeat)) {
        pause = IsOfLeader(status) ? Spread(kLeastPause, waits++) : service.choice().Wait();
      } else if (!anew && ConnectsAnew(service, stub, status)) {
        anew = true;
        continue;
      } else {
        return Explain(status);
      }
      if (std::chrono::steady_clock::now() + pause >= deadline) return Explain(status);
      std::this_thread::sleep_for(pause);
    }
  }
  template <typename Service, typename Method, typename Request, typename Response>
  absl::Status Call(rpc::StubOf<Service>& service, Method method, const Request& request,
                    Response* response, Repeat repeat = Repeat::kAlways) {
    return Call(service, method, request, response, options.timeout, repeat);
  }

  // One stream of answers, until it ends or breaks. `on_response` returns whether the answer was
  // news.
  template <typename Method, typename Request, typename Response>
  absl::Status Stream(Method method, const Request& request, const std::stop_token& stop,
                      Attempt* attempt, const std::function<bool(Response&)>& on_response) {
    MESHRUN_RETURN_IF_ERROR(CheckText(request));
    std::string address;
    const auto stub = jobs.Get(&address);
    if (const grpc::Status met = Meet(address, options.timeout, stop); !met.ok()) {
      attempt->connects_anew = ConnectsAnew(jobs, stub, met);
      return End(jobs, stub, address, met, attempt);
    }
    const auto begun = std::chrono::steady_clock::now();
    grpc::ClientContext context;
    // A stream has no deadline of its own: it lives as long as the job. Silence of the connection
    // shows as a broken stream, and `stop` ends it at any time.
    const std::stop_callback cancel(stop, [&] { context.TryCancel(); });
    const auto reader = (stub.get()->*method)(&context, request);
    Response response;
    bool answers = false;
    while (reader->Read(&response)) {
      if (!answers) reached.OnEnd(address, grpc::Status::OK);
      answers = true;
      attempt->alive |= on_response(response);
    }
    // A job may be silent for hours. Time that was spent on connecting in vain does not count.
    answers |= context.GetServerInitialMetadata().count(rpc::kReachedKey) != 0;
    const grpc::Status status = rpc::EndOf(reader->Finish(), stop.stop_requested());
    attempt->alive |= answers && std::chrono::steady_clock::now() - begun >= kSettled;
    attempt->connects_anew = ConnectsAnew(jobs, stub, status);
    return End(jobs, stub, address, status, attempt);
  }

  // Before a call goes to `address`, where there are several coordinators: whether the one there is
  // of this client's cluster. Asks it, if it is another one than before. UNAVAILABLE: as Judge.
  grpc::Status Meet(const std::string& address, std::chrono::nanoseconds timeout,
                    const std::stop_token& stop = {});

  // After a coordinator has said its cluster. Where there are no others, any is the right one.
  grpc::Status Judge(const std::string& address, const std::string& id) {
    if (cluster.choice().HasOthers()) return cluster_of_client.Judge(address, id);
    cluster_of_client.BeginWith(address, id);
    return grpc::Status::OK;
  }

  // How an attempt of a stream has ended, at `address`.
  template <typename Service>
  absl::Status End(rpc::StubOf<Service>& service,
                   const std::shared_ptr<typename Service::Stub>& used, const std::string& address,
                   const grpc::Status& status, Attempt* attempt) {
    reached.OnEnd(address, status);
    if (GoesOn(service, used, status, Repeat::kAlways) && !IsOfLeader(status)) {
      attempt->pause = std::max<std::chrono::nanoseconds>(service.choice().Wait(), kLeastPause);
    }
    return Explain(status);
  }
  // How long a stream that ends with its answer tries: where there are several coordinators, until
  // one of them leads.
  std::chrono::nanoseconds PatienceOfAnswer() {
    return jobs.choice().HasOthers() ? options.timeout : std::chrono::nanoseconds(0);
  }

  // True: the call belongs to another coordinator, or may do better with one.
  template <typename Service>
  static bool GoesOn(rpc::StubOf<Service>& service,
                     const std::shared_ptr<typename Service::Stub>& used,
                     const grpc::Status& status, Repeat repeat) {
    const absl::Status ended = rpc::FromGrpc(status);
    const bool silent =
        absl::IsDeadlineExceeded(ended) && rpc::OriginOf(ended) == v1::ERROR_ORIGIN_UNSPECIFIED;
    if (!absl::IsUnavailable(ended) && !silent) return false;
    if (silent && service.choice().HasOthers()) {
      // Calls that are silent together leave one coordinator, once.
      if (service.Get() == used) service.Leave();
    } else {
      service.OnEnd(ended, used);
    }
    // What another error leaves open: whether the call was carried out.
    const bool may_repeat = repeat == Repeat::kAlways || DetailOf(ended).standby();
    return may_repeat && service.choice().HasOthers();
  }

  // It leads, and cannot take the call now: it is read-only, or stops.
  static bool IsOfLeader(const grpc::Status& status) {
    const v1::ErrorDetail detail = DetailOf(rpc::FromGrpc(status));
    return detail.origin() != v1::ERROR_ORIGIN_UNSPECIFIED && !detail.standby() &&
           detail.leader().empty();
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
    service.OnEnd(rpc::FromGrpc(status), refused);
    return service.Get() != refused;
  }

  // Doubles with each attempt up to a second, and differs between callers: they do not come back
  // together.
  static std::chrono::nanoseconds Spread(std::chrono::nanoseconds wait, int attempt);

  // INVALID_ARGUMENT: a field that is text is not UTF-8. gRPC would answer with an error that names
  // neither the field nor its value.
  static absl::Status CheckText(const google::protobuf::Message& request);

  // The coordinator's own errors are passed on unchanged; those that gRPC made say what to try.
  // `where`: the addresses that were tried. UNAVAILABLE: nobody answers there, for `reason`.
  static absl::Status NoCoordinator(const std::string& where, std::string_view reason);
  absl::Status Explain(const grpc::Status& status);

  static constexpr std::chrono::milliseconds kLeastPause{20};

  const Options options;
  // The addresses of the coordinators, for sentences.
  const std::string where;
  rpc::StubOf<v1::JobService> jobs;
  rpc::StubOf<v1::ClusterService> cluster;
  ReachedAddresses reached;
  ClusterOfClient cluster_of_client;
  Mutex renewing;
};

}  // namespace meshrun::client
