#include "core/rpc/default_address.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

#include "core/hash.h"
#include "core/os/files.h"
#include "core/os/host_name.h"
#include "core/os/private_directory.h"
#include "core/status.h"

namespace meshrun::rpc {
namespace {

const char* FromEnvironment(const char* name) { return std::getenv(name); }

// Absolute, else empty.
std::string PathIn(const GetVariable& get, const char* name) {
  const char* const value = get(name);
  return value != nullptr && value[0] == '/' ? value : "";
}

bool IsSocket(const std::string& path) {
  struct stat info;
  return ::lstat(path.c_str(), &info) == 0 && S_ISSOCK(info.st_mode);
}

// The places in order, as paths of the socket.
std::vector<std::string> Candidates(const GetVariable& get) {
  std::vector<std::string> out;
  const auto add = [&out](const std::string& directory) {
    out.push_back(directory + "/coordinator.sock");
  };
  for (const std::string& runtime :
       {PathIn(get, "XDG_RUNTIME_DIR"), fmt::format("/run/user/{}", ::geteuid())}) {
    // Not another user's, as sudo may leave it in the environment.
    if (!runtime.empty() && os::CheckPrivateDirectory(runtime).ok()) add(runtime + "/meshrun");
  }
  if (const std::string state = PathIn(get, "XDG_STATE_HOME"); !state.empty()) {
    add(fmt::format("{}/meshrun/{}", state, os::HostName()));
  } else if (const std::string home = PathIn(get, "HOME"); !home.empty()) {
    add(fmt::format("{}/.local/state/meshrun/{}", home, os::HostName()));
  }
  return out;
}

absl::StatusOr<std::string> Address(const std::vector<std::string>& candidates, size_t chosen) {
  if (candidates.empty()) {
    return absl::FailedPreconditionError(
        "no directory for the coordinator's socket: set XDG_RUNTIME_DIR, XDG_STATE_HOME or HOME, "
        "or name an address");
  }
  MESHRUN_RETURN_IF_ERROR(os::CheckSocketPath(
      candidates[chosen], "set XDG_RUNTIME_DIR to a shorter directory, or name an address"));
  return "unix:" + candidates[chosen];
}

std::string ShortDirectory(const std::string& parent, const std::string& prefix,
                           const std::string& state_dir) {
  return fmt::format("{}/{}{}", parent, prefix, HexEncode(Sha256(state_dir)).substr(0, 10));
}

}  // namespace

absl::StatusOr<std::string> DefaultListenAddress(const GetVariable& get) {
  return Address(Candidates(get), 0);
}
absl::StatusOr<std::string> DefaultListenAddress() { return DefaultListenAddress(FromEnvironment); }

absl::StatusOr<std::string> DefaultConnectAddress(const GetVariable& get) {
  const std::vector<std::string> candidates = Candidates(get);
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (IsSocket(candidates[i])) return Address(candidates, i);
  }
  return Address(candidates, 0);
}
absl::StatusOr<std::string> DefaultConnectAddress() {
  return DefaultConnectAddress(FromEnvironment);
}

absl::StatusOr<std::string> SocketDirectory(const std::string& state_dir, size_t longest_below) {
  const auto fits = [longest_below](const std::string& directory) {
    return directory.size() + longest_below <= os::kLongestSocketPath;
  };
  if (fits(state_dir)) return state_dir;
  const std::string runtime = PathIn(FromEnvironment, "XDG_RUNTIME_DIR");
  std::string path = ShortDirectory(runtime, "meshrun-", state_dir);
  if (runtime.empty() || !fits(path)) {
    path = ShortDirectory("/tmp", fmt::format("meshrun-{}-", ::geteuid()), state_dir);
  }
  MESHRUN_RETURN_IF_ERROR(os::MakePrivateDirectory(path));
  return path;
}

}  // namespace meshrun::rpc
