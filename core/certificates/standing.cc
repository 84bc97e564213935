#include "core/certificates/standing.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <utility>
#include <vector>

#include "core/certificates/certificate.h"
#include "core/os/files.h"
#include "core/status.h"

namespace meshrun::certificates {
namespace {

std::string_view Trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

// "0A:1B" and "a1b" are one number. Empty: not one.
std::string Serial(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == ':' || c == ' ') continue;
    if (std::isxdigit(static_cast<unsigned char>(c)) == 0) return "";
    if (c != '0' || !out.empty())
      out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return out;
}

}  // namespace

absl::StatusOr<DenyList> ParseDenyList(std::string_view text) {
  DenyList out;
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = Trimmed(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty() || line.starts_with('#')) continue;
    // `openssl x509 -serial` prints serial=HEX.
    const size_t colon = std::min(line.find_first_of(":="), line.size());
    const std::string_view kind = line.substr(0, colon);
    const std::string_view value = Trimmed(line.substr(std::min(colon + 1, line.size())));
    const std::string serial = Serial(value);
    if (kind == "serial" && !serial.empty()) {
      out.serials.insert(serial);
    } else if (kind == "name" && !value.empty()) {
      out.names.emplace(value);
    } else {
      return absl::InvalidArgumentError(
          fmt::format("line {}: '{}' is neither serial:HEX nor name:COMMON-NAME", number, line));
    }
  }
  return out;
}

absl::StatusOr<std::unique_ptr<Standing>> Standing::Start(Options options) {
  std::unique_ptr<Standing> standing(new Standing(std::move(options)));
  MESHRUN_RETURN_IF_ERROR(standing->ReadList());
  if (standing->options_.interval.count() == 0) return standing;
  standing->thread_ = std::thread([me = standing.get()] {
    while (true) {
      me->Look();
      const auto next = std::chrono::steady_clock::now() + me->options_.interval;
      MutexLock lock(me->mu_);
      while (!me->stopping_ && me->changed_.WaitUntil(me->mu_, next)) {
      }
      if (me->stopping_) return;
    }
  });
  return standing;
}

Standing::~Standing() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

absl::Status Standing::ReadList() {
  const std::string& path = options_.deny_file;
  if (path.empty()) return absl::OkStatus();
  const auto text = os::ReadRegularFile(path, kLargestList);
  {
    MutexLock lock(mu_);
    // A problem is said once.
    std::string seen = text.ok() ? *text : std::string(text.status().message());
    if (std::exchange(seen_, seen) == seen) return absl::OkStatus();
  }
  if (!text.ok()) return Annotate(text.status(), "the deny list");
  auto list = ParseDenyList(*text);
  if (!list.ok()) return Annotate(list.status(), "the deny list " + path);
  options_.on_list(*list);
  MutexLock lock(mu_);
  denied_ = *std::move(list);
  return absl::OkStatus();
}

absl::Status Standing::Check(std::string_view pem, WallNanos grace) {
  MutexLock lock(mu_);
  return Judge(pem, grace);
}

Standing::Known Standing::Read(std::string_view pem) {
  MutexLock lock(mu_);
  const Known* const known = Find(pem);
  return known == nullptr ? Known() : *known;
}

const Standing::Known* Standing::Find(std::string_view pem) {
  auto it = known_.find(pem);
  if (it == known_.end()) {
    const auto certificate = ReadCertificate(pem);
    if (!certificate.ok()) return nullptr;
    if (known_.size() >= kMostKnown) known_.clear();
    it = known_
             .emplace(std::string(pem),
                      Known{certificate->common_name, certificate->serial, certificate->validity()})
             .first;
  }
  return &it->second;
}

absl::Status Standing::Judge(std::string_view pem, WallNanos grace) {
  const Known* const found = Find(pem);
  if (found == nullptr) {
    return absl::UnauthenticatedError("the caller's certificate cannot be read");
  }
  const Known& known = *found;
  const WallNanos now = options_.clock->WallNow();
  if (now >= known.validity.not_after + grace) {
    return absl::UnauthenticatedError(
        fmt::format("the certificate of '{}' {}: renew it with 'meshrun ca renew'",
                    known.common_name, DescribeEnd(now, known.validity.not_after)));
  }
  if (denied_.serials.contains(known.serial) || denied_.names.contains(known.common_name)) {
    return absl::UnauthenticatedError(
        fmt::format("the certificate of '{}', serial {}, is on the deny list", known.common_name,
                    known.serial));
  }
  return absl::OkStatus();
}

uint64_t Standing::Watch(std::string pem, WallNanos grace,
                         std::function<void(const absl::Status&)> end) {
  MutexLock lock(mu_);
  watched_[++last_watch_] = {std::move(pem), grace, std::move(end)};
  return last_watch_;
}

void Standing::Forget(uint64_t watch) {
  MutexLock lock(mu_);
  watched_.erase(watch);
}

void Standing::Quiesce() {
  const std::thread::id self = std::this_thread::get_id();
  MutexLock lock(mu_);
  const uint64_t last = last_calling_;
  while (std::any_of(calling_.begin(), calling_.upper_bound(last),
                     [self](const auto& look) { return look.second != self; })) {
    called_.Wait(mu_);
  }
}

void Standing::Look() {
  if (const absl::Status status = ReadList(); !status.ok()) {
    options_.on_problem(std::string(status.message()) + "; the last one that could be read holds");
  }
  std::vector<std::pair<std::function<void(const absl::Status&)>, absl::Status>> due;
  uint64_t number = 0;
  {
    MutexLock lock(mu_);
    for (auto it = watched_.begin(); it != watched_.end();) {
      absl::Status status = Judge(it->second.pem, it->second.grace);
      if (status.ok()) {
        ++it;
        continue;
      }
      due.emplace_back(std::move(it->second.end), std::move(status));
      it = watched_.erase(it);
    }
    if (due.empty()) return;
    number = ++last_calling_;
    calling_[number] = std::this_thread::get_id();
  }
  for (const auto& [end, status] : due) end(status);
  // Before Quiesce returns: what the functions hold may refer to what its caller destroys.
  due.clear();
  MutexLock lock(mu_);
  calling_.erase(number);
  called_.NotifyAll();
}

}  // namespace meshrun::certificates
