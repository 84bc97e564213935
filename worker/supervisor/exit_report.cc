#include "worker/supervisor/exit_report.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/os/fd.h"
#include "core/os/files.h"
#include "core/utf8.h"
#include "worker/supervisor/report.h"

namespace meshrun::worker {
namespace {

constexpr size_t kMostErrorBytes = 4096;
constexpr size_t kLargestErrorFile = 1 << 20;

std::vector<std::string> LastLinesOfFile(const std::string& path) {
  const auto fd = os::OpenRegularFile(path);
  struct stat info;
  if (!fd.ok() || ::fstat(fd->get(), &info) != 0 || info.st_size == 0) return {};
  const off_t start = std::max<off_t>(0, info.st_size - static_cast<off_t>(kMostLastBytes));
  char buffer[kMostLastBytes];
  const ssize_t n = ::pread(fd->get(), buffer, sizeof(buffer), start);
  if (n <= 0) return {};
  std::string tail(buffer, static_cast<size_t>(n));
  // Bytes that the disk had no room for.
  std::erase(tail, '\0');
  return LastLines(tail, start > 0);
}

}  // namespace

std::vector<std::string> LastLines(std::string_view tail, bool cut) {
  if (tail.size() > kMostLastBytes) {
    tail.remove_prefix(tail.size() - kMostLastBytes);
    cut = true;
  }
  std::vector<std::string> lines;
  while (!tail.empty() && lines.size() < kMostLastLines) {
    const size_t newline = tail.rfind('\n');
    const bool first_of_tail = newline == std::string_view::npos;
    std::string_view line = first_of_tail ? tail : tail.substr(newline + 1);
    tail = first_of_tail ? std::string_view() : tail.substr(0, newline);
    // A line without its beginning is left out, unless it is the only one.
    if (first_of_tail && cut && !lines.empty()) break;
    while (line.ends_with('\r')) line.remove_suffix(1);
    if (const size_t rewritten = line.rfind('\r'); rewritten != std::string_view::npos) {
      line.remove_prefix(rewritten + 1);
    }
    if (line.empty() && lines.empty()) continue;
    lines.push_back(ReplaceBytes(line));
  }
  std::reverse(lines.begin(), lines.end());
  return lines;
}

std::string ErrorFileMessage(std::string_view json) {
  const nlohmann::json file = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!file.is_object() || !file.contains("message")) return "";
  const nlohmann::json* message = &file["message"];
  if (message->is_object() && message->contains("message")) message = &(*message)["message"];
  if (!message->is_string()) return "";
  return ReplaceBytes(message->get_ref<const std::string&>().substr(0, kMostErrorBytes));
}

void ReadLeftBehind(const v1::RankLaunch& launch, v1::RankExit* exit) {
  std::vector<std::string> lines = LastLinesOfFile(launch.stderr_path());
  if (lines.empty()) lines = LastLinesOfFile(launch.stdout_path());
  for (std::string& line : lines) exit->add_last_lines(std::move(line));
  if (launch.error_file().empty()) return;
  const auto content = os::ReadRegularFile(launch.error_file(), kLargestErrorFile);
  if (content.ok()) {
    exit->set_error_message(ErrorFileMessage(*content));
  } else if (!absl::IsNotFound(content.status())) {
    exit->set_error_message(EscapeBytes(
        fmt::format("its error file was not read: {}", std::string(content.status().message()))));
  }
}

}  // namespace meshrun::worker
