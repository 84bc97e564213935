// Channels and servers with the settings that all of meshrun's processes share.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/server_builder.h>

#include <chrono>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "core/rpc/security.h"

namespace meshrun::rpc {

inline constexpr int kMaxMessageBytes = 64 << 20;

// A channel that reconnects within 20 ms to 1 s: meshrun's servers are near, and restart fast.
// Errors: as ChannelCredentials.
absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(std::string_view role,
                                                           const std::string& address,
                                                           const TlsFiles& tls);

// Health, reflection, message size, and no silent sharing of a port by two servers.
// Call once per process before the first ServerBuilder: EnableServerPlugins().
void EnableServerPlugins();
void ConfigureServer(grpc::ServerBuilder& builder);

inline void SetTimeout(grpc::ClientContext& context, std::chrono::nanoseconds timeout) {
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::duration_cast<std::chrono::system_clock::duration>(timeout));
}

}  // namespace meshrun::rpc
