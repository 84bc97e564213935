#include "agent/report_socket.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "core/os/files.h"

namespace meshrun::agent {
namespace {

std::string Number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return fmt::format("{}", value);
}

std::string Quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

std::string FormatReport(const Progress& progress) {
  std::string out = "{";
  const auto add = [&out](const std::string& name, const std::string& value) {
    out += fmt::format("{}{}:{}", out.size() > 1 ? "," : "", Quoted(name), value);
  };
  if (progress.step) add("step", fmt::format("{}", *progress.step));
  if (progress.total_steps) add("total_steps", fmt::format("{}", *progress.total_steps));
  if (progress.loss) add("loss", Number(*progress.loss));
  if (!progress.note.empty()) add("note", Quoted(progress.note));
  if (progress.waited_seconds) add("waited_seconds", Number(*progress.waited_seconds));
  if (progress.collective_bytes)
    add("collective_bytes", fmt::format("{}", *progress.collective_bytes));
  if (progress.samples) add("samples", Number(*progress.samples));
  if (progress.data_seconds) add("data_seconds", Number(*progress.data_seconds));
  if (!progress.metrics.empty()) {
    std::string metrics = "{";
    for (const auto& [name, value] : progress.metrics) {
      metrics += fmt::format("{}{}:{}", metrics.size() > 1 ? "," : "", Quoted(name), Number(value));
    }
    add("metrics", metrics + "}");
  }
  return out + "}";
}

ReportSocket::ReportSocket(const std::string& path) {
  if (path.empty() || !os::CheckSocketPath(path).ok()) return;
  os::UniqueFd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  if (fd &&
      ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
    fd_ = std::move(fd);
  }
}

void ReportSocket::Send(const Progress& progress) const {
  if (!fd_) return;
  const std::string report = FormatReport(progress);
  (void)!::send(fd_.get(), report.data(), report.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
}

}  // namespace meshrun::agent
