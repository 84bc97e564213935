#include "tests/etcd/lossy_member.h"

#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include <utility>

#include "core/rpc/channel.h"
#include "core/rpc/status_conversion.h"

namespace meshrun::testing {
namespace {

template <typename Response>
grpc::Status Answer(absl::StatusOr<Response> answer, Response* response) {
  if (!answer.ok()) return rpc::ToGrpc(answer.status(), v1::ERROR_ORIGIN_UNSPECIFIED);
  *response = *std::move(answer);
  return grpc::Status::OK;
}

}  // namespace

LossyMember::LossyMember(const EtcdMembers& members) {
  auto real = coordinator::etcd::Client::Make(members.client());
  EXPECT_TRUE(real.ok()) << real.status();
  if (real.ok()) real_ = *std::move(real);
  leases_ = std::make_unique<Leases>(*real_);
  grpc::ServerBuilder builder;
  rpc::ConfigureServer(builder);
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
  builder.RegisterService(this);
  builder.RegisterService(leases_.get());
  server_ = builder.BuildAndStart();
}

void LossyMember::Next(std::deque<Fate> fates) {
  MutexLock lock(mu_);
  fates_ = std::move(fates);
}

bool LossyMember::DeliverLate() {
  etcdserverpb::TxnRequest late;
  {
    MutexLock lock(mu_);
    late = late_;
  }
  etcdserverpb::TxnResponse response;
  const grpc::Status status = Forward(late, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response.succeeded();
}

coordinator::etcd::Client::Options LossyMember::client() const {
  coordinator::etcd::Client::Options options;
  options.endpoints = {"127.0.0.1:" + std::to_string(port_)};
  options.insecure_loopback = true;
  options.timeout = std::chrono::milliseconds(500);
  return options;
}

grpc::Status LossyMember::Range(grpc::ServerContext*, const etcdserverpb::RangeRequest* request,
                                etcdserverpb::RangeResponse* response) {
  return Answer(real_->Range(*request), response);
}

grpc::Status LossyMember::Forward(const etcdserverpb::TxnRequest& request,
                                  etcdserverpb::TxnResponse* response) {
  return Answer(real_->Txn(request), response);
}

grpc::Status LossyMember::Txn(grpc::ServerContext*, const etcdserverpb::TxnRequest* request,
                              etcdserverpb::TxnResponse* response) {
  Fate fate = Fate::kPass;
  {
    MutexLock lock(mu_);
    if (!fates_.empty()) {
      fate = fates_.front();
      fates_.pop_front();
    }
    if (fate == Fate::kLate) late_ = *request;
  }
  if (fate == Fate::kFull) {
    return {grpc::StatusCode::RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded"};
  }
  if (fate == Fate::kAfterLate) DeliverLate();
  if (fate != Fate::kLate && fate != Fate::kLoseRequest) {
    const grpc::Status status = Forward(*request, response);
    if (fate != Fate::kLoseAnswer) return status;
  }
  return {grpc::StatusCode::UNAVAILABLE, "the connection broke"};
}

grpc::Status LossyMember::Leases::LeaseGrant(grpc::ServerContext*,
                                             const etcdserverpb::LeaseGrantRequest* request,
                                             etcdserverpb::LeaseGrantResponse* response) {
  return Answer(real_.Grant(std::chrono::seconds(request->ttl())), response);
}

grpc::Status LossyMember::Leases::LeaseKeepAlive(
    grpc::ServerContext*, grpc::ServerReaderWriter<etcdserverpb::LeaseKeepAliveResponse,
                                                   etcdserverpb::LeaseKeepAliveRequest>* stream) {
  etcdserverpb::LeaseKeepAliveRequest request;
  while (stream->Read(&request)) {
    const auto answer = real_.KeepAlive(request.id());
    etcdserverpb::LeaseKeepAliveResponse response;
    // One that has ended has no time to live.
    response.set_id(request.id());
    if (answer.ok()) {
      response = *answer;
    } else if (!absl::IsNotFound(answer.status())) {
      return rpc::ToGrpc(answer.status(), v1::ERROR_ORIGIN_UNSPECIFIED);
    }
    stream->Write(response);
  }
  return grpc::Status::OK;
}

grpc::Status LossyMember::Leases::LeaseRevoke(grpc::ServerContext*,
                                              const etcdserverpb::LeaseRevokeRequest* request,
                                              etcdserverpb::LeaseRevokeResponse*) {
  return rpc::ToGrpc(real_.Revoke(request->id()), v1::ERROR_ORIGIN_UNSPECIFIED);
}

}  // namespace meshrun::testing
