#include "core/rpc/loop_health.h"

#include <fmt/format.h>
#include <grpcpp/health_check_service_interface.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "core/os/fd.h"
#include "core/text.h"

namespace meshrun::rpc {
namespace {

using Steady = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLook(250);
constexpr std::chrono::seconds kShortestReady(2);

std::string NotifySocket() {
  const char* const path = std::getenv("NOTIFY_SOCKET");
  const bool watched = std::getenv("WATCHDOG_USEC") != nullptr;
  return path != nullptr && watched && std::strlen(path) < sizeof(sockaddr_un::sun_path) ? path
                                                                                         : "";
}

}  // namespace

absl::Status LoopHealth::Check(const Options& options) {
  if (options.ready_timeout >= kShortestReady && options.live_timeout >= options.ready_timeout) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(fmt::format(
      "--ready-timeout {} and --live-timeout {}: the first is {} at least, the second not shorter",
      FormatDuration(options.ready_timeout), FormatDuration(options.live_timeout),
      FormatDuration(kShortestReady)));
}

LoopHealth::LoopHealth(const Options& options)
    : options_(options),
      notify_socket_(NotifySocket()),
      turned_at_(Steady::now().time_since_epoch().count()) {}

void LoopHealth::Turned() { turned_at_ = Steady::now().time_since_epoch().count(); }

bool LoopHealth::IsReady() const {
  return Steady::now().time_since_epoch() - Steady::duration(turned_at_.load()) <
         options_.ready_timeout;
}

void LoopHealth::Watch(grpc::Server& server, std::vector<std::string> services) {
  grpc::HealthCheckServiceInterface* const service = server.GetHealthCheckService();
  if (service == nullptr) return;
  services_ = std::move(services);
  services_.push_back(kReadyService);
  TellReady(*service, !standby_);
  thread_ = std::thread([this, service] { Run(*service); });
}

void LoopHealth::WatchStandby(grpc::Server& server, std::vector<std::string> services) {
  standby_ = true;
  Watch(server, std::move(services));
}

void LoopHealth::Stop() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void LoopHealth::Run(grpc::HealthCheckServiceInterface& service) {
  bool ready = true, live = true;
  Steady::time_point told{};
  while (true) {
    if (standby_) Turned();
    const Steady::duration silent =
        Steady::now().time_since_epoch() - Steady::duration(turned_at_.load());
    if (const bool now = silent < options_.ready_timeout; now != ready) {
      ready = now;
      TellReady(service, ready);
    }
    if (const bool now = silent < options_.live_timeout; now != live) {
      live = now;
      service.SetServingStatus("", live);
    }
    if (ready && Steady::now() - told >= std::chrono::seconds(1)) {
      told = Steady::now();
      TellSystemd();
    }
    const auto next = Steady::now() + kLook;
    MutexLock lock(mu_);
    while (!stopping_ && changed_.WaitUntil(mu_, next)) {
    }
    if (stopping_) return;
  }
}

void LoopHealth::TellReady(grpc::HealthCheckServiceInterface& service, bool ready) const {
  ready = ready && !standby_;
  for (const std::string& name : services_) service.SetServingStatus(name, ready);
}

void LoopHealth::TellSystemd() const {
  if (notify_socket_.empty()) return;
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, notify_socket_.data(), notify_socket_.size());
  // An abstract name, which systemd writes with '@'.
  if (address.sun_path[0] == '@') address.sun_path[0] = '\0';
  const os::UniqueFd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  constexpr std::string_view kAlive = "WATCHDOG=1";
  (void)!::sendto(fd.get(), kAlive.data(), kAlive.size(), MSG_NOSIGNAL,
                  reinterpret_cast<const sockaddr*>(&address),
                  static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + notify_socket_.size()));
}

}  // namespace meshrun::rpc
