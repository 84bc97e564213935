#include "coordinator/state_store/etcd_upkeep.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/log.h"
#include "core/text.h"

namespace meshrun::coordinator {
namespace {

// Percent of the quota at which to warn, and below which the next warning is due again.
constexpr uint64_t kWarn = 80;
constexpr uint64_t kCalm = 70;
// Between two interrupts of a call at the end.
constexpr std::chrono::milliseconds kInterrupt(20);

}  // namespace

EtcdUpkeep::EtcdUpkeep(etcd::Client& client, const Options& options)
    : client_(client), options_(options), thread_([this] { Run(); }) {}

EtcdUpkeep::~EtcdUpkeep() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
    woken_.NotifyAll();
    while (!ended_) {
      // Again, because the next call may begin just after this one was interrupted.
      client_.Interrupt();
      woken_.WaitUntil(mu_, std::chrono::steady_clock::now() + kInterrupt);
    }
  }
  thread_.join();
}

void EtcdUpkeep::Run() {
  while (true) {
    Compact();
    LookAtSize();
    const auto until = std::chrono::steady_clock::now() + options_.interval;
    MutexLock lock(mu_);
    while (!stopping_ && woken_.WaitUntil(mu_, until)) {
    }
    if (stopping_) {
      ended_ = true;
      woken_.NotifyAll();
      return;
    }
  }
}

void EtcdUpkeep::Compact() {
  if (seen_ > compacted_) {
    const absl::Status status = client_.Compact(seen_);
    if (status.ok()) {
      compacted_ = seen_;
    } else if (!absl::IsCancelled(status)) {
      log::Warning("etcd's old revisions stay", {{"error", status}});
    }
  }
  seen_ = newest_;
}

void EtcdUpkeep::LookAtSize() {
  const auto status = client_.Status();
  if (absl::IsCancelled(status.status())) return;
  if (!status.ok()) {
    log::Warning("the size of etcd's database is not known", {{"error", status.status()}});
    return;
  }
  // A leader's lease is a new revision several times a second, also where nothing is committed.
  if (const int64_t newest = status->header().revision(); newest > newest_) newest_ = newest;
  const auto size = static_cast<uint64_t>(status->dbsize());
  if (options_.on_size) options_.on_size(size);
  if (size * 100 >= options_.quota_bytes * kWarn && !nearly_full_) {
    nearly_full_ = true;
    Say("EtcdNearlyFull",
        fmt::format("etcd's database has {} ({} in use) of its quota of {}; when that is full, "
                    "nothing can be written: `etcdctl defrag` each member, or raise their "
                    "--quota-backend-bytes",
                    FormatBytes(size), FormatBytes(static_cast<uint64_t>(status->dbsizeinuse())),
                    FormatBytes(options_.quota_bytes)));
  } else if (size * 100 < options_.quota_bytes * kCalm) {
    nearly_full_ = false;
  }
  const std::string alarms = fmt::format("{}", fmt::join(status->errors(), ", "));
  if (alarms == alarms_) return;
  alarms_ = alarms;
  if (alarms.empty()) {
    Say("EtcdAlarmOver", "etcd's members have no alarm any more");
  } else {
    Say("EtcdAlarm", fmt::format("etcd's members have an alarm: {}; until it is disarmed nothing "
                                 "may be written: see docs/high_availability.md",
                                 alarms));
  }
}

void EtcdUpkeep::Say(const std::string& kind, const std::string& message) const {
  log::Warning(message, {{"kind", kind}});
  if (options_.notice) options_.notice(kind, message);
}

}  // namespace meshrun::coordinator
