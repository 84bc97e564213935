#include "worker/metrics/host_http.h"

#include <utility>

#include "core/certificates/certificate.h"
#include "core/http/routes.h"
#include "core/log.h"
#include "core/metrics/exposition.h"
#include "core/os/files.h"
#include "core/rpc/unix_socket.h"
#include "core/status.h"

namespace meshrun::worker {
namespace {

constexpr std::chrono::milliseconds kMeasureWait(500);

// Whom Prometheus would refuse.
void WarnOfCertificate(const std::string& file) {
  const auto pem = os::ReadFile(file);
  if (!pem.ok()) return;
  const auto certificate = certificates::ReadCertificate(*pem);
  if (!certificate.ok() || certificate->server) return;
  log::Warning(
      "--http: the certificate is not one of a server, and clients will refuse it: issue it anew "
      "with 'meshrun ca issue --role worker --node NAME --host HOST'",
      {{"file", file}});
}

}  // namespace

absl::StatusOr<std::unique_ptr<HostHttp>> HostHttp::Start(Options options) {
  const rpc::Security security = options.security;
  const std::string listen = options.listen;
  if (!rpc::UnixPath(listen) && !security.tls.empty()) WarnOfCertificate(security.tls.cert);
  std::unique_ptr<HostHttp> http(new HostHttp(std::move(options)));
  if (http->options_.has_gpus) http->gpus_.emplace();
  if (!rpc::UnixPath(listen) && !security.tls.empty()) {
    MESHRUN_ASSIGN_OR_RETURN(http->standing_, certificates::Standing::Start({}));
  }
  auto routes = std::make_shared<http::Routes>();
  routes->Add("/healthz", "http:/healthz", [me = http.get()](const http::Request&) -> http::Answer {
    if (me->options_.health.IsReady()) return http::Response{.body = "ok\n"};
    return http::Response{.status = 503, .body = "the worker's loop does not turn\n"};
  });
  routes->Add("/metrics", "http:/metrics",
              [me = http.get()](const http::Request&) { return me->Metrics(); });
  MESHRUN_ASSIGN_OR_RETURN(
      http->server_,
      http::Server::Start(
          {.listen = listen,
           .security = security,
           .standing = http->standing_.get(),
           .handler = [routes](const http::Request& request) { return routes->Handle(request); },
           .program = "meshrun-worker"}));
  return http;
}

void HostHttp::SetLogSpace(const LogSpace& space) {
  MutexLock lock(mu_);
  logs_ = space;
}

void HostHttp::Stop() {
  if (server_ != nullptr) server_->Stop();
}

std::optional<HostMeasures> HostHttp::Ask() const {
  struct Answered {
    Mutex mu;
    CondVar came;
    std::optional<HostMeasures> measures MESHRUN_GUARDED_BY(mu);
  };
  // The loop may answer when nobody waits any more.
  const auto answered = std::make_shared<Answered>();
  options_.post([answered, measure = options_.measure] {
    HostMeasures measures = measure();
    MutexLock lock(answered->mu);
    answered->measures = std::move(measures);
    answered->came.NotifyAll();
  });
  const auto until = std::chrono::steady_clock::now() + kMeasureWait;
  MutexLock lock(answered->mu);
  while (!answered->measures && answered->came.WaitUntil(answered->mu, until)) {
  }
  return std::exchange(answered->measures, std::nullopt);
}

http::Answer HostHttp::Metrics() {
  const std::optional<HostMeasures> measures = Ask();
  std::optional<GpuWatch::State> gpus;
  if (gpus_) gpus = gpus_->state();
  metrics::Exposition out;
  {
    MutexLock lock(mu_);
    metrics_.Collect(measures ? &*measures : nullptr, logs_, gpus ? &*gpus : nullptr, &out);
  }
  const rpc::TlsFiles& tls = options_.security.tls;
  metrics::AddCertificates(out, {{"cert", tls.cert}, {"ca", tls.ca}});
  metrics::AddProcess(out, "meshrun-worker");
  return http::Response{.content_type = metrics::kContentType, .body = out.Text()};
}

}  // namespace meshrun::worker
