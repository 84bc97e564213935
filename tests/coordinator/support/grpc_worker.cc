#include "tests/coordinator/support/grpc_worker.h"

#include <utility>

namespace meshrun::coordinator::testing {

class GrpcWorker::Stream
    : public grpc::ClientBidiReactor<v1::OpenSessionRequest, v1::OpenSessionResponse>,
      public std::enable_shared_from_this<Stream> {
 public:
  explicit Stream(GrpcWorker& worker) : worker_(worker) {}

  void Begin() {
    self_ = shared_from_this();
    worker_.stub_->async()->OpenSession(&context_, this);
    StartRead(&response_);
    // Writes start outside of reactions: the call must not end between two of them.
    AddHold();
    StartCall();
  }
  void Cancel() { context_.TryCancel(); }

  void Send(FakeWorker::Requests requests) {
    const v1::OpenSessionRequest* write = nullptr;
    {
      MutexLock lock(mu_);
      if (ended_) return;
      for (auto& request : requests) queue_.push_back(std::move(request));
      if (writing_ || queue_.empty()) return;
      writing_ = true;
      write = &queue_.front();
      AddHold();
    }
    StartWrite(write);
    RemoveHold();
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      {
        MutexLock lock(mu_);
        ended_ = true;
      }
      RemoveHold();
      return;
    }
    worker_.OnMessage(response_);
    response_.Clear();
    StartRead(&response_);
  }
  void OnWriteDone(bool ok) override {
    const v1::OpenSessionRequest* write = nullptr;
    {
      MutexLock lock(mu_);
      queue_.pop_front();
      writing_ = ok && !queue_.empty();
      if (writing_) write = &queue_.front();
    }
    if (write != nullptr) StartWrite(write);
  }
  void OnDone(const grpc::Status& status) override {
    // The call holds its channel. Were it the last to do so, gRPC would wait for this very thread
    // to end: it goes before the worker, which holds the channel too, may.
    GrpcWorker& worker = worker_;
    const grpc::Status end = status;
    worker.Forget();
    self_.reset();
    worker.OnEnd(end);
  }

 private:
  GrpcWorker& worker_;
  grpc::ClientContext context_;
  v1::OpenSessionResponse response_;
  std::shared_ptr<Stream> self_;
  Mutex mu_;
  std::deque<v1::OpenSessionRequest> queue_ MESHRUN_GUARDED_BY(mu_);
  bool writing_ MESHRUN_GUARDED_BY(mu_) = false;
  bool ended_ MESHRUN_GUARDED_BY(mu_) = false;
};

GrpcWorker::GrpcWorker(std::shared_ptr<grpc::Channel> channel, FakeWorker::Options options,
                       Hook hook)
    : stub_(v1::SessionService::NewStub(channel)),
      hook_(std::move(hook)),
      fake_(std::move(options)) {}

GrpcWorker::~GrpcWorker() { Break(); }

bool GrpcWorker::Connect(std::chrono::milliseconds timeout) {
  auto stream = std::make_shared<Stream>(*this);
  FakeWorker::Requests hello;
  {
    MutexLock lock(mu_);
    stream_ = stream;
    welcome_ = false;
    ended_ = false;
    hello.push_back(fake_.Hello());
  }
  stream->Begin();
  stream->Send(std::move(hello));
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  MutexLock lock(mu_);
  while (!welcome_ && !ended_) {
    if (!changed_.WaitUntil(mu_, deadline)) break;
  }
  return welcome_;
}

void GrpcWorker::Break() {
  std::shared_ptr<Stream> stream;
  {
    MutexLock lock(mu_);
    stream = stream_;
  }
  if (stream != nullptr) stream->Cancel();
  AwaitEnd();
}

grpc::Status GrpcWorker::AwaitEnd(std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  MutexLock lock(mu_);
  while (!ended_) {
    if (!changed_.WaitUntil(mu_, deadline)) {
      return grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, "the session did not end");
    }
  }
  return status_;
}

void GrpcWorker::Say(const std::function<FakeWorker::Requests(FakeWorker&)>& words) {
  std::shared_ptr<Stream> stream;
  FakeWorker::Requests requests;
  {
    MutexLock lock(mu_);
    requests = words(fake_);
    stream = stream_;
  }
  if (stream != nullptr) stream->Send(std::move(requests));
}

void GrpcWorker::OnMessage(const v1::OpenSessionResponse& message) {
  bytes_received_.fetch_add(message.ByteSizeLong());
  Say([&](FakeWorker& fake) { return fake.OnMessage(message); });
  if (message.has_welcome()) {
    MutexLock lock(mu_);
    welcome_ = true;
    changed_.NotifyAll();
  }
  if (hook_) hook_(*this, message);
}

void GrpcWorker::Forget() {
  MutexLock lock(mu_);
  stream_.reset();
}

void GrpcWorker::OnEnd(const grpc::Status& status) {
  MutexLock lock(mu_);
  status_ = status;
  ended_ = true;
  changed_.NotifyAll();
}

}  // namespace meshrun::coordinator::testing
