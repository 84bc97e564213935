#include "core/http/routes.h"

#include <fmt/format.h>

#include <utility>

#include "absl/status/status.h"

namespace meshrun::http {

void Routes::Add(std::string path, std::string method, Handler handler, bool takes_post) {
  routes_[std::move(path)] = {std::move(method), std::move(handler), takes_post};
}

const Routes::Route* Routes::Find(const std::string& path) const {
  if (const auto whole = routes_.find(path); whole != routes_.end()) return &whole->second;
  for (size_t slash = path.rfind('/'); slash != std::string::npos;) {
    if (const auto found = routes_.find(path.substr(0, slash + 1)); found != routes_.end())
      return &found->second;
    if (slash == 0) break;
    slash = path.rfind('/', slash - 1);
  }
  return nullptr;
}

Answer Routes::Handle(const Request& request) const {
  const Route* const route = Find(request.path);
  if (route == nullptr) {
    return ErrorResponse(absl::NotFoundError(fmt::format("there is nothing at {}", request.path)));
  }
  if (!IsGet(request) && !route->takes_post) return MethodNotAllowed(request, "GET, HEAD");
  if (!request.trusted && !route->method.empty()) {
    if (const absl::Status status = rpc::CheckCall(request.caller, route->method); !status.ok())
      return ErrorResponse(status);
  }
  return route->handler(request);
}

}  // namespace meshrun::http
