#include "coordinator/services/session_service.h"

#include <deque>

#include "core/mutex.h"

namespace meshrun::coordinator {
namespace {

// Commands that a worker has not taken yet. A worker that is so far behind is not well: its session
// ends, and it starts anew with what it has.
constexpr size_t kMaxQueued = 4096;

class SessionStream
    : public grpc::ServerBidiReactor<v1::OpenSessionRequest, v1::OpenSessionResponse>,
      public Session,
      public std::enable_shared_from_this<SessionStream> {
 public:
  SessionStream(Shell shell, LogRelay& relay, grpc::CallbackServerContext* context)
      : shell_(shell), relay_(relay), context_(context), session_id_(shell.loop.NewId()) {}

  void Begin() {
    self_ = shared_from_this();
    shell_.recipients.AddSession(session_id_, self_);
    StartRead(&request_);
  }

  void OnReadDone(bool ok) override {
    v1::StateEvent event;
    if (!ok) {
      event.mutable_session_closed()->set_session_id(session_id_);
      shell_.loop.PostEnd(std::move(event));
      relay_.OnSessionEnded(session_id_);
      // Without a loop nobody else would end it.
      Close(absl::OkStatus());
      return;
    }
    event.mutable_session_message()->set_session_id(session_id_);
    event.mutable_session_message()->mutable_message()->Swap(&request_);
    if (const absl::Status status = shell_.loop.Post(std::move(event)); !status.ok()) {
      v1::StateEvent closed;
      closed.mutable_session_closed()->set_session_id(session_id_);
      shell_.loop.PostEnd(std::move(closed));
      Close(status);
      return;
    }
    request_.Clear();
    StartRead(&request_);
  }

  void Send(v1::OpenSessionResponse message) override {
    {
      MutexLock lock(mu_);
      if (ending_) return;
      if (queue_.size() < kMaxQueued) {
        queue_.push_back(std::move(message));
      } else {
        ending_ = true;
        end_ = absl::ResourceExhaustedError("the worker does not take its commands");
        // Under the lock: before finished_ the context is there.
        context_->TryCancel();
      }
    }
    Continue();
  }

  void Close(const absl::Status& status) override {
    {
      MutexLock lock(mu_);
      if (ending_) return;
      ending_ = true;
      end_ = status;
      // To a peer that was silent for its lease the write under way may never end.
      if (writing_ && absl::IsDeadlineExceeded(status)) context_->TryCancel();
    }
    Continue();
  }

  void OnWriteDone(bool ok) override {
    {
      MutexLock lock(mu_);
      writing_ = false;
      queue_.pop_front();
      if (!ok) queue_.clear();
    }
    Continue();
  }

  void OnDone() override {
    shell_.recipients.Close(session_id_, absl::OkStatus());
    self_.reset();
  }

 private:
  void Continue() {
    const v1::OpenSessionResponse* write = nullptr;
    grpc::Status end;
    {
      MutexLock lock(mu_);
      if (writing_ || finished_) return;
      if (!queue_.empty()) {
        writing_ = true;
        write = &queue_.front();
      } else if (ending_) {
        finished_ = true;
        end = rpc::ToGrpc(end_);
      } else {
        return;
      }
    }
    if (write != nullptr) {
      StartWrite(write);
    } else {
      Finish(end);
    }
  }

  Shell shell_;
  LogRelay& relay_;
  grpc::CallbackServerContext* const context_;
  const uint64_t session_id_;
  v1::OpenSessionRequest request_;
  std::shared_ptr<SessionStream> self_;

  Mutex mu_;
  std::deque<v1::OpenSessionResponse> queue_ MESHRUN_GUARDED_BY(mu_);
  bool writing_ MESHRUN_GUARDED_BY(mu_) = false;
  bool ending_ MESHRUN_GUARDED_BY(mu_) = false;
  bool finished_ MESHRUN_GUARDED_BY(mu_) = false;
  absl::Status end_ MESHRUN_GUARDED_BY(mu_);
};

}  // namespace

grpc::ServerBidiReactor<v1::OpenSessionRequest, v1::OpenSessionResponse>*
SessionService::OpenSession(grpc::CallbackServerContext* context) {
  const auto stream = std::make_shared<SessionStream>(shell_, relay_, context);
  stream->Begin();
  return stream.get();
}

grpc::ServerReadReactor<v1::UploadLogRequest>* SessionService::UploadLog(
    grpc::CallbackServerContext*, v1::UploadLogResponse*) {
  return relay_.Upload();
}

}  // namespace meshrun::coordinator
