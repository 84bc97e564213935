// Tells probes and systemd's watchdog whether a daemon's loop turns.
//
//   grpc.health.v1 "meshrun.ready": NOT_SERVING while the loop has not turned for ready_timeout
//   grpc.health.v1 each service:    as "meshrun.ready", under its full name
//   grpc.health.v1 "":              NOT_SERVING while it has not for live_timeout
//   systemd (WatchdogSec=):         told that all is well while "meshrun.ready" serves
//
// Two bounds: nothing new should go to a daemon that stalls, but to kill it would cost its ranks.
#pragma once

#include <grpcpp/server.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "core/mutex.h"

namespace meshrun::rpc {

inline constexpr char kReadyService[] = "meshrun.ready";

class LoopHealth {
 public:
  struct Options {
    std::chrono::nanoseconds ready_timeout = std::chrono::seconds(5);
    std::chrono::nanoseconds live_timeout = std::chrono::minutes(10);
  };
  // INVALID_ARGUMENT: a loop turns once a second, so a ready_timeout below 2 s means nothing; the
  // other one is not shorter.
  static absl::Status Check(const Options& options);

  explicit LoopHealth(const Options& options);
  ~LoopHealth() { Stop(); }

  // The loop has turned. From any thread.
  void Turned();
  // As "meshrun.ready". From any thread.
  bool IsReady() const;
  // Begins to report, also for `services` (full names such as "meshrun.v1.JobService"). Call
  // EnableServerPlugins before `server` is built. `server` must outlive this, or be stopped after
  // Stop.
  void Watch(grpc::Server& server, std::vector<std::string> services = {});
  // The same for a server that has nothing to do until it is needed: alive, and not ready. It has
  // no loop.
  void WatchStandby(grpc::Server& server, std::vector<std::string> services);
  // Idempotent.
  void Stop();

 private:
  void Run(grpc::HealthCheckServiceInterface& service);
  void TellReady(grpc::HealthCheckServiceInterface& service, bool ready) const;
  void TellSystemd() const;

  const Options options_;
  bool standby_ = false;
  // Empty without systemd's watchdog.
  const std::string notify_socket_;
  // That are ready together; written before the thread begins.
  std::vector<std::string> services_;
  std::atomic<int64_t> turned_at_;
  std::thread thread_;
  Mutex mu_;
  CondVar changed_;
  bool stopping_ MESHRUN_GUARDED_BY(mu_) = false;
};

}  // namespace meshrun::rpc
