#include "tests/worker/support/fake_coordinator.h"

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include "core/proto_time.h"
#include "core/rpc/channel.h"
#include "core/rpc/status_conversion.h"
#include "tests/worker/support/processes.h"

namespace meshrun::testing {

class FakeCoordinator::Store : public v1::StoreService::Service {
 public:
  grpc::Status GetValues(grpc::ServerContext*, const v1::GetValuesRequest* request,
                         v1::GetValuesResponse* response) override {
    Count(request->fence());
    for (const std::string& key : request->keys()) response->add_values("value of " + key);
    return grpc::Status::OK;
  }
  grpc::Status GetWorld(grpc::ServerContext*, const v1::GetWorldRequest* request,
                        v1::GetWorldResponse* response) override {
    Count(request->fence());
    response->mutable_world()->add_addresses()->set_node_id("n");
    return grpc::Status::OK;
  }
  grpc::Status ReportFinished(grpc::ServerContext*, const v1::ReportFinishedRequest* request,
                              v1::ReportFinishedResponse*) override {
    Count(request->fence());
    return grpc::Status::OK;
  }
  void Count(const v1::Fence& fence) {
    MutexLock lock(mu_);
    ++calls_;
    fence_ = fence;
  }

  mutable Mutex mu_;
  int calls_ MESHRUN_GUARDED_BY(mu_) = 0;
  v1::Fence fence_ MESHRUN_GUARDED_BY(mu_);
};

FakeCoordinator::FakeCoordinator(Options options)
    : options_(std::move(options)), store_(std::make_unique<Store>()) {
  grpc::ServerBuilder builder;
  rpc::ConfigureServer(builder);
  builder.AddListeningPort(options_.address, grpc::InsecureServerCredentials());
  builder.RegisterService(this);
  builder.RegisterService(store_.get());
  server_ = builder.BuildAndStart();
}

FakeCoordinator::~FakeCoordinator() { Shutdown(); }

void FakeCoordinator::Shutdown() {
  if (server_ == nullptr) return;
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
  server_.reset();
}

grpc::Status FakeCoordinator::OpenSession(
    grpc::ServerContext*, grpc::ServerReaderWriter<v1::OpenSessionResponse, Message>* stream) {
  Message message;
  while (stream->Read(&message)) {
    if (message.has_hello() && options_.before_welcome) options_.before_welcome();
    std::optional<absl::Status> verdict = absl::OkStatus();
    if (message.has_hello() && options_.answer) verdict = options_.answer();
    MutexLock lock(mu_);
    v1::OpenSessionResponse answer;
    answer.mutable_fence()->set_term(options_.term);
    if (message.has_hello() && verdict.has_value() && verdict->ok()) {
      stream_ = stream;
      incarnation_ = message.fence().incarnation();
      *answer.mutable_welcome()->mutable_lease() = ToProtoDuration(options_.lease);
      *answer.mutable_welcome()->mutable_heartbeat_interval() = ToProtoDuration(options_.heartbeat);
      answer.mutable_welcome()->set_cluster_id(options_.cluster_id);
      stream->Write(answer);
    } else if (message.has_heartbeat() && stream != silent_) {
      const uint64_t sequence = message.heartbeat().sequence();
      if (!falls_behind_) in_time_ = sequence;
      answer.mutable_heartbeat_reply()->set_sequence(in_time_ + (sequence - in_time_) / 2);
      stream->Write(answer);
    }
    received_.push_back(message);
    changed_.NotifyAll();
    if (verdict.has_value() && !verdict->ok())
      return rpc::ToGrpc(*verdict, v1::ERROR_ORIGIN_COORDINATOR);
  }
  MutexLock lock(mu_);
  if (stream_ == stream) stream_ = nullptr;
  // The next one may lie there.
  if (silent_ == stream) silent_ = nullptr;
  return grpc::Status::OK;
}

std::optional<FakeCoordinator::Message> FakeCoordinator::Await(
    const std::function<bool(const Message&)>& wanted) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  MutexLock lock(mu_);
  while (true) {
    for (auto it = received_.begin(); it != received_.end(); ++it) {
      if (!wanted(*it)) continue;
      Message found = std::move(*it);
      received_.erase(it);
      return found;
    }
    if (!changed_.WaitUntil(mu_, deadline)) return std::nullopt;
  }
}

