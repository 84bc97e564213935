// Tells that certificates are about to end: once at 30 days, 7 days, 1 day before, and at the end;
// and that they have been renewed.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "core/certificates/expiry.h"
#include "core/clock.h"
#include "core/mutex.h"

namespace meshrun::certificates {

// PEM files of one program; those that cannot be read are passed over.
struct CertificateFiles {
  std::string cert;
  std::string key;
  std::string ca;
};

// What was told of them. Not thread-safe.
class ExpiryNotices {
 public:
  explicit ExpiryNotices(CertificateFiles files) : files_(std::move(files)) {}

  struct News {
    // Sentences that are due now. A renewed certificate is looked at anew.
    std::vector<std::string> due;
    // `cert` ends later than at the last look, and fits `key`.
    bool renewed = false;
  };
  News Look(WallNanos now);

 private:
  const CertificateFiles files_;
  std::map<std::string, ToldExpiry> told_;
  // End of the certificate that fitted last.
  WallNanos in_use_{0};
};

// Looks at once, then every 10 s, on a thread of its own, where the callbacks are called.
class ExpiryWatch {
 public:
  ExpiryWatch(
      CertificateFiles files, std::function<void(const std::string&)> on_due,
      std::function<void()> on_renewed = [] {});
  ~ExpiryWatch();

 private:
  Mutex mu_;
  CondVar changed_;
  bool stopping_ MESHRUN_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace meshrun::certificates
