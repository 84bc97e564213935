#include "coordinator/leadership/etcd_election.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "coordinator/etcd/keys.h"
#include "core/ids.h"
#include "core/log.h"
#include "core/status.h"

namespace meshrun::coordinator {
namespace {

using std::chrono::steady_clock;

std::optional<Leadership::Candidate> Parsed(const std::string& value) {
  const auto read = nlohmann::json::parse(value, nullptr, /*allow_exceptions=*/false);
  if (!read.is_object()) return std::nullopt;
  const auto name = read.find("name"), address = read.find("address");
  if (name == read.end() || !name->is_string() || address == read.end() || !address->is_string()) {
    return std::nullopt;
  }
  return Leadership::Candidate{.name = name->get<std::string>(),
                               .address = address->get<std::string>()};
}

// The request does something only if the key has this value.
void CompareValue(etcdserverpb::TxnRequest* request, const std::string& key,
                  const std::string& value) {
  etcdserverpb::Compare& compare = *request->add_compare();
  compare.set_target(etcdserverpb::Compare::VALUE);
  compare.set_key(key);
  compare.set_value(value);
}

// ... if the key is not there.
void CompareMissing(etcdserverpb::TxnRequest* request, const std::string& key) {
  etcdserverpb::Compare& compare = *request->add_compare();
  compare.set_target(etcdserverpb::Compare::CREATE);
  compare.set_key(key);
  compare.set_create_revision(0);
}

// ... if the key ends with this lease.
void CompareLease(etcdserverpb::TxnRequest* request, const std::string& key, int64_t lease) {
  etcdserverpb::Compare& compare = *request->add_compare();
  compare.set_target(etcdserverpb::Compare::LEASE);
  compare.set_key(key);
  compare.set_lease(lease);
}

}  // namespace

EtcdElection::EtcdElection(etcd::Client& client, Names names, std::chrono::seconds ttl)
    : client_(client),
      names_(std::move(names)),
      ttl_(ttl),
      keys_(etcd::LeadershipKey(names_.prefix)),
      own_key_(keys_ + "candidates/" + names_.name),
      leader_key_(keys_ + "leader"),
      renewal_key_(keys_ + "renewal"),
      process_([] {
        RandomIdSource ids;
        return NewRequestId(ids);
      }()) {}

std::string EtcdElection::Value(const std::string& id) const {
  nlohmann::json value = {{"name", names_.name}, {"address", names_.address}};
  if (!id.empty()) value["id"] = id;
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

absl::Status EtcdElection::KeepLease(std::chrono::milliseconds interval) {
  const TimePoint now = steady_clock::now();
  if (lease_ == 0) return BeginLease();
  if (now >= lease_renewed_ + interval) {
    const auto answer = client_.KeepAlive(lease_);
    if (absl::IsNotFound(answer.status())) return BeginLease();
    MESHRUN_RETURN_IF_ERROR(answer.status());
    lease_renewed_ = now;
  }
  return own_is_there_ ? absl::OkStatus() : MakeOwnKey();
}

absl::StatusOr<etcdserverpb::TxnResponse> EtcdElection::Write(
    const etcdserverpb::TxnRequest& request) {
  auto answer = client_.Txn(request);
  was_full_ |= absl::IsResourceExhausted(answer.status());
  return answer;
}

absl::Status EtcdElection::BeginLease() {
  lease_ = 0;
  own_is_there_ = false;
  const TimePoint now = steady_clock::now();
  auto answer = client_.Grant(ttl_);
  was_full_ |= absl::IsResourceExhausted(answer.status());
  MESHRUN_ASSIGN_OR_RETURN(const auto granted, std::move(answer));
  lease_ = granted.id();
  lease_renewed_ = now;
  if (granted.ttl() > ttl_.count()) {
    log::Warning("etcd gives longer leases only: standbys take over later",
                 {{"seconds", granted.ttl()}});
  }
  return MakeOwnKey();
}

absl::Status EtcdElection::MakeOwnKey() {
  etcdserverpb::TxnRequest request;
  CompareMissing(&request, own_key_);
  auto& put = *request.add_success()->mutable_request_put();
  put.set_key(own_key_);
  put.set_value(Value(""));
  put.set_lease(lease_);
  request.add_failure()->mutable_request_range()->set_key(own_key_);
  MESHRUN_ASSIGN_OR_RETURN(const auto answer, Write(request));
  const auto& range = answer.responses(0).response_range();
  if (answer.succeeded() || range.kvs_size() == 0 || range.kvs(0).lease() == lease_) {
    name_taken_.reset();
    own_is_there_ = answer.succeeded();
    return absl::OkStatus();
  }
  const TimePoint now = steady_clock::now();
  if (!name_taken_) name_taken_ = now;
  // Our own process of before has a lease too, which ends by then.
  if (now < *name_taken_ + 2 * ttl_) return absl::OkStatus();
  const auto other = Parsed(range.kvs(0).value());
  return absl::AlreadyExistsError(
      fmt::format("another coordinator, at {}, is called {} too: give each its own --name",
                  other ? other->address : "an unknown address", names_.name));
}

etcdserverpb::RangeRequest EtcdElection::AllKeys() const {
  etcdserverpb::RangeRequest request;
  request.set_key(keys_);
  request.set_range_end(etcd::RangeEnd(keys_));
  return request;
}

absl::Status EtcdElection::Look() {
  MESHRUN_ASSIGN_OR_RETURN(const auto answer, client_.Range(AllKeys()));
  See(answer);
  return absl::OkStatus();
}

void EtcdElection::See(const etcdserverpb::RangeResponse& answer) {
  const int64_t renewal_before = std::exchange(renewal_, 0);
  const bool had_leader = HasLeader();
  int64_t leader_made = 0;
  leader_value_.clear();
  renewal_value_.clear();
  own_is_there_ = false;
  leader_.reset();
  candidates_.clear();
  for (const mvccpb::KeyValue& pair : answer.kvs()) {
    auto candidate = Parsed(pair.value());
    if (pair.key() == renewal_key_) {
      renewal_ = pair.mod_revision();
      renewal_value_ = pair.value();
    } else if (pair.key() == leader_key_) {
      leader_value_ = pair.value();
      leader_made = pair.create_revision();
      leader_ = std::move(candidate);
      // Nobody else uses our lease. An earlier Take, whose answer was lost, may have been late.
      if (lease_ != 0 && pair.lease() == lease_) value_ = pair.value();
    } else if (candidate) {
      const bool is_own = pair.key() == own_key_ && pair.lease() == lease_;
      own_is_there_ |= is_own;
      if (is_own && seen_.joined == 0) seen_.joined = pair.create_revision();
      candidates_.push_back(*std::move(candidate));
    }
  }
  const TimePoint now = steady_clock::now();
  // It may have been there until just now.
  if (had_leader || HasLeader()) leader_seen_ = now;
  if (renewal_ != renewal_before) {
    renewal_seen_ = now;
    was_full_ = false;
  }
  for (Leadership::Candidate& candidate : candidates_) {
    candidate.leads = leader_ && leader_->name == candidate.name;
  }
  if (leader_) leader_->leads = true;
  const bool another_renews = HasLeader() && !IsOurs() && renewal_value_ == leader_value_;
  // Only the first one counts: a leader that makes its key again was not elected again.
  if (another_renews && seen_.joined != 0 && renewal_ > seen_.joined && seen_.led == 0) {
    seen_.led = leader_made;
  }
}

bool EtcdElection::IsFree() const {
  if (HasLeader()) return false;
  if (renewal_ == 0) return true;
  return steady_clock::now() >= (was_full_ ? leader_seen_ : renewal_seen_) + ttl_;
}

absl::Status EtcdElection::FindWhetherFull(std::chrono::milliseconds silence) {
  if (renewal_ == 0 || was_full_ || steady_clock::now() < renewal_seen_ + silence) {
    return absl::OkStatus();
  }
  etcdserverpb::TxnRequest request;
  CompareLease(&request, own_key_, lease_);
  auto& put = *request.add_success()->mutable_request_put();
  put.set_key(own_key_);
  put.set_value(Value(""));
  put.set_lease(lease_);
  const absl::Status status = Write(request).status();
  return absl::IsResourceExhausted(status) ? absl::OkStatus() : status;
}

void EtcdElection::PutLeader(etcdserverpb::TxnRequest* request) const {
  auto& leader = *request->add_success()->mutable_request_put();
  leader.set_key(leader_key_);
  leader.set_value(value_);
  leader.set_lease(lease_);
  auto& renewal = *request->add_success()->mutable_request_put();
  renewal.set_key(renewal_key_);
  renewal.set_value(value_);
}

absl::StatusOr<bool> EtcdElection::Take() {
  value_ = Value(fmt::format("{}-{}", process_, ++takes_));
  etcdserverpb::TxnRequest request;
  CompareMissing(&request, leader_key_);
  etcdserverpb::Compare& unchanged = *request.add_compare();
  unchanged.set_target(etcdserverpb::Compare::MOD);
  unchanged.set_key(renewal_key_);
  unchanged.set_mod_revision(renewal_);
  // Not by a name that is another's.
  CompareLease(&request, own_key_, lease_);
  PutLeader(&request);
  MESHRUN_ASSIGN_OR_RETURN(const auto answer, Write(request));
  return answer.succeeded();
}

absl::StatusOr<bool> EtcdElection::Renew() {
  etcdserverpb::TxnRequest request;
  CompareValue(&request, leader_key_, value_);
  *request.add_success()->mutable_request_range() = AllKeys();
  *request.add_failure()->mutable_request_range() = AllKeys();
  auto& renewal = *request.add_success()->mutable_request_put();
  renewal.set_key(renewal_key_);
  renewal.set_value(value_);
  const auto answer = client_.Txn(request);
  if (absl::IsResourceExhausted(answer.status())) {
    MESHRUN_RETURN_IF_ERROR(Look());
    return false;
  }
  MESHRUN_RETURN_IF_ERROR(answer.status());
  See(answer->responses(0).response_range());
  return answer->succeeded();
}

absl::StatusOr<bool> EtcdElection::Remake() {
  etcdserverpb::TxnRequest request;
  CompareMissing(&request, leader_key_);
  CompareValue(&request, renewal_key_, value_);
  PutLeader(&request);
  *request.add_success()->mutable_request_range() = AllKeys();
  *request.add_failure()->mutable_request_range() = AllKeys();
  MESHRUN_ASSIGN_OR_RETURN(const auto answer, client_.Txn(request));
  See(answer.responses().rbegin()->response_range());
  return IsOurs();
}

absl::Status EtcdElection::GiveBack() {
  own_is_there_ = false;
  absl::Status status;
  if (const std::string value = std::exchange(value_, ""); !value.empty()) {
    etcdserverpb::TxnRequest request;
    CompareValue(&request, renewal_key_, value);
    for (const std::string* key : {&leader_key_, &renewal_key_}) {
      request.add_success()->mutable_request_delete_range()->set_key(*key);
    }
    status = client_.Txn(request).status();
  }
  if (const int64_t lease = std::exchange(lease_, 0); lease != 0) {
    status.Update(client_.Revoke(lease));
  }
  return status;
}

}  // namespace meshrun::coordinator
