#include "client/http/redirect_page.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "client/http/script_policy.h"
#include "core/os/fd.h"
#include "core/os/files.h"
#include "core/os/write_all.h"
#include "core/status.h"

namespace meshrun::client {
namespace {

// The address stands in the link alone, so that the script is always the same.
constexpr std::string_view kLeadOn =
    R"(location.replace(document.querySelector("a").href + location.hash))";

std::string InAttribute(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '<':
        out += "&lt;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

// Whether no other user can put a directory of his own in the place of one of ours there.
absl::Status CheckParent(const std::string& path) {
  struct stat info = {};
  // Homes and temporary directories may be links.
  if (::stat(path.c_str(), &info) != 0) return os::ErrnoStatus(errno, path);
  const bool is_ours = info.st_uid == ::geteuid() && (info.st_mode & 022) == 0;
  const bool is_sticky =
      (info.st_uid == 0 || info.st_uid == ::geteuid()) && (info.st_mode & S_ISVTX) != 0;
  if (S_ISDIR(info.st_mode) && (is_ours || is_sticky)) return absl::OkStatus();
  return absl::PermissionDeniedError(fmt::format(
      "other users can change what is in {}: set TMPDIR to a directory of your own", path));
}

absl::StatusOr<std::string> MakeDirectoryIn(const std::string& parent) {
  MESHRUN_RETURN_IF_ERROR(CheckParent(parent));
  std::string path = parent + "/meshrun-page-XXXXXX";
  if (::mkdtemp(path.data()) == nullptr) return os::ErrnoStatus(errno, parent);
  return path;
}

absl::Status WriteNew(const std::string& path, std::string_view content) {
  const os::UniqueFd file(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  return file && os::WriteAll(file.get(), content) ? absl::OkStatus()
                                                   : os::ErrnoStatus(errno, path);
}

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && value[0] == '/' ? value : "";
}

}  // namespace

std::string RedirectPage(const std::string& address) {
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n"
      "<meta name=\"referrer\" content=\"no-referrer\">\n<title>meshrun</title>\n"
      // Without it browsers ask for /favicon.ico.
      "<link rel=\"icon\" href=\"data:,\">\n"
      "<p><a href=\"{}\">The page of meshrun</a>\n<script>{}</script>\n",
      InAttribute(address), kLeadOn);
}

std::string RedirectPolicy() { return ScriptPolicy(kLeadOn); }

RedirectFile::RedirectFile(std::string directory)
    : directory_(std::move(directory)), path_(directory_ + "/open.html") {}

RedirectFile::RedirectFile(RedirectFile&& other) noexcept
    : directory_(std::exchange(other.directory_, {})), path_(std::exchange(other.path_, {})) {}

absl::StatusOr<RedirectFile> RedirectFile::Write(const std::string& address,
                                                 const std::vector<std::string>& parents) {
  absl::Status why = absl::NotFoundError("there is no directory for the browser's first page");
  for (const std::string& parent : parents) {
    auto directory = MakeDirectoryIn(parent);
    if (!directory.ok()) {
      why = directory.status();
      continue;
    }
    RedirectFile file(*std::move(directory));
    why = WriteNew(file.path_, RedirectPage(address));
    if (why.ok()) return file;
  }
  return why;
}

std::vector<std::string> RedirectFile::Parents() {
  std::vector<std::string> out;
  struct stat info = {};
  const std::string home = Environment("HOME");
  // Made by the first snap that a user starts.
  if (!home.empty() && ::stat((home + "/snap").c_str(), &info) == 0 && S_ISDIR(info.st_mode)) {
    out.push_back(home);
  }
  for (const char* name : {"XDG_RUNTIME_DIR", "TMPDIR"}) {
    if (std::string path = Environment(name); !path.empty()) out.push_back(std::move(path));
  }
  out.emplace_back("/tmp");
  return out;
}

void RedirectFile::Remove() const {
  if (directory_.empty()) return;
  ::unlink(path_.c_str());
  ::rmdir(directory_.c_str());
}

}  // namespace meshrun::client
