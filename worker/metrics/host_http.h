// The worker's HTTP port: /metrics for Prometheus, /healthz for probes.
//
// Threads: any.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "core/certificates/standing.h"
#include "core/http/server.h"
#include "core/mutex.h"
#include "core/rpc/loop_health.h"
#include "core/rpc/security.h"
#include "worker/metrics/gpu_watch.h"
#include "worker/metrics/host_metrics.h"

namespace meshrun::worker {

class HostHttp {
 public:
  struct Options {
    std::string listen;
    rpc::Security security;
    // --metrics-job-label.
    bool with_job = false;
    bool has_gpus = false;
    const rpc::LoopHealth& health;
    // Posts a task to the daemon's loop.
    std::function<void(std::function<void()>)> post;
    // Called on the loop.
    std::function<HostMeasures()> measure;
  };

  // Errors: those of http::Server::Start.
  static absl::StatusOr<std::unique_ptr<HostHttp>> Start(Options options);
  ~HostHttp() { Stop(); }

  const std::string& address() const { return server_->address(); }
  void SetLogSpace(const LogSpace& space);
  // Ends all connections. The loop may run no more. Idempotent.
  void Stop();

 private:
  explicit HostHttp(Options options) : options_(std::move(options)), metrics_(options_.with_job) {}
  http::Answer Metrics();
  // What the loop tells; absent where it does not answer.
  std::optional<HostMeasures> Ask() const;

  const Options options_;
  std::optional<GpuWatch> gpus_;
  Mutex mu_;
  HostMetrics metrics_ MESHRUN_GUARDED_BY(mu_);
  std::optional<LogSpace> logs_ MESHRUN_GUARDED_BY(mu_);
  // Ends connections whose certificate has ended; null without TLS. A worker has no deny list.
  std::unique_ptr<certificates::Standing> standing_;
  std::unique_ptr<http::Server> server_;
};

}  // namespace meshrun::worker
