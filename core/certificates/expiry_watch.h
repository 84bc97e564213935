// Tells that certificates are about to end: once at 30 days, 7 days, 1 day before, and at the end;
// and that they have been renewed.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/certificates/certificate.h"
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
    // Sentences that are due now. A renewed certificate is looked at anew, and a key that does not
    // fit is told once.
    std::vector<std::string> due;
    // `cert` is another one than at the last look, has not ended, and fits `key`.
    std::optional<Certificate> renewed;
  };
  News Look(WallNanos now);

 private:
  const CertificateFiles files_;
  std::map<std::string, ToldExpiry> told_;
  // The certificate that fitted last, in PEM's form; and the last that did not, twice.
  std::string fitting_;
  std::string misfit_;
  bool misfit_told_ = false;
};

// Looks at once, then every 10 s, on a thread of its own, where the callbacks are called.
class ExpiryWatch {
 public:
  ExpiryWatch(
      CertificateFiles files, std::function<void(const std::string&)> on_due,
      std::function<void(const Certificate&)> on_renewed = [](const Certificate&) {});
  ~ExpiryWatch();

 private:
  Mutex mu_;
  CondVar changed_;
  bool stopping_ MESHRUN_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace meshrun::certificates
