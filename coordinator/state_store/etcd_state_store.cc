#include "coordinator/state_store/etcd_state_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "core/ids.h"
#include "core/log.h"
#include "core/parse_integer.h"
#include "core/status.h"

namespace meshrun::coordinator {
namespace {

using etcdserverpb::Compare;
using etcdserverpb::RangeRequest;
using etcdserverpb::RangeResponse;
using etcdserverpb::RequestOp;
using etcdserverpb::TxnRequest;

// Rows of the first page: of the largest ones so many fit into a message (rpc::kMaxMessageBytes).
constexpr int64_t kFirstPage = 32;
// Later ones have so many bytes, if their rows are as large as those of the page before.
constexpr int64_t kPageBytes = 4 << 20;
constexpr int64_t kLargestPage = 2048;

// What etcd refuses to a coordinator that it has let in, a person may grant again: that passes, as
// the loss of a majority does.
class PatientKv : public etcd::Kv {
 public:
  explicit PatientKv(std::unique_ptr<etcd::Client> client) : client_(std::move(client)) {}
  absl::StatusOr<RangeResponse> Range(const RangeRequest& request) override {
    return Patient(client_->Range(request));
  }
  absl::StatusOr<etcdserverpb::TxnResponse> Txn(const TxnRequest& request) override {
    return Patient(client_->Txn(request));
  }

 private:
  template <typename Response>
  static absl::StatusOr<Response> Patient(absl::StatusOr<Response> answer) {
    const absl::Status& status = answer.status();
    if (!absl::IsUnauthenticated(status) && !absl::IsPermissionDenied(status)) return answer;
    return absl::UnavailableError(status.message());
  }

  const std::unique_ptr<etcd::Client> client_;
};

void CompareRevision(TxnRequest* request, const std::string& key, int64_t revision) {
  Compare& compare = *request->add_compare();
  compare.set_target(Compare::MOD);
  compare.set_key(key);
  compare.set_mod_revision(revision);
}

void Put(TxnRequest* request, std::string key, std::string value) {
  auto& put = *request->add_success()->mutable_request_put();
  put.set_key(std::move(key));
  put.set_value(std::move(value));
}

}  // namespace

// Missing keys have the revision 0.
struct EtcdStateStore::Seen {
  mvccpb::KeyValue term, commit, schema;

