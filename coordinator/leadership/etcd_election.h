// The keys of leadership in etcd (etcd/keys.h), and the transactions on them: what EtcdLeadership's
// thread does. That one has the time, and says why all this makes one leader.
//
// One thread. Errors of all methods: those of etcd/client.h.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/etcd/client.h"
#include "coordinator/leadership/leadership.h"

namespace meshrun::coordinator {

class EtcdElection {
 public:
  struct Names {
    std::string prefix;
    std::string name;
    std::string address;
  };
  EtcdElection(etcd::Client& client, Names names, std::chrono::seconds ttl);

  // Begins or renews our lease, and makes the key with our name. ALREADY_EXISTS: another candidate
  // has had this name for longer than a lease.
  absl::Status KeepLease(std::chrono::milliseconds interval);

  // Reads the keys. What follows is of the last Look, Renew or Remake.
  absl::Status Look();
  const std::optional<Leadership::Candidate>& leader() const { return leader_; }
  const std::vector<Leadership::Candidate>& candidates() const { return candidates_; }
  // The leader's key is as a Take of ours has made it, the last one or one that was late.
  bool IsOurs() const { return !value_.empty() && leader_value_ == value_; }
  bool HasLeader() const { return !leader_value_.empty(); }
  // Ours was there, and etcd has deleted it: the key without a lease is as we wrote it.
  bool IsTakenAway() const { return !HasLeader() && !value_.empty() && renewal_value_ == value_; }
  // Whether nobody can lead any more: the leader has given up, or a TTL has passed since it was
  // seen to renew. While etcd was full it could lead without that, so a TTL since its key was
  // there.
  bool IsFree() const;
  // Where the leader has renewed nothing for `silence`: finds out, for IsFree, whether etcd is
  // full.
  absl::Status FindWhetherFull(std::chrono::milliseconds silence);

  // Makes the leader's key, as a value that is new each time. False: another one was faster.
  absl::StatusOr<bool> Take();
  // Writes the key without a lease, so that everybody sees that we lead. False: we do not; or our
  // key is there and nothing can be written, because etcd is full (IsOurs then).
  absl::StatusOr<bool> Renew();
  // After IsTakenAway, while we lead. Also true where a try whose answer was lost has done it.
  absl::StatusOr<bool> Remake();
  // Revisions of etcd's: when our name was first among the candidates, and when the first other
  // leader made its key that has been seen to renew it since we came. 0: not seen. A key that came
  // back with a snapshot of etcd is not renewed.
  struct Seen {
    int64_t joined = 0;
    int64_t led = 0;
  };
  const Seen& seen() const { return seen_; }

  // Deletes what is ours, and gives the lease back.
  absl::Status GiveBack();

  const std::string& leader_key() const { return leader_key_; }
  // What the leader's key has where it is ours, else what the last Take would have given it.
  const std::string& value() const { return value_; }

 private:
  using TimePoint = std::chrono::steady_clock::time_point;

  absl::Status BeginLease();
  absl::Status MakeOwnKey();
  // Notes whether etcd is full.
  absl::StatusOr<etcdserverpb::TxnResponse> Write(const etcdserverpb::TxnRequest& request);
  void See(const etcdserverpb::RangeResponse& answer);
  void PutLeader(etcdserverpb::TxnRequest* request) const;
  std::string Value(const std::string& id) const;
  etcdserverpb::RangeRequest AllKeys() const;

  etcd::Client& client_;
  const Names names_;
  const std::chrono::seconds ttl_;
  const std::string keys_;
  const std::string own_key_;
  const std::string leader_key_;
  const std::string renewal_key_;
  const std::string process_;

  int64_t lease_ = 0;
  TimePoint lease_renewed_;
  std::string value_;
  uint64_t takes_ = 0;

  Seen seen_;
  // The keys as last seen. 0: there is no such key.
  int64_t renewal_ = 0;
  std::string renewal_value_;
  // Since when it is this one.
  TimePoint renewal_seen_;
  std::string leader_value_;
  // When it was there last, or may have been.
  TimePoint leader_seen_;
  // A write was refused because etcd was full, and the leader has not renewed since.
  bool was_full_ = false;
  std::optional<Leadership::Candidate> leader_;
  std::vector<Leadership::Candidate> candidates_;
  bool own_is_there_ = false;
  // Since when another one has our name.
  std::optional<TimePoint> name_taken_;
};

}  // namespace meshrun::coordinator
