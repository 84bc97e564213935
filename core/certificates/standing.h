// Checks that the certificates which callers have shown are still valid. TLS checks a certificate
// only when a connection begins, and a connection may last for months. A certificate is no longer
// valid when it has expired, or when the deny list names it.
//
// The deny list is a text file, read again when it has changed, once a second at most:
//
//   # lost laptop of ada
//   serial:5f3a90c2
//   name:node-17            every certificate with this common name
//
// Threads: any; one of its own looks once a second.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/certificates/expiry.h"
#include "core/clock.h"
#include "core/mutex.h"

namespace meshrun::certificates {

struct DenyList {
  // Hexadecimal, without leading zeros.
  std::set<std::string> serials;
  std::set<std::string, std::less<>> names;
};
// INVALID_ARGUMENT names the line that is neither serial:HEX nor name:TEXT.
absl::StatusOr<DenyList> ParseDenyList(std::string_view text);

class Standing {
 public:
  struct Options {
    // Empty: nobody is denied.
    std::string deny_file;
    const Clock* clock = &Clock::Real();
    // Time between two looks of the thread. 0: there is no thread, and the owner calls Look.
    std::chrono::milliseconds interval{1000};
    // The deny list cannot be read any more; the last one that could holds.
    std::function<void(const std::string&)> on_problem = [](const std::string&) {};
    // Another deny list holds from now on.
    std::function<void(const DenyList&)> on_list = [](const DenyList&) {};
  };

  // The errors of ParseDenyList, and those of reading the file.
  static absl::StatusOr<std::unique_ptr<Standing>> Start(Options options);
  ~Standing();

  // Checks a certificate in PEM form. UNAUTHENTICATED: it ended longer than `grace` ago, is denied,
  // or is damaged.
  absl::Status Check(std::string_view pem, WallNanos grace = WallNanos(0));
  // What a certificate says of itself.
  struct Known {
    std::string common_name;
    // Hexadecimal, without leading zeros.
    std::string serial;
    Validity validity;
  };
  // Empty where it cannot be read.
  Known Read(std::string_view pem);
  // Calls `end` once, on the thread of this object, when Check would fail. A call that is due
  // already comes after Forget too, so `end` must refer to nothing that ends with the watch. What
  // it does refer to is destroyed after Forget and Quiesce.
  uint64_t Watch(std::string pem, WallNanos grace, std::function<void(const absl::Status&)> end);
  // Waits for nothing: may be called under any lock.
  void Forget(uint64_t watch);
  // Returns when each `end` that a Look has taken up so far has returned and is destroyed. Holds up
  // nothing, and waits for no later Look. Call it without a lock that an `end` takes, and not from
  // an `end`: the Look that calls it is not waited for.
  void Quiesce() MESHRUN_EXCLUDES(mu_);

  // What the thread does each time.
  void Look() MESHRUN_EXCLUDES(mu_);

 private:
  struct Watched {
    std::string pem;
    WallNanos grace{0};
    std::function<void(const absl::Status&)> end;
  };
  // Certificates whose text is remembered.
  static constexpr size_t kMostKnown = 10'000;
  static constexpr size_t kLargestList = 1 << 20;

  explicit Standing(Options options) : options_(std::move(options)) {}
  absl::Status ReadList() MESHRUN_EXCLUDES(mu_);
  absl::Status Judge(std::string_view pem, WallNanos grace) MESHRUN_REQUIRES(mu_);
  // Null: it cannot be read.
  const Known* Find(std::string_view pem) MESHRUN_REQUIRES(mu_);

  const Options options_;
  Mutex mu_;
  CondVar changed_;
  bool stopping_ MESHRUN_GUARDED_BY(mu_) = false;
  // The file as it was read last, or why it could not be.
  std::optional<std::string> seen_ MESHRUN_GUARDED_BY(mu_);
  DenyList denied_ MESHRUN_GUARDED_BY(mu_);
  std::map<std::string, Known, std::less<>> known_ MESHRUN_GUARDED_BY(mu_);
  std::map<uint64_t, Watched> watched_ MESHRUN_GUARDED_BY(mu_);
  uint64_t last_watch_ MESHRUN_GUARDED_BY(mu_) = 0;
  // Looks that call functions, by their numbers, and the threads that they are on.
  std::map<uint64_t, std::thread::id> calling_ MESHRUN_GUARDED_BY(mu_);
  uint64_t last_calling_ MESHRUN_GUARDED_BY(mu_) = 0;
  CondVar called_;
  std::thread thread_;
};

}  // namespace meshrun::certificates
