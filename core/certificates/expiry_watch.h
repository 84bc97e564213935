// Tells that certificates are about to end: once at 30 days, 7 days, 1 day before, and at the end.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "core/certificates/certificate.h"
#include "core/clock.h"
#include "core/mutex.h"

namespace meshrun::certificates {

// What was told of each file. Not thread-safe.
class ExpiryNotices {
 public:
  // PEM files; those that cannot be read are passed over.
  explicit ExpiryNotices(std::vector<std::string> files) : files_(std::move(files)) {}
  // Sentences that are due now. A renewed certificate is looked at anew.
  std::vector<std::string> Due(WallNanos now);

 private:
  struct Told {
    WallNanos not_after{0};
    Expiry stage = Expiry::kFar;
  };
  const std::vector<std::string> files_;
  std::map<std::string, Told> told_;
};

// Looks at once, then once an hour, on a thread of its own. `on_due` is called there.
class ExpiryWatch {
 public:
  ExpiryWatch(std::vector<std::string> files, std::function<void(const std::string&)> on_due);
  ~ExpiryWatch();

 private:
  Mutex mu_;
  CondVar changed_;
  bool stopping_ MESHRUN_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace meshrun::certificates
