#include "coordinator/etcd/target.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdint>

#include "core/parse_integer.h"
#include "core/status.h"

namespace meshrun::coordinator::etcd {
namespace {

constexpr std::string_view kDefaultPort = "2379";

absl::Status Wrong(std::string_view text, const std::string& why) {
  return absl::InvalidArgumentError(
      fmt::format("'{}': {}; write etcd://HOST:2379,HOST:2379,HOST:2379/PREFIX", text, why));
}

bool IsName(std::string_view text, std::string_view also) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [also](unsigned char c) {
    return std::isalnum(c) != 0 || also.find(static_cast<char>(c)) != std::string_view::npos;
  });
}

// Adds the port where it is missing.
absl::StatusOr<std::string> Endpoint(std::string_view text, std::string_view endpoint) {
  const size_t bracket = endpoint.rfind(']');
  const size_t colon = endpoint.find(
      ':', endpoint.starts_with('[') && bracket != std::string_view::npos ? bracket : 0);
  const std::string_view host = endpoint.substr(0, colon);
  const std::string_view port =
      colon == std::string_view::npos ? kDefaultPort : endpoint.substr(colon + 1);
  const bool is_v6 = host.size() > 2 && host.starts_with('[') && host.ends_with(']');
  if (is_v6 ? !IsName(host.substr(1, host.size() - 2), ":.%") : !IsName(host, ".-_")) {
    return Wrong(text, endpoint.empty() ? "a host is missing"
                                        : fmt::format("'{}' is not a host with a port", endpoint));
  }
  const auto number = ParseInteger<uint16_t>(port);
  if (!number || *number == 0) return Wrong(text, fmt::format("'{}' is not a port", port));
  return fmt::format("{}:{}", host, *number);
}

}  // namespace

absl::StatusOr<Target> ParseTarget(std::string_view text) {
  if (!text.starts_with(kScheme)) return Wrong(text, "it does not begin with etcd://");
  std::string_view rest = text.substr(kScheme.size());
  Target target;
  const size_t slash = rest.find('/');
  if (slash != std::string_view::npos) {
    std::string_view prefix = rest.substr(slash + 1);
    rest = rest.substr(0, slash);
    while (prefix.ends_with('/')) prefix.remove_suffix(1);
    if (!prefix.empty()) {
      if (!IsName(prefix, "._-/") || prefix.starts_with('/')) {
        return Wrong(text, fmt::format("the prefix '{}' has other characters than letters, digits "
                                       "and . _ - /",
                                       prefix));
      }
      target.prefix = prefix;
    }
  }
  if (rest.find('@') != std::string_view::npos) {
    // Every user of the host sees a command line.
    return Wrong("etcd://...@...",
                 "a password does not belong here: pass --etcd-user and "
                 "--etcd-password-file");
  }
  while (true) {
    const size_t comma = rest.find(',');
    MESHRUN_ASSIGN_OR_RETURN(std::string endpoint, Endpoint(text, rest.substr(0, comma)));
    if (std::find(target.endpoints.begin(), target.endpoints.end(), endpoint) !=
        target.endpoints.end()) {
      return Wrong(text, fmt::format("{} is there twice", endpoint));
    }
    target.endpoints.push_back(std::move(endpoint));
    if (comma == std::string_view::npos) return target;
    rest.remove_prefix(comma + 1);
  }
}

}  // namespace meshrun::coordinator::etcd
