// A model of etcd, as a coordinator sees it: transactions whose requests or answers are lost, that
// are repeated, or that are done late, when nobody waits for them any more.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/etcd/kv.h"
#include "tests/coordinator/simulation/random.h"

namespace meshrun::coordinator::simulation {

class EtcdModel {
 public:
  explicit EtcdModel(uint64_t seed) : random_(seed) {}

  // A coordinator's client. So many of 1,000 of its calls have a fault.
  std::unique_ptr<etcd::Kv> Connect(const uint64_t& fault_chance);

  // Transactions that were lost, done without an answer, done and then repeated, done late.
  uint64_t faults() const { return faults_; }
  // Those done late that were refused, because others had come before.
  uint64_t late_refusals() const { return late_refusals_; }

 private:
  class Connection;
  struct Late {
    etcdserverpb::TxnRequest request;
    // Done before the transaction that is so many later.
    uint64_t in = 0;
  };

  absl::StatusOr<etcdserverpb::TxnResponse> Send(const etcdserverpb::TxnRequest& request,
                                                 uint64_t fault_chance);
  etcdserverpb::TxnResponse Do(const etcdserverpb::TxnRequest& request);
  etcdserverpb::RangeResponse Range(const etcdserverpb::RangeRequest& request) const;
  bool Holds(const etcdserverpb::Compare& compare) const;
  void DoLateOnes();
  etcdserverpb::ResponseHeader Header() const;

  Random random_;
  int64_t revision_ = 1;
  std::map<std::string, mvccpb::KeyValue> keys_;
  std::vector<Late> late_;
  uint64_t faults_ = 0;
  uint64_t late_refusals_ = 0;
};

}  // namespace meshrun::coordinator::simulation
