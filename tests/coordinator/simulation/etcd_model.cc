#include "tests/coordinator/simulation/etcd_model.h"

#include <utility>

namespace meshrun::coordinator::simulation {
namespace {

using etcdserverpb::Compare;
using etcdserverpb::RangeRequest;
using etcdserverpb::RangeResponse;
using etcdserverpb::RequestOp;
using etcdserverpb::TxnRequest;
using etcdserverpb::TxnResponse;

// A late transaction is done before one of the next so many.
constexpr uint64_t kLatest = 4;

// etcd's limit.
constexpr int kMostOperations = 128;

bool Writes(const TxnRequest& request) {
  for (const RequestOp& operation : request.success()) {
    if (!operation.has_request_range()) return true;
  }
  return false;
}

absl::Status NoAnswer() { return absl::UnavailableError("etcd has not answered"); }

}  // namespace

class EtcdModel::Connection : public etcd::Kv {
 public:
  Connection(EtcdModel& model, const uint64_t& fault_chance)
      : model_(model), fault_chance_(fault_chance) {}

  absl::StatusOr<RangeResponse> Range(const RangeRequest& request) override {
    if (model_.random_.Below(1000) < fault_chance_) return NoAnswer();
    return model_.Range(request);
  }
  absl::StatusOr<TxnResponse> Txn(const TxnRequest& request) override {
    return model_.Send(request, fault_chance_);
  }

 private:
  EtcdModel& model_;
  const uint64_t& fault_chance_;
};

std::unique_ptr<etcd::Kv> EtcdModel::Connect(const uint64_t& fault_chance) {
  return std::make_unique<Connection>(*this, fault_chance);
}

etcdserverpb::ResponseHeader EtcdModel::Header() const {
  etcdserverpb::ResponseHeader header;
  header.set_revision(revision_);
  return header;
}

absl::StatusOr<TxnResponse> EtcdModel::Send(const TxnRequest& request, uint64_t fault_chance) {
  DoLateOnes();
  if (request.success_size() > kMostOperations) {
    return absl::InvalidArgumentError("etcdserver: too many operations in txn request");
  }
  if (fault_chance == 0 || random_.Below(1000) >= fault_chance) return Do(request);
  ++faults_;
  if (!Writes(request)) return NoAnswer();
  switch (random_.Below(4)) {
    case 0:
      return NoAnswer();
    case 1:
      Do(request);
      return NoAnswer();
    case 2:
      // The client repeats it at another member.
      Do(request);
      return Do(request);
    default:
      late_.push_back({request, 1 + random_.Below(kLatest)});
      return NoAnswer();
  }
}

void EtcdModel::DoLateOnes() {
  for (auto late = late_.begin(); late != late_.end();) {
    if (--late->in > 0) {
      ++late;
      continue;
    }
    late_refusals_ += !Do(late->request).succeeded();
    late = late_.erase(late);
  }
}

bool EtcdModel::Holds(const Compare& compare) const {
  const auto found = keys_.find(compare.key());
  const mvccpb::KeyValue none;
  const mvccpb::KeyValue& pair = found == keys_.end() ? none : found->second;
  switch (compare.target()) {
    case Compare::CREATE:
      return pair.create_revision() == compare.create_revision();
    case Compare::MOD:
      return pair.mod_revision() == compare.mod_revision();
    case Compare::VALUE:
      return found != keys_.end() && pair.value() == compare.value();
    default:
      return false;
  }
}

TxnResponse EtcdModel::Do(const TxnRequest& request) {
  TxnResponse response;
  response.set_succeeded(true);
  for (const Compare& compare : request.compare()) {
    if (!Holds(compare)) response.set_succeeded(false);
  }
  const auto& operations = response.succeeded() ? request.success() : request.failure();
  if (response.succeeded() && Writes(request)) ++revision_;
  for (const RequestOp& operation : operations) {
    etcdserverpb::ResponseOp& done = *response.add_responses();
    if (operation.has_request_range()) {
      *done.mutable_response_range() = Range(operation.request_range());
    } else if (operation.has_request_put()) {
      mvccpb::KeyValue& pair = keys_[operation.request_put().key()];
      if (pair.create_revision() == 0) pair.set_create_revision(revision_);
      pair.set_key(operation.request_put().key());
      pair.set_value(operation.request_put().value());
      pair.set_mod_revision(revision_);
      done.mutable_response_put();
    } else {
      done.mutable_response_delete_range()->set_deleted(
          static_cast<int64_t>(keys_.erase(operation.request_delete_range().key())));
    }
  }
  *response.mutable_header() = Header();
  return response;
}

// Gives the newest revision: readers have all their pages before anything else happens here.
RangeResponse EtcdModel::Range(const RangeRequest& request) const {
  RangeResponse response;
  *response.mutable_header() = Header();
  if (request.range_end().empty()) {
    const auto found = keys_.find(request.key());
    if (found != keys_.end()) *response.add_kvs() = found->second;
    return response;
  }
  for (auto pair = keys_.lower_bound(request.key());
       pair != keys_.end() && pair->first < request.range_end(); ++pair) {
    if (request.limit() > 0 && response.kvs_size() == request.limit()) {
      response.set_more(true);
      break;
    }
    *response.add_kvs() = pair->second;
  }
  return response;
}

}  // namespace meshrun::coordinator::simulation
