// What the state needs of etcd. The client has it; tests have a model of it.
#pragma once

#include "absl/status/statusor.h"
#include "third_party/etcd/rpc.pb.h"

namespace meshrun::coordinator::etcd {

class Kv {
 public:
  virtual ~Kv() = default;
  // Errors: as said in client.h. After one of Txn it is not known whether it was done, or will be.
  virtual absl::StatusOr<etcdserverpb::RangeResponse> Range(
      const etcdserverpb::RangeRequest& request) = 0;
  virtual absl::StatusOr<etcdserverpb::TxnResponse> Txn(
      const etcdserverpb::TxnRequest& request) = 0;
};

}  // namespace meshrun::coordinator::etcd
