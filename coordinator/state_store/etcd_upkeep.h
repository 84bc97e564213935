// Keeps etcd's database from growing without end, and says when it nears its quota.
//
// etcd keeps what keys were at every revision until somebody compacts it. Each round compacts up to
// the revision that the round before saw, so that a reader has an interval's time for the pages of
// one revision. Only the holder of the term does so. Compaction frees pages for new revisions; the
// file shrinks only by `etcdctl defrag`, which stops a member for its time and is the operator's.
//
// One thread, which waits for etcd on its own: no commit waits for it. Its errors are logged.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>

#include "coordinator/etcd/client.h"
#include "core/mutex.h"

namespace meshrun::coordinator {

class EtcdUpkeep {
 public:
  struct Options {
    std::chrono::milliseconds interval = std::chrono::seconds(60);
    // The members' --quota-backend-bytes, whose default it is: etcd does not tell it.
    uint64_t quota_bytes = 2ull << 30;
    // What people should know (v1.Notice), on the thread of the upkeep: "EtcdNearlyFull" at 80 % of
    // the quota, "EtcdAlarm" for an alarm of a member, "EtcdAlarmOver". Once for each time. May be
    // null; all is logged besides.
    std::function<void(const std::string& kind, const std::string& message)> notice;
    // Bytes of the database, each time that they were looked at. May be null.
    std::function<void(uint64_t bytes)> on_size;
  };

  EtcdUpkeep(etcd::Client& client, const Options& options);
  // Waits for no member: interrupts the client's calls. By then nobody else's may be under way.
  ~EtcdUpkeep();

  // A transaction was done at this revision. Any thread.
  void OnCommit(int64_t revision) { newest_ = revision; }

 private:
  void Run();
  void Compact();
  void LookAtSize();
  void Say(const std::string& kind, const std::string& message) const;

  etcd::Client& client_;
  const Options options_;
  std::atomic<int64_t> newest_{0};
  // What the round before has seen.
  int64_t seen_ = 0;
  int64_t compacted_ = 0;
  bool nearly_full_ = false;
  std::string alarms_;
  Mutex mu_;
  CondVar woken_;
  bool stopping_ MESHRUN_GUARDED_BY(mu_) = false;
  bool ended_ MESHRUN_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace meshrun::coordinator
