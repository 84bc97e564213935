#include "core/certificates/expiry_watch.h"

#include <fmt/format.h>

#include <utility>

#include "core/certificates/certificate.h"
#include "core/os/files.h"

namespace meshrun::certificates {
namespace {

constexpr std::chrono::seconds kInterval(10);
constexpr size_t kLargestFile = 1 << 20;

}  // namespace

ExpiryNotices::News ExpiryNotices::Look(WallNanos now) {
  News news;
  for (const std::string& file : {files_.cert, files_.ca}) {
    const auto pem = os::ReadRegularFile(file, kLargestFile);
    const auto certificate = pem.ok() ? ReadCertificate(*pem) : pem.status();
    if (!certificate.ok()) continue;
    const Validity validity = certificate->validity();
    if (told_[file].Advance(now, validity)) {
      news.due.push_back(
          fmt::format("the certificate of '{}' in {} {}: renew it with 'meshrun ca renew'",
                      certificate->common_name, file, DescribeEnd(now, validity.not_after)));
    }
    if (file != files_.cert || files_.key.empty() || *pem == fitting_) continue;
    const auto key = os::ReadRegularFile(files_.key, kLargestFile);
    if (key.ok() && KeyFits(*pem, *key)) {
      if (!fitting_.empty() && now < validity.not_after) news.renewed = *certificate;
      fitting_ = *pem;
      misfit_.clear();
    } else if (std::exchange(misfit_, *pem) != *pem) {
      // Both may be on their way: the next look sees.
      misfit_told_ = false;
    } else if (!std::exchange(misfit_told_, true)) {
      news.due.push_back(fmt::format(
          "the certificate in {} does not fit the key in {}: no new connection comes about", file,
          files_.key));
    }
  }
  return news;
}

ExpiryWatch::ExpiryWatch(CertificateFiles files, std::function<void(const std::string&)> on_due,
                         std::function<void(const Certificate&)> on_renewed) {
  thread_ = std::thread([this, notices = ExpiryNotices(std::move(files)),
                         on_due = std::move(on_due), on_renewed = std::move(on_renewed)]() mutable {
    while (true) {
      const ExpiryNotices::News news = notices.Look(Clock::Real().WallNow());
      for (const std::string& text : news.due) on_due(text);
      if (news.renewed) on_renewed(*news.renewed);
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
