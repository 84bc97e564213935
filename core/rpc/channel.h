// Channels and servers with the settings that all of meshrun's processes share.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/server_builder.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "core/rpc/security.h"

namespace meshrun::rpc {

inline constexpr int kMaxMessageBytes = 64 << 20;

// Notices a peer that vanished silently (power, cable, a firewall that dropped its state): after
// `time` without a byte a connection with a call on it is pinged, and it is closed when no answer
// comes within `timeout`. gRPC's client sends at most one ping a second.
struct Keepalive {
  std::chrono::milliseconds time{5000};
  std::chrono::milliseconds timeout{5000};
};

// A channel that reconnects after 20 ms to 1 s: meshrun's servers are near, and restart fast. Unix
// sockets get no keepalive: the kernel tells when their peer is gone, and a peer that is only slow
// must not be given up. Errors: as ChannelCredentials; for a Unix socket those of
// CheckSocketDirectory too: nothing is sent to a socket that another user could have made.
// `attempt`: how long one attempt to connect may take, TLS's handshake included.
absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(
    std::string_view role, const std::string& address, const Security& security,
    const Keepalive& keepalive = {},
    std::chrono::milliseconds attempt = std::chrono::milliseconds(2000));

// Enables the health and reflection services, and turns off what makes gRPC slow. Call once per
// process, before the first ServerBuilder.
void EnableServerPlugins();
// Sets the message size and `keepalive` (absent for a server on a Unix socket), and keeps two
// servers from silently sharing a port.
void ConfigureServer(grpc::ServerBuilder& builder,
                     const std::optional<Keepalive>& keepalive = Keepalive());

inline void SetTimeout(grpc::ClientContext& context, std::chrono::nanoseconds timeout) {
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::duration_cast<std::chrono::system_clock::duration>(timeout));
}

}  // namespace meshrun::rpc
