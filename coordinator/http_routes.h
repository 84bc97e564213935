// What the coordinator serves over HTTP besides the JSON API and the page:
//
//   /healthz   200 "ok" while the loop turns, 503 with the reason otherwise; for probes
//   /metrics   for Prometheus: docs/monitoring.md
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "coordinator/event_loop/event_loop.h"
#include "coordinator/http_front.h"
#include "coordinator/leadership/leadership.h"
#include "coordinator/metrics/coordinator_metrics.h"
#include "coordinator/state_store/state_store.h"
#include "core/http/routes.h"
#include "core/rpc/acceptor.h"
#include "core/rpc/loop_health.h"
#include "core/rpc/security.h"

namespace meshrun::coordinator {

// All but `tls` outlive the routes.
struct HttpSources {
  EventLoop& loop;
  const rpc::LoopHealth& health;
  const CoordinatorMetrics& metrics;
  const StateStore& store;
  const HttpFront& front;
  const Leadership& leadership;
  // Lets in who may call `method` and does not call too often: Api::Guard.
  std::function<http::Handler(std::string method, http::Handler handler)> guard;
  // Null on a Unix socket.
  const rpc::Acceptor* acceptor = nullptr;
  rpc::TlsFiles tls = {};
};

http::Routes MakeRoutes(const HttpSources& sources);

// The same of a coordinator that stands by: it is healthy, and tells what its process has counted,
// in `metrics`. For all else `answer` says who leads. `metrics`, `front` and `acceptor`, null on a
// Unix socket, outlive the routes.
http::Routes MakeStandbyRoutes(const CoordinatorMetrics& metrics, const HttpFront& front,
                               const rpc::Acceptor* acceptor, const rpc::TlsFiles& tls,
                               std::function<absl::Status()> answer);

}  // namespace meshrun::coordinator
