// State in etcd, for a coordinator with standbys: rows are keys below a prefix (etcd/keys.h), a
// commit is one transaction of etcd's.
//
// Two comparisons guard every transaction. The row of the term must be ours: another coordinator's
// BeginTerm changes it, and nothing of ours is written afterwards. And the last transaction must be
// the one that we know of (PREFIX/commit, which every transaction writes): a repetition of a
// transaction whose answer was lost, or one that was late on its way, changes nothing. Where a
// repetition is refused, the name in PREFIX/commit tells whether the first try was done.
//
// ForEachRow reads page by page, all of one revision of etcd's. Only the first page needs etcd's
// majority. The holder of the term compacts
// older revisions, and says when the database nears its quota (etcd_upkeep.h).
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/etcd/client.h"
#include "coordinator/etcd/keys.h"
#include "coordinator/etcd/kv.h"
#include "coordinator/state_store/etcd_upkeep.h"
#include "coordinator/state_store/state_store.h"

namespace meshrun::coordinator {

class EtcdStateStore : public StateStore {
 public:
  struct Options {
    etcd::Client::Options client;
    std::string prefix = "meshrun";
    // The key that this coordinator holds while it leads (EtcdLeadership::Held): a term begins only
    // while it is there. It says nothing: we do not lead. Null: there is no leadership.
    std::function<std::optional<etcd::OwnKey>()> held;
    EtcdUpkeep::Options upkeep;
  };

  // Errors, of all methods too: those of etcd/client.h, except that UNAVAILABLE stands for
  // UNAUTHENTICATED and PERMISSION_DENIED, which a person may mend; and UNIMPLEMENTED: a newer
  // meshrun wrote this state.
  static absl::StatusOr<std::unique_ptr<EtcdStateStore>> Open(Options options);
  // For tests: on a model of etcd, without an upkeep, and with smaller transactions.
  static std::unique_ptr<EtcdStateStore> Over(std::unique_ptr<etcd::Kv> model, std::string prefix,
                                              Limits limits);

  Limits limits() const override { return limits_; }
  // Errors besides: FAILED_PRECONDITION (we do not lead any more, which may change), UNIMPLEMENTED
  // (a newer meshrun wrote this state, which stays so).
  absl::StatusOr<uint64_t> BeginTerm() override;
  absl::Status ForEachRow(const TakeRow& take) override;
  absl::Status ForEachRowOf(v1::StateTable table, const TakeRow& take) override;
  absl::Status Commit(uint64_t term, const std::vector<v1::StateRow>& rows) override;
  // Revision of etcd's at which the term was begun; 0: never. Errors as above.
  absl::StatusOr<int64_t> TermBegunAt();
  // As of the last look of the upkeep.
  Size size() const override {
    const uint64_t bytes = bytes_;
    if (bytes == 0) return {};
    return {.bytes = bytes, .most_bytes = options_.upkeep.quota_bytes};
  }

 private:
  // What is compared: the keys as they were read together.
  struct Seen;
  EtcdStateStore(Options options, std::unique_ptr<etcd::Kv> kv, Limits limits);
  std::string KeyOf(int table, std::string_view key) const;
  absl::StatusOr<v1::StateRow> RowOf(mvccpb::KeyValue pair) const;
  absl::StatusOr<Seen> Look();
  // Reads the keys from `from` to before `to`, page by page, at this revision; 0: the newest one,
  // which it then is. False: `take` wants no more.
  absl::StatusOr<bool> ReadRange(std::string from, std::string to, int64_t* revision,
                                 const TakeRow& take);
  absl::StatusOr<etcdserverpb::RangeResponse> ReadPage(etcdserverpb::RangeRequest* request);
  // Adds the operations, and the change of PREFIX/commit that names this transaction.
  std::string Name(etcdserverpb::TxnRequest* request);

  const Options options_;
  const std::string term_key_;
  const std::string commit_key_;
  const std::string schema_key_;
  // Differs for each object, so that nobody takes another's transaction for his own.
  const std::string process_;
  const std::unique_ptr<etcd::Kv> kv_;
  const Limits limits_;
  // The one of kv_; null: a model.
  etcd::Client* client_ = nullptr;
  uint64_t transactions_ = 0;
  // Revision of the last transaction; absent: an answer was lost, and it is to be read.
  std::optional<int64_t> last_;
  // 0: not known yet.
  std::atomic<uint64_t> bytes_{0};
  // The last member: it uses the others.
  std::unique_ptr<EtcdUpkeep> upkeep_;
};

}  // namespace meshrun::coordinator
