#include "coordinator/http_routes.h"

#include <fmt/format.h>

#include <chrono>
#include <string>
#include <utility>

#include "core/error_detail.h"
#include "core/metrics/exposition.h"

namespace meshrun::coordinator {
namespace {

// The loop answers in microseconds; while it does not, the last measures are shown.
constexpr std::chrono::milliseconds kMeasureWait(500);

template <typename Counts>
CoordinatorMetrics::Sources::Connections Of(const Counts& counts) {
  return {.open = counts.open, .closed = counts.closed, .refused = counts.refused};
}

http::Answer Told(const CoordinatorMetrics& metrics, CoordinatorMetrics::Sources sources,
                  const rpc::TlsFiles& tls) {
  sources.certificates = {{"cert", tls.cert}, {"ca", tls.ca}};
  metrics::Exposition out;
  metrics.Collect(sources, &out);
  return http::Response{.content_type = metrics::kContentType, .body = out.Text()};
}

http::Answer Health(const HttpSources& sources) {
  if (sources.health.IsReady()) return http::Response{.body = "ok\n"};
  return http::Response{.status = 503, .body = "the coordinator's loop does not turn\n"};
}

// A leader's address is that of its gRPC port: nobody here knows where its HTTP port is.
absl::Status WithWhatToDo(const absl::Status& standby) {
  if (DetailOf(standby).leader().empty()) return standby;
  return absl::Status(
      standby.code(),
      fmt::format("{} (its gRPC address); send this call to the HTTP port of the coordinator whose "
                  "/healthz answers \"ok\"",
                  std::string(standby.message())));
}

http::Answer Metrics(const HttpSources& sources) {
  CoordinatorMetrics::Sources told;
  told.measures = sources.loop.Measure(kMeasureWait);
  told.leads = sources.leadership.Leads();
  told.term = sources.loop.term();
  told.read_only = !sources.loop.read_only_reason().empty();
  told.queued_events = sources.loop.queued();
  if (sources.acceptor != nullptr) told.grpc = Of(sources.acceptor->counts());
  told.http = Of(sources.front.counts());
  const StateStore::Size size = sources.store.size();
  told.store_bytes = size.bytes;
  told.store_quota_bytes = size.most_bytes;
  return Told(sources.metrics, std::move(told), sources.tls);
}

}  // namespace

http::Routes MakeRoutes(const HttpSources& sources) {
  http::Routes routes;
  const auto add = [&](const char* path, http::Answer (*answer)(const HttpSources&)) {
    routes.Add(path, "",
               sources.guard(std::string("http:") + path,
                             [sources, answer](const http::Request&) { return answer(sources); }));
  };
  add("/healthz", &Health);
  add("/metrics", &Metrics);
  return routes;
}

http::Routes MakeStandbyRoutes(const CoordinatorMetrics& metrics, const HttpFront& front,
                               const rpc::Acceptor* acceptor, const rpc::TlsFiles& tls,
                               std::function<absl::Status()> answer) {
  http::Routes routes;
  routes.Add("/healthz", "http:/healthz",
             [](const http::Request&) { return http::Response{.body = "stands by\n"}; });
  routes.Add("/metrics", "http:/metrics", [&metrics, &front, acceptor, tls](const http::Request&) {
    CoordinatorMetrics::Sources told;
    if (acceptor != nullptr) told.grpc = Of(acceptor->counts());
    told.http = Of(front.counts());
    return Told(metrics, std::move(told), tls);
  });
  routes.Add(
      "/", "http:/",
      [answer = std::move(answer)](const http::Request&) {
        return http::ErrorResponse(WithWhatToDo(answer()));
      },
      /*takes_post=*/true);
  return routes;
}

}  // namespace meshrun::coordinator
