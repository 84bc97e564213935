// Where node 0 of several `meshrun run` serves, and who has that address and port.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace meshrun::client {

// "host", "host:29400", "[::1]:29400".
struct Endpoint {
  std::string host;
  int port = 0;
  // As gRPC writes it.
  std::string Text() const;
};
// INVALID_ARGUMENT: `flag` and what is wrong with it.
absl::StatusOr<Endpoint> ParseEndpoint(std::string_view flag, const std::string& text,
                                       int default_port);

// "host:29400", "[::1]:29400".
std::string HostPort(const std::string& host, int port);
bool IsNumericV6(const std::string& host);

// A socket of this host can have the endpoint's address: the endpoint is here.
bool IsHere(const Endpoint& endpoint);
// A socket of this host has the endpoint's port already.
bool PortIsTaken(const Endpoint& endpoint);
// Empty: something answers there. Takes up to 3 s for each address of the host.
std::string WhyNobodyAnswers(const Endpoint& endpoint);

}  // namespace meshrun::client
