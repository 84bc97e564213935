#include "coordinator/http_front.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "core/rpc/unix_socket.h"
#include "core/status.h"

namespace meshrun::coordinator {
namespace {

constexpr std::chrono::milliseconds kLook(2);
// How soon an endless body notices that its routes are withdrawn, and when those that have not are
// ended: their readers are slow.
constexpr std::chrono::milliseconds kNotice(50);
constexpr std::chrono::milliseconds kGrace(100);

}  // namespace

std::string HttpAddress(const std::string& flag, const std::string& listen) {
  if (flag == "none") return "";
  if (flag != "auto") return flag;
  std::optional<std::string> path = rpc::UnixPath(listen);
  if (!path) return "";
  // Two coordinators may have their sockets in one directory.
  constexpr std::string_view kEnd = ".sock";
  if (path->ends_with(kEnd)) path->resize(path->size() - kEnd.size());
  return fmt::format("unix:{}.http", *path);
}

absl::StatusOr<std::unique_ptr<HttpFront>> HttpFront::Open(Options options) {
  std::unique_ptr<HttpFront> front(new HttpFront);
  MESHRUN_ASSIGN_OR_RETURN(
      front->server_, http::Server::Start({.listen = std::move(options.listen),
                                           .security = std::move(options.security),
                                           .limits = options.limits,
                                           .standing = options.standing,
                                           .handler =
                                               [me = front.get()](const http::Request& request) {
                                                 return me->Handle(request);
                                               },
                                           .program = "meshrun-coordinator"}));
  return front;
}

http::Answer HttpFront::Handle(const http::Request& request) {
  std::shared_ptr<Served> served;
  std::string why;
  {
    MutexLock lock(mu_);
    served = served_;
    why = why_;
  }
  if (served == nullptr) {
    // Those who only look at the status take 200 for a server.
    if (request.path == "/healthz") return http::Response{.status = 503, .body = why + "\n"};
    return http::ErrorResponse(absl::UnavailableError(why));
  }
  http::Request asked = request;
  asked.gone = [&] {
    return served->withdrawn.load() || (request.gone != nullptr && request.gone());
  };
  http::Answer answer = served->routes.Handle(asked);
  if (auto* const streaming = std::get_if<http::Streaming>(&answer)) {
    // They refer to what is behind the routes.
    streaming->next = [served, next = std::move(streaming->next)](
                          std::chrono::milliseconds wait) -> std::optional<std::string> {
      if (served->withdrawn.load()) return std::nullopt;
      return next(std::min(wait, kNotice));
    };
    streaming->closed = [served, closed = std::move(streaming->closed)] {
      if (closed != nullptr) closed();
    };
  }
  return answer;
}

void HttpFront::Serve(http::Routes routes) {
  auto served = std::make_shared<Served>();
  served->routes = std::move(routes);
  Replace(std::move(served), "");
}

void HttpFront::Withdraw(std::string why) { Replace(nullptr, std::move(why)); }

void HttpFront::Replace(std::shared_ptr<Served> served, std::string why) {
  {
    MutexLock lock(mu_);
    served_.swap(served);
    why_ = std::move(why);
  }
  if (served == nullptr) return;
  served->withdrawn.store(true);
  // Handlers are told, endless bodies end at their next look.
  const auto grace_ends = std::chrono::steady_clock::now() + kGrace;
  while (served.use_count() > 1) {
    if (std::chrono::steady_clock::now() >= grace_ends) server_->EndStreams();
    std::this_thread::sleep_for(kLook);
  }
}

void HttpFront::Stop() {
  if (server_ != nullptr) server_->Stop();
}

absl::StatusOr<std::unique_ptr<HttpFront>> OpenHttpFront(const std::string& flag,
                                                         const Door& door) {
  std::string address = HttpAddress(flag, door.address());
  if (address.empty()) return nullptr;
  return HttpFront::Open(
      {.listen = std::move(address), .security = door.security(), .standing = door.standing()});
}

}  // namespace meshrun::coordinator
