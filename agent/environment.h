// What a rank's environment says about its daemon. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"

namespace meshrun::agent {

struct AgentEnvironment {
  // "unix:/path", as gRPC takes it.
  std::string address;
  std::string job_id;
  uint64_t generation = 0;
  int rank = 0;
  std::string token;
  // Path of the datagram socket for reports; empty: there is none.
  std::string report_socket;
};

// Value of a variable, nullptr when it is not set.
using GetVariable = std::function<const char*(const char*)>;

// INVALID_ARGUMENT names the variable that is missing or malformed.
absl::StatusOr<AgentEnvironment> ReadAgentEnvironment(const GetVariable& get);

}  // namespace meshrun::agent
