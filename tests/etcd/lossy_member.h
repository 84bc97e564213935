// A member of etcd that hands transactions, reads and leases on to a real one. It loses answers of
// transactions, or hands them on late, when it is told to.
#pragma once

#include <grpcpp/server.h>

#include <deque>
#include <memory>
#include <string>

#include "core/mutex.h"
#include "tests/etcd/members.h"
#include "third_party/etcd/rpc.grpc.pb.h"

namespace meshrun::testing {

class LossyMember : public etcdserverpb::KV::Service {
 public:
  explicit LossyMember(const EtcdMembers& members);

  enum class Fate {
    kPass,
    // Done, and the client hears UNAVAILABLE.
    kLoseAnswer,
    // Not done, and the client hears UNAVAILABLE.
    kLoseRequest,
    // The client hears UNAVAILABLE; it is done with DeliverLate.
    kLate,
    // The late one is done, and then this one.
    kAfterLate,
    // Not done, and the client hears that the database is full.
    kFull,
  };
  // What becomes of the next transactions, those that only read too. Later ones pass.
  void Next(std::deque<Fate> fates);
  // Whether the late transaction's comparisons held.
  bool DeliverLate();

  // Plaintext, with this member alone.
  coordinator::etcd::Client::Options client() const;

 private:
  grpc::Status Range(grpc::ServerContext* context, const etcdserverpb::RangeRequest* request,
                     etcdserverpb::RangeResponse* response) override;
  grpc::Status Txn(grpc::ServerContext* context, const etcdserverpb::TxnRequest* request,
                   etcdserverpb::TxnResponse* response) override;
  grpc::Status Forward(const etcdserverpb::TxnRequest& request,
                       etcdserverpb::TxnResponse* response);

  // Nothing of them is lost.
  class Leases : public etcdserverpb::Lease::Service {
   public:
    explicit Leases(coordinator::etcd::Client& real) : real_(real) {}
    grpc::Status LeaseGrant(grpc::ServerContext* context,
                            const etcdserverpb::LeaseGrantRequest* request,
                            etcdserverpb::LeaseGrantResponse* response) override;
    grpc::Status LeaseKeepAlive(
        grpc::ServerContext* context,
        grpc::ServerReaderWriter<etcdserverpb::LeaseKeepAliveResponse,
                                 etcdserverpb::LeaseKeepAliveRequest>* stream) override;
    grpc::Status LeaseRevoke(grpc::ServerContext* context,
                             const etcdserverpb::LeaseRevokeRequest* request,
                             etcdserverpb::LeaseRevokeResponse* response) override;

   private:
    coordinator::etcd::Client& real_;
  };

  std::unique_ptr<coordinator::etcd::Client> real_;
  std::unique_ptr<Leases> leases_;
  Mutex mu_;
  std::deque<Fate> fates_ MESHRUN_GUARDED_BY(mu_);
  etcdserverpb::TxnRequest late_ MESHRUN_GUARDED_BY(mu_);
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace meshrun::testing
