// A FakeWorker on a real session stream.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "core/mutex.h"
#include "meshrun/v1/session.grpc.pb.h"
#include "tests/coordinator/support/fake_worker.h"

namespace meshrun::coordinator::testing {

// Thread-safe. One session at a time.
class GrpcWorker {
 public:
  // Called once the answers to the message are on their way, on a thread of gRPC.
  using Hook = std::function<void(GrpcWorker&, const v1::OpenSessionResponse&)>;

  GrpcWorker(std::shared_ptr<grpc::Channel> channel, FakeWorker::Options options,
             Hook hook = nullptr);
  ~GrpcWorker();

  // Opens a session and waits for Welcome. False when it ended before, or at the deadline.
  bool Connect(std::chrono::milliseconds timeout = std::chrono::seconds(20));
  // Breaks the session off, as a lost connection would.
  void Break();
  // How the session ended; waits for it.
  grpc::Status AwaitEnd(std::chrono::milliseconds timeout = std::chrono::seconds(20));

  // Says what the fake says, for example [](FakeWorker& w) { return w.Exit(...); }.
  void Say(const std::function<FakeWorker::Requests(FakeWorker&)>& words);
  // Bytes of messages received on this session, without HTTP/2's share.
  uint64_t bytes_received() const { return bytes_received_.load(); }

 private:
  class Stream;
  void OnMessage(const v1::OpenSessionResponse& message);
  void Forget();
  void OnEnd(const grpc::Status& status);

  const std::unique_ptr<v1::SessionService::Stub> stub_;
  const Hook hook_;
  std::atomic<uint64_t> bytes_received_{0};

  Mutex mu_;
  CondVar changed_;
  FakeWorker fake_ MESHRUN_GUARDED_BY(mu_);
  // Null without a session.
  std::shared_ptr<Stream> stream_ MESHRUN_GUARDED_BY(mu_);
  bool welcome_ MESHRUN_GUARDED_BY(mu_) = false;
  bool ended_ MESHRUN_GUARDED_BY(mu_) = true;
  grpc::Status status_ MESHRUN_GUARDED_BY(mu_);
};

}  // namespace meshrun::coordinator::testing
