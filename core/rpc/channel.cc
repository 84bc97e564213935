#include "core/rpc/channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>

#include "absl/synchronization/mutex.h"
#include "core/rpc/unix_socket.h"
#include "core/status.h"

namespace meshrun::rpc {
namespace {

// A server ends a connection that is pinged more often than this (too_many_pings). Far below any
// peer's Keepalive::time, and below the second that gRPC's client leaves between two pings.
constexpr int kMinPingIntervalMs = 500;

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(std::string_view role,
                                                           const std::string& address,
                                                           const Security& security,
                                                           const Keepalive& keepalive,
                                                           std::chrono::milliseconds attempt) {
  const std::optional<std::string> unix_path = UnixPath(address);
  if (unix_path) MESHRUN_RETURN_IF_ERROR(CheckSocketDirectory(*unix_path));
  MESHRUN_ASSIGN_OR_RETURN(auto credentials, ChannelCredentials(role, address, security));
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 20);
  // Despite its name, this is how long one attempt may take: a busy host needs more than the
  // backoff.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, static_cast<int>(attempt.count()));
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  // meshrun's processes never talk through an HTTP proxy.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // Channels of one process do not share subchannels, so that a stuck stream stalls nobody else.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  if (!unix_path) {
    // Ping only while there is a call: on an idle connection the next call finds out early enough.
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, static_cast<int>(keepalive.time.count()));
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, static_cast<int>(keepalive.timeout.count()));
    // A stream may say nothing for hours.
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  }
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetMaxSendMessageSize(kMaxMessageBytes);
  return grpc::CreateCustomChannel(GrpcTarget(address), credentials, arguments);
}

void EnableServerPlugins() {
  // Debian's Abseil looks for deadlocks at each lock of gRPC's.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
}

void ConfigureServer(grpc::ServerBuilder& builder, const std::optional<Keepalive>& keepalive) {
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kMinPingIntervalMs);
  if (keepalive) {
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS,
                               static_cast<int>(keepalive->time.count()));
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                               static_cast<int>(keepalive->timeout.count()));
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  }
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.SetMaxSendMessageSize(kMaxMessageBytes);
}

}  // namespace meshrun::rpc