  static void Ask(const EtcdStateStore& store,
                  google::protobuf::RepeatedPtrField<RequestOp>* operations) {
    for (const std::string* key : {&store.term_key_, &store.commit_key_, &store.schema_key_}) {
      operations->Add()->mutable_request_range()->set_key(*key);
    }
  }
  static Seen Of(const etcdserverpb::TxnResponse& answer) {
    Seen out;
    mvccpb::KeyValue* const fields[] = {&out.term, &out.commit, &out.schema};
    for (int i = 0; i < std::min(answer.responses_size(), 3); ++i) {
      const RangeResponse& range = answer.responses(i).response_range();
      if (range.kvs_size() > 0) *fields[i] = range.kvs(0);
    }
    return out;
  }
  absl::StatusOr<uint64_t> Term() const {
    return term.mod_revision() == 0 ? 0 : ParseTerm(term.value());
  }
  // UNIMPLEMENTED: a newer meshrun wrote it.
  absl::Status CheckSchema(std::string_view where) const {
    if (schema.mod_revision() == 0) return absl::OkStatus();
    const auto version = ParseInteger<int>(schema.value());
    if (!version) {
      return absl::DataLossError(
          fmt::format("the state below {} is damaged: its schema is '{}'", where, schema.value()));
    }
    if (*version <= kSchemaVersion) return absl::OkStatus();
    return absl::UnimplementedError(fmt::format(
        "the state below {} in etcd has schema {}, and this meshrun knows {} at most: use the "
        "newer meshrun, or another prefix",
        where, *version, kSchemaVersion));
  }
};

absl::StatusOr<std::unique_ptr<EtcdStateStore>> EtcdStateStore::Open(Options options) {
  options.client.prefix = options.prefix;
  MESHRUN_ASSIGN_OR_RETURN(auto client, etcd::Client::Make(options.client));
  etcd::Client* const own = client.get();
  std::unique_ptr<EtcdStateStore> store(new EtcdStateStore(
      std::move(options), std::make_unique<PatientKv>(std::move(client)), kLeast));
  store->client_ = own;
  MESHRUN_ASSIGN_OR_RETURN(const Seen seen, store->Look());
  MESHRUN_RETURN_IF_ERROR(seen.CheckSchema(store->options_.prefix));
  return store;
}

std::unique_ptr<EtcdStateStore> EtcdStateStore::Over(std::unique_ptr<etcd::Kv> model,
                                                     std::string prefix, Limits limits) {
  return std::unique_ptr<EtcdStateStore>(
      new EtcdStateStore({.prefix = std::move(prefix)}, std::move(model), limits));
}

EtcdStateStore::EtcdStateStore(Options options, std::unique_ptr<etcd::Kv> kv, Limits limits)
    : options_(std::move(options)),
      term_key_(KeyOf(TermRow(0).table(), TermRow(0).key())),
      commit_key_(etcd::CommitKey(options_.prefix)),
      schema_key_(etcd::SchemaKey(options_.prefix)),
      process_([] {
        RandomIdSource ids;
        return NewRequestId(ids);
      }()),
      kv_(std::move(kv)),
      limits_(limits) {}

std::string EtcdStateStore::KeyOf(int table, std::string_view key) const {
  return fmt::format("{}{:03}/{}", etcd::RowsKey(options_.prefix), table, key);
}

absl::StatusOr<v1::StateRow> EtcdStateStore::RowOf(mvccpb::KeyValue pair) const {
  const std::string rows = etcd::RowsKey(options_.prefix);
  const std::string_view rest = std::string_view(pair.key()).substr(rows.size());
  const size_t slash = rest.find('/');
  const auto table = ParseInteger<int>(rest.substr(0, slash));
  if (slash == std::string_view::npos || !table) {
    return absl::DataLossError(
        fmt::format("the state is damaged: nothing of meshrun's is called {} in etcd", pair.key()));
  }
  v1::StateRow row;
  row.set_table(static_cast<v1::StateTable>(*table));
  row.set_key(std::string(rest.substr(slash + 1)));
  row.set_value(std::move(*pair.mutable_value()));
  return row;
}

absl::StatusOr<EtcdStateStore::Seen> EtcdStateStore::Look() {
  TxnRequest request;
  Seen::Ask(*this, request.mutable_success());
  MESHRUN_ASSIGN_OR_RETURN(const auto answer, kv_->Txn(request));
  return Seen::Of(answer);
}

absl::StatusOr<int64_t> EtcdStateStore::TermBegunAt() {
  MESHRUN_ASSIGN_OR_RETURN(const Seen seen, Look());
  return seen.term.mod_revision();
}

std::string EtcdStateStore::Name(TxnRequest* request) {
  std::string name = fmt::format("{}-{}", process_, ++transactions_);
  Put(request, commit_key_, name);
  Seen::Ask(*this, request->mutable_failure());
  return name;
}

absl::StatusOr<uint64_t> EtcdStateStore::BeginTerm() {
  TxnRequest request;
  if (options_.held) {
    const std::optional<etcd::OwnKey> held = options_.held();
    if (!held) return absl::FailedPreconditionError("this coordinator does not lead any more");
    Compare& compare = *request.add_compare();
    compare.set_target(Compare::VALUE);
    compare.set_key(held->key);
    compare.set_value(held->value);
  }
  MESHRUN_ASSIGN_OR_RETURN(const Seen before, Look());
  MESHRUN_RETURN_IF_ERROR(before.CheckSchema(options_.prefix));
  MESHRUN_ASSIGN_OR_RETURN(const uint64_t last, before.Term());
  CompareRevision(&request, term_key_, before.term.mod_revision());
  CompareRevision(&request, schema_key_, before.schema.mod_revision());
  const std::string name = Name(&request);
  Put(&request, term_key_, TermRow(last + 1).value());
  const std::string schema = std::to_string(kSchemaVersion);
  if (before.schema.value() != schema) Put(&request, schema_key_, schema);
  last_.reset();
  MESHRUN_ASSIGN_OR_RETURN(const auto answer, kv_->Txn(request));
  const Seen now = Seen::Of(answer);
  if (answer.succeeded()) {
    last_ = answer.header().revision();
  } else if (now.commit.value() == name) {
    // By a try whose answer was lost.
    last_ = now.commit.mod_revision();
  } else {
    return absl::FailedPreconditionError(fmt::format(
        "term {} was not begun: another coordinator leads, or has begun one", last + 1));
  }
  if (last == 0 && before.commit.mod_revision() == 0) {
    log::Warning("nothing was stored below the prefix at etcd: a new cluster ID begins",
                 {{"prefix", options_.prefix}});
  }
  if (client_ != nullptr && upkeep_ == nullptr) {
    EtcdUpkeep::Options upkeep = options_.upkeep;
    upkeep.on_size = [this](uint64_t bytes) { bytes_ = bytes; };
    upkeep_ = std::make_unique<EtcdUpkeep>(*client_, upkeep);
  }
  if (upkeep_ != nullptr) upkeep_->OnCommit(*last_);
  return last + 1;
}

absl::Status EtcdStateStore::ForEachRow(const TakeRow& take) {
  const std::string rows = etcd::RowsKey(options_.prefix);
  // Pages begin small again where the rows may be much larger than those before.
  const std::string bounds[] = {rows, KeyOf(v1::STATE_TABLE_VALUES, ""),
                                KeyOf(v1::STATE_TABLE_STAGED, ""), etcd::RangeEnd(rows)};
  int64_t revision = 0;
  for (size_t i = 0; i + 1 < std::size(bounds); ++i) {
    MESHRUN_ASSIGN_OR_RETURN(const bool more, ReadRange(bounds[i], bounds[i + 1], &revision, take));
    if (!more) break;
  }
  return absl::OkStatus();
}

absl::Status EtcdStateStore::ForEachRowOf(v1::StateTable table, const TakeRow& take) {
  const std::string rows = KeyOf(table, "");
  int64_t revision = 0;
  return ReadRange(rows, etcd::RangeEnd(rows), &revision, take).status();
}

absl::StatusOr<bool> EtcdStateStore::ReadRange(std::string from, std::string to, int64_t* revision,
                                               const TakeRow& take) {
  RangeRequest request;
  request.set_key(std::move(from));
  request.set_range_end(std::move(to));
  request.set_limit(kFirstPage);
  while (true) {
    request.set_revision(*revision);
    MESHRUN_ASSIGN_OR_RETURN(RangeResponse page, ReadPage(&request));
    if (*revision == 0) *revision = page.header().revision();
    int64_t bytes = 0;
    for (mvccpb::KeyValue& pair : *page.mutable_kvs()) {
      bytes += static_cast<int64_t>(pair.key().size() + pair.value().size());
      // The first key after it.
      request.set_key(pair.key() + '\0');
      MESHRUN_ASSIGN_OR_RETURN(v1::StateRow row, RowOf(std::move(pair)));
      if (!take(std::move(row))) return false;
    }
    if (!page.more()) return true;
    const int64_t mean = std::max<int64_t>(1, bytes / std::max(1, page.kvs_size()));
    request.set_limit(std::clamp<int64_t>(kPageBytes / mean, 1,
                                          std::min<int64_t>(4 * request.limit(), kLargestPage)));
  }
}

absl::StatusOr<RangeResponse> EtcdStateStore::ReadPage(RangeRequest* request) {
  // Whichever member has the revision of the first page gives the others.
  request->set_serializable(request->revision() != 0);
  auto page = kv_->Range(*request);
  if (request->serializable() && absl::IsOutOfRange(page.status())) {
    // This one has not come so far yet.
    request->set_serializable(false);
    page = kv_->Range(*request);
  }
  if (absl::IsResourceExhausted(page.status()) && request->limit() > kFirstPage) {
    // Larger than a message.
    request->set_limit(kFirstPage);
    return ReadPage(request);
  }
  return page;
}

absl::Status EtcdStateStore::Commit(uint64_t term, const std::vector<v1::StateRow>& rows) {
  if (rows.empty()) return absl::OkStatus();
  MESHRUN_RETURN_IF_ERROR(CheckLimits(rows, limits()));
  if (!last_) {
    MESHRUN_ASSIGN_OR_RETURN(const Seen seen, Look());
    last_ = seen.commit.mod_revision();
  }
  TxnRequest request;
  Compare& own_term = *request.add_compare();
  own_term.set_key(term_key_);
  if (term == 0) {
    own_term.set_target(Compare::CREATE);
    own_term.set_create_revision(0);
  } else {
    own_term.set_target(Compare::VALUE);
    own_term.set_value(TermRow(term).value());
  }
  CompareRevision(&request, commit_key_, *last_);
  const std::string name = Name(&request);
  // From the last one on, because no key may be changed twice.
  std::set<std::string> keys;
  for (auto row = rows.rbegin(); row != rows.rend(); ++row) {
    std::string key = KeyOf(row->table(), row->key());
    if (!keys.insert(key).second) continue;
    if (row->erased()) {
      request.add_success()->mutable_request_delete_range()->set_key(std::move(key));
    } else {
      Put(&request, std::move(key), row->value());
    }
  }
  last_.reset();
  MESHRUN_ASSIGN_OR_RETURN(const auto answer, kv_->Txn(request));
  if (answer.succeeded()) {
    last_ = answer.header().revision();
  } else {
    const Seen now = Seen::Of(answer);
    if (now.commit.value() != name) {
      MESHRUN_ASSIGN_OR_RETURN(const uint64_t stored, now.Term());
      MESHRUN_RETURN_IF_ERROR(CheckTerm(stored, term));
      return absl::AbortedError(
          "an earlier transaction, whose answer was lost, was done meanwhile: this one was not");
    }
    // A try of this call whose answer was lost.
    last_ = now.commit.mod_revision();
  }
  if (upkeep_ != nullptr) upkeep_->OnCommit(*last_);
  return absl::OkStatus();
}

}  // namespace meshrun::coordinator
