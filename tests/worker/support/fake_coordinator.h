// A coordinator that does what a test tells it: one session, the logs that come in, and a store
// that answers with what it was asked.
#pragma once

#include <grpcpp/server.h>

#include <chrono>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/mutex.h"
#include "meshrun/v1/session.grpc.pb.h"
#include "meshrun/v1/store_service.grpc.pb.h"

namespace meshrun::testing {

class FakeCoordinator : public v1::SessionService::Service {
 public:
  struct Options {
    uint64_t term = 1;
    std::chrono::milliseconds lease{5000};
    std::chrono::milliseconds heartbeat{100};
    // unix:PATH, in a directory that is there.
    std::string address;
    std::string cluster_id;
    // Called between each Hello and its Welcome.
    std::function<void()> before_welcome;
    // What a Hello gets: with OK a Welcome, with an error the end of its stream; absent: nothing.
    // Null: OK.
    std::function<std::optional<absl::Status>()> answer;
  };
  explicit FakeCoordinator(Options options);
  ~FakeCoordinator() override;

  // Ends the session and refuses new ones.
  void Shutdown();
  const std::string& address() const { return options_.address; }

  // The next message for which `wanted` holds, taken out of the order; absent after kPatience.
  using Message = v1::OpenSessionRequest;
  std::optional<Message> Await(const std::function<bool(const Message&)>& wanted);
  std::optional<Message> AwaitKind(Message::MessageCase kind);
  // Whether the last session that got a Welcome goes on.
  bool has_session() const;
  // How many messages have come that nobody has awaited.
  size_t received() const;
  // To the current session, with the given job's fence.
  void Send(v1::OpenSessionResponse message, const std::string& job_id, uint64_t generation);

  struct Upload {
    uint64_t first_offset = 0;
    std::string data;
    std::string error;
    uint64_t dropped = 0;
    std::vector<v1::Picture> pictures;
    bool gone = false;
    size_t largest = 0;  // of its messages
    bool ended = false;
  };
  // As it is once `enough` holds of it.
  Upload AwaitUpload(const std::string& stream_id,
                     const std::function<bool(const Upload&)>& enough);
  // From now on each heartbeat brings an answer, to the one in the middle of those since: answers
  // go on coming, of later and later heartbeats, and are ever later themselves.
  void FallBehind();
  // The session that is open now gets no answers any more.
  void FallSilent();
  // What has come and nobody has awaited.
  void Forget();

  // Stacks that were uploaded, once there are so many; fewer after kPatience.
  std::vector<v1::UploadStackRequest> AwaitStacks(size_t count);

  // Calls of the store that have come, and the fence of the last.
  int store_calls() const;
  v1::Fence last_store_fence() const;

 private:
  class Store;
  grpc::Status OpenSession(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::OpenSessionResponse, Message>* stream) override;
  grpc::Status UploadLog(grpc::ServerContext* context,
                         grpc::ServerReader<v1::UploadLogRequest>* reader,
                         v1::UploadLogResponse* response) override;

  grpc::Status UploadStack(grpc::ServerContext* context, const v1::UploadStackRequest* request,
                           v1::UploadStackResponse* response) override;

  const Options options_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<grpc::Server> server_;
  mutable Mutex mu_;
  CondVar changed_;
  std::list<Message> received_ MESHRUN_GUARDED_BY(mu_);
  grpc::ServerReaderWriter<v1::OpenSessionResponse, Message>* stream_ MESHRUN_GUARDED_BY(mu_) =
      nullptr;
  uint64_t incarnation_ MESHRUN_GUARDED_BY(mu_) = 0;
  std::map<std::string, Upload> uploads_ MESHRUN_GUARDED_BY(mu_);
  std::vector<v1::UploadStackRequest> stacks_ MESHRUN_GUARDED_BY(mu_);
  bool falls_behind_ MESHRUN_GUARDED_BY(mu_) = false;
  const void* silent_ MESHRUN_GUARDED_BY(mu_) = nullptr;
  // The last heartbeat that was answered at once.
  uint64_t in_time_ MESHRUN_GUARDED_BY(mu_) = 0;
};

}  // namespace meshrun::testing