std::optional<FakeCoordinator::Message> FakeCoordinator::AwaitKind(Message::MessageCase kind) {
  return Await([kind](const Message& message) { return message.message_case() == kind; });
}

bool FakeCoordinator::has_session() const {
  MutexLock lock(mu_);
  return stream_ != nullptr;
}

size_t FakeCoordinator::received() const {
  MutexLock lock(mu_);
  return received_.size();
}

void FakeCoordinator::Send(v1::OpenSessionResponse message, const std::string& job_id,
                           uint64_t generation) {
  MutexLock lock(mu_);
  message.mutable_fence()->set_term(options_.term);
  message.mutable_fence()->set_incarnation(incarnation_);
  message.mutable_fence()->set_job_id(job_id);
  message.mutable_fence()->set_generation(generation);
  if (stream_ != nullptr) stream_->Write(message);
}

grpc::Status FakeCoordinator::UploadStack(grpc::ServerContext*,
                                          const v1::UploadStackRequest* request,
                                          v1::UploadStackResponse*) {
  MutexLock lock(mu_);
  stacks_.push_back(*request);
  changed_.NotifyAll();
  return grpc::Status::OK;
}

std::vector<v1::UploadStackRequest> FakeCoordinator::AwaitStacks(size_t count) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  MutexLock lock(mu_);
  while (stacks_.size() < count && changed_.WaitUntil(mu_, deadline)) {
  }
  return stacks_;
}

grpc::Status FakeCoordinator::UploadLog(grpc::ServerContext*,
                                        grpc::ServerReader<v1::UploadLogRequest>* reader,
                                        v1::UploadLogResponse*) {
  v1::UploadLogRequest chunk;
  std::string stream_id;
  while (reader->Read(&chunk)) {
    MutexLock lock(mu_);
    stream_id = chunk.stream_id();
    Upload& upload = uploads_[stream_id];
    if (upload.data.empty()) upload.first_offset = chunk.offset();
    upload.data += chunk.data();
    upload.largest = std::max(upload.largest, chunk.data().size());
    upload.error = chunk.error();
    upload.dropped += chunk.dropped();
    upload.gone = chunk.gone();
    upload.pictures.insert(upload.pictures.end(), chunk.pictures().begin(), chunk.pictures().end());
    changed_.NotifyAll();
  }
  MutexLock lock(mu_);
  uploads_[stream_id].ended = true;
  changed_.NotifyAll();
  return grpc::Status::OK;
}

FakeCoordinator::Upload FakeCoordinator::AwaitUpload(
    const std::string& stream_id, const std::function<bool(const Upload&)>& enough) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  MutexLock lock(mu_);
  while (!enough(uploads_[stream_id])) {
    if (!changed_.WaitUntil(mu_, deadline)) break;
  }
  return uploads_[stream_id];
}

void FakeCoordinator::FallBehind() {
  MutexLock lock(mu_);
  falls_behind_ = true;
}

void FakeCoordinator::Forget() {
  MutexLock lock(mu_);
  received_.clear();
}

void FakeCoordinator::FallSilent() {
  MutexLock lock(mu_);
  silent_ = stream_;
}

int FakeCoordinator::store_calls() const {
  MutexLock lock(store_->mu_);
  return store_->calls_;
}

v1::Fence FakeCoordinator::last_store_fence() const {
  MutexLock lock(store_->mu_);
  return store_->fence_;
}

}  // namespace meshrun::testing
