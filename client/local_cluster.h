// The cluster of `meshrun run`: a coordinator and one worker, for one job, in a private directory;
// or this host's part of one on several hosts. Nothing of it outlives this process: the daemons
// hold the read end of a pipe whose other end is ours.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/daemon_process.h"
#include "client/run_directory.h"

namespace meshrun::client {

// The slots that this host offers by default: small ranks share cores well.
uint32_t DefaultSlots(uint32_t cores);

class LocalCluster {
 public:
  struct Options {
    uint32_t slots = 1;
    // How much of each of a rank's two output streams is kept in the directory.
    uint64_t log_limit_bytes = 0;
    // More of the worker's, and the descriptors that they name.
    std::vector<std::string> worker_flags;
    std::vector<int> worker_fds;
    // On several hosts: the coordinator's address, the flags to connect to it, and this node's name
    // and address there. Empty: the coordinator runs here, on a Unix socket.
    std::string coordinator;
    std::vector<std::string> security_flags;
    std::string node_name;
    std::string node_address;
    // What this process is to the others, for sentences.
    std::string lifeline_of;
    // Where the coordinator here listens for the others; empty: it runs on another host.
    std::string listen;
    // Called with the name of each phase when it ends.
    std::function<void(const char* phase)> trace;
  };

  // Returns when the worker is starting and the coordinator, if it runs here, serves. NOT_FOUND: a
  // daemon is not installed.
  static absl::StatusOr<std::unique_ptr<LocalCluster>> Start(const Options& options);
  // Ends both, within about 5 s at most (2.5 s each), and removes the directory.
  ~LocalCluster();

  const std::string& address() const { return address_; }
  // Where everything of it is, the ranks' output too.
  const std::string& directory() const { return directory_.path(); }
  // Returns when the worker is registered: from then on the coordinator knows what fits.
  absl::Status WaitForWorker();
  // Those that run here.
  std::vector<DaemonProcess*> daemons();

 private:
  LocalCluster() = default;
  absl::Status StartCoordinator(int lifeline);
  absl::Status StartWorker(int lifeline);

  Options options_;
  RunDirectory directory_;
  std::string address_;
  os::UniqueFd lifeline_;
  std::optional<DaemonProcess> coordinator_;
  std::optional<DaemonProcess> worker_;
};

}  // namespace meshrun::client
