// Who makes a call, whatever it came over: gRPC, or the HTTP API.
#pragma once

#include <grpcpp/server_context.h>

#include <string>

#include "core/rpc/roles.h"

namespace meshrun::coordinator {

struct Sender {
  // As gRPC names it: "ipv4:10.0.0.7:4242"; of the HTTP API with "http:" before it.
  std::string peer;
  // False on a Unix socket, whose directory's user may do everything, and without TLS. The two
  // below are empty then.
  bool shows_certificate = false;
  rpc::Identity identity;
  // In PEM's form.
  std::string certificate;
};

Sender SenderOf(const grpc::CallbackServerContext& context);

}  // namespace meshrun::coordinator
