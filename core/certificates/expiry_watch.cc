#include "core/certificates/expiry_watch.h"

#include <fmt/format.h>

#include "core/os/files.h"

namespace meshrun::certificates {
namespace {

constexpr std::chrono::hours kInterval(1);
constexpr size_t kLargestFile = 1 << 20;

}  // namespace

std::vector<std::string> ExpiryNotices::Due(WallNanos now) {
  std::vector<std::string> due;
  for (const std::string& file : files_) {
    const auto pem = os::ReadRegularFile(file, kLargestFile);
    const auto certificate = pem.ok() ? ReadCertificate(*pem) : pem.status();
    if (!certificate.ok()) continue;
    Told& told = told_[file];
    if (told.not_after != certificate->not_after) told = {.not_after = certificate->not_after};
    const Expiry stage = ExpiryAt(now, certificate->not_after);
    if (stage <= told.stage) continue;
    told.stage = stage;
    due.push_back(fmt::format("the certificate of '{}' in {} {}: renew it with 'meshrun ca renew'",
                              certificate->common_name, file,
                              DescribeEnd(now, certificate->not_after)));
  }
  return due;
}

ExpiryWatch::ExpiryWatch(std::vector<std::string> files,
                         std::function<void(const std::string&)> on_due) {
  thread_ = std::thread(
      [this, notices = ExpiryNotices(std::move(files)), on_due = std::move(on_due)]() mutable {
        while (true) {
          for (const std::string& text : notices.Due(Clock::Real().WallNow())) on_due(text);
          const auto next = std::chrono::steady_clock::now() + kInterval;
          MutexLock lock(mu_);
          while (!stopping_ && changed_.WaitUntil(mu_, next)) {
          }
          if (stopping_) return;
        }
      });
}

ExpiryWatch::~ExpiryWatch() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

}  // namespace meshrun::certificates
