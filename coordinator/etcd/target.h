// What `--state etcd://...` names. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace meshrun::coordinator::etcd {

struct Target {
  // HOST:PORT of members, in the order in which they are tried.
  std::vector<std::string> endpoints;
  // Below it lies everything; without a slash at its ends.
  std::string prefix = "meshrun";
};

inline constexpr std::string_view kScheme = "etcd://";

// "etcd://h1:2379,h2:2379/prefix"; a port that is not given is 2379, a prefix "meshrun". An address
// of version 6 stands in brackets. INVALID_ARGUMENT names the wrong part and shows the right form.
absl::StatusOr<Target> ParseTarget(std::string_view text);

}  // namespace meshrun::coordinator::etcd
