#include "coordinator/services/log_relay.h"

#include <grpcpp/alarm.h>
#include <grpcpp/server_context.h>

#include <atomic>
#include <utility>

#include "coordinator/services/outgoing_stream.h"

namespace meshrun::coordinator {
namespace {

// From OpenLog to the first bytes of the file, or to the message that it has none.
constexpr std::chrono::seconds kUploadStart(10);

}  // namespace

// A worker's upload of one file.
class LogUpload : public grpc::ServerReadReactor<v1::UploadLogRequest> {
 public:
  LogUpload(LogRelay& relay, grpc::CallbackServerContext* context)
      : relay_(relay), context_(context), sender_(SenderOf(*context)) {
    relay_.shell_.Receive(sender_);
    StartRead(&request_);
  }

  void OnReadDone(bool ok) override;
  void OnCancel() override { cancelled_.store(true); }
  void OnDone() override;
  // The reader has room again.
  void Resume() {
    request_.Clear();
    StartRead(&request_);
  }
  // The reader is gone.
  void End(const absl::Status& status) {
    Finish(rpc::ToGrpc(status, v1::ERROR_ORIGIN_COORDINATOR));
  }
  // The peer is gone without ending the call.
  void Cancel() { context_->TryCancel(); }

 private:
  LogRelay& relay_;
  grpc::CallbackServerContext* const context_;
  const Sender sender_;
  v1::UploadLogRequest request_;
  std::string stream_id_;
  std::shared_ptr<LogReader> reader_;
  absl::Status error_;
  std::atomic<bool> cancelled_{false};
};

// A client's ReadLogs call. Alive as long as gRPC, the relay or an upload refers to it.
class LogReader
    : public OutgoingStream<grpc::ServerWriteReactor<v1::ReadLogsResponse>, v1::ReadLogsResponse>,
      public PendingCall,
      public std::enable_shared_from_this<LogReader> {
 public:
  LogReader(Shell shell, LogRelay& relay)
      : shell_(shell), relay_(relay), token_(relay.token_), call_id_(shell.loop.NewId()) {}

  void Begin(const Sender& sender, const v1::ReadLogsRequest& request) {
    self_ = shared_from_this();
    StartSendInitialMetadata();
    v1::StateEvent event;
    event.set_call_id(call_id_);
    *event.mutable_read_logs() = request;
    StampCaller(sender, shell_.standing, event);
    shell_.recipients.AddCall(call_id_, this);
    certificate_.Begin(shell_, sender, WallNanos(0),
                       [weak = weak_from_this()](const absl::Status& why) {
                         if (const auto reader = weak.lock()) reader->Expel(why);
                       });
    const absl::Status refused = shell_.Receive(sender, request);
    const absl::Status status =
        refused.ok() ? shell_.PostStream(sender, std::move(event), &place_) : refused;
    if (!status.ok() && shell_.recipients.RemoveCall(call_id_)) End(status);
  }

  void Reply(const absl::Status& status, const MessagePtr&) override {
    const auto self = shared_from_this();
    Answered();
    End(status);
  }

  void OpenRelay(OpenLogRelay&& relay) override {
    const auto self = shared_from_this();
    if (Answered()) {
      End(absl::CancelledError("the reader went away"));
      return;
    }
    {
      MutexLock lock(mu_);
      if (ending()) return;
      outcome_ = relay.end;
      for (const LogSource& source : relay.sources) sources_[source.open.stream_id()] = source;
      if (!sources_.empty()) {
        // Weak: an alarm keeps its function for as long as it lives itself.
        alarm_.Set(std::chrono::system_clock::now() + kUploadStart,
                   [weak = weak_from_this()](bool due) {
                     const auto reader = due ? weak.lock() : nullptr;
                     if (reader != nullptr) reader->FailSilentSources();
                   });
      }
    }
    for (LogSource& source : relay.sources) relay_.Add(source.open.stream_id(), self);
    for (LogSource& source : relay.sources) {
      v1::OpenSessionResponse message;
      *message.mutable_fence() = source.fence;
      *message.mutable_open_log() = std::move(source.open);
      shell_.recipients.Send(source.session_id, std::move(message));
    }
    Advance([&]() MESHRUN_REQUIRES(mu_) { EndAfterLastSource(); });
  }

  // Whether this file is one that the caller may upload.
  bool MayUpload(const std::string& stream_id, const rpc::Identity& caller) {
    MutexLock lock(mu_);
    const auto it = sources_.find(stream_id);
    return it == sources_.end() || caller.SpeaksFor(it->second.node_name);
  }

  // Takes an upload's bytes. kPause: stop reading until Resume. kEnd: the reader has gone.
  enum class Answer { kGoOn, kPause, kEnd };
  Answer Take(LogUpload* upload, v1::UploadLogRequest& chunk) {
    Answer answer = Answer::kGoOn;
    Advance([&]() MESHRUN_REQUIRES(mu_) {
      const auto it = sources_.find(chunk.stream_id());
      if (ending() || it == sources_.end()) {
        answer = Answer::kEnd;
        return;
      }
      uploads_[chunk.stream_id()] = upload;
      if (!chunk.data().empty() || chunk.dropped() > 0) {
        auto out = std::make_shared<v1::ReadLogsResponse>();
        out->set_rank(it->second.rank);
        out->set_stream(it->second.open.stream());
        out->set_generation(it->second.generation);
        out->set_offset(chunk.offset());
        out->set_dropped(chunk.dropped());
        out->set_allocated_data(chunk.release_data());
        bytes_ += out->data().size();
        Push(std::move(out));
      }
      if (bytes_ > LogRelay::kBufferBytes) {
        paused_.push_back(upload);
        answer = Answer::kPause;
      }
    });
    return answer;
  }

  // The upload has ended.
  void UploadEnded(const std::string& stream_id, const absl::Status& status) {
    {
      MutexLock lock(mu_);
      uploads_.erase(stream_id);
    }
    SourceEnded(stream_id, status);
  }

  void SourceEnded(const std::string& stream_id, const absl::Status& status) {
    relay_.Remove(stream_id);
    Advance([&]() MESHRUN_REQUIRES(mu_) {
      if (sources_.erase(stream_id) == 0) return;
      if (outcome_.ok()) outcome_ = status;
      EndAfterLastSource();
    });
  }

  // Fails the files whose upload has not begun: those of this session alone, or (0) of all
  // sessions.
  void FailSilentSources(uint64_t session_id = 0) {
    std::vector<std::string> silent;
    {
      MutexLock lock(mu_);
      for (const auto& [id, source] : sources_) {
        if ((session_id == 0 || source.session_id == session_id) && !uploads_.contains(id)) {
          silent.push_back(id);
        }
      }
    }
    for (const std::string& id : silent) {
      SourceEnded(id, absl::UnavailableError(
                          session_id != 0 ? "the worker that holds the file went away"
                                          : "the worker that holds the file does not send it"));
    }
  }

  // Files of the node, whether their upload has begun or not.
  void FailNode(const std::string& node_id, const absl::Status& why) {
    std::vector<std::string> lost;
    Advance([&]() MESHRUN_REQUIRES(mu_) {
      std::erase_if(sources_, [&](const auto& entry) {
        if (entry.second.node_id != node_id) return false;
        lost.push_back(entry.first);
        return true;
      });
      if (lost.empty()) return;
      // First: the uploads that end now would give a less precise reason.
      if (outcome_.ok()) outcome_ = why;
      for (const std::string& id : lost) {
        // Under the lock: an upload that is here has not ended.
        if (const auto it = uploads_.find(id); it != uploads_.end()) it->second->Cancel();
      }
      EndAfterLastSource();
    });
    for (const std::string& id : lost) relay_.Remove(id);
  }

  void OnWriteDone(bool ok) override {
    const auto self = shared_from_this();
    std::vector<LogUpload*> resume;
    Advance([&]() MESHRUN_REQUIRES(mu_) {
      bytes_ -= Written()->data().size();
      if (ok && bytes_ <= LogRelay::kBufferBytes / 2) resume.swap(paused_);
    });
    for (LogUpload* upload : resume) upload->Resume();
    if (!ok) End(absl::CancelledError("the reader went away"));
  }
  void OnCancel() override { Expel(absl::CancelledError("the reader went away")); }
  // Ends the call, whatever it waits for.
  void Expel(const absl::Status& why) {
    if (!shell_.recipients.RemoveCall(call_id_)) {
      // The answer is on its way to this object, which must not end before it has come.
      MutexLock lock(mu_);
      cancelled_ = true;
      if (!answered_) return;
    }
    End(why);
  }
  void OnDone() override {
    alarm_.Cancel();
    self_.reset();
  }

  // Drops what is buffered, stops the uploads, ends the call.
  void End(const absl::Status& status) {
    std::map<std::string, LogSource> sources;
    std::vector<LogUpload*> paused;
    const auto self = shared_from_this();
    Advance([&]() MESHRUN_REQUIRES(mu_) {
      if (finished()) return;
      sources.swap(sources_);
      paused.swap(paused_);
      Drop();
      EndWith(status);
    });
    for (const auto& [id, source] : sources) {
      relay_.Remove(id);
      v1::OpenSessionResponse message;
      *message.mutable_fence() = source.fence;
      message.mutable_close_log()->set_stream_id(id);
      shell_.recipients.Send(source.session_id, std::move(message));
    }
    for (LogUpload* upload : paused) upload->End(absl::CancelledError("the reader went away"));
  }

 private:
  // True when the caller has gone meanwhile.
  bool Answered() {
    MutexLock lock(mu_);
    answered_ = true;
    return cancelled_;
  }

  void EndAfterLastSource() MESHRUN_REQUIRES(mu_) {
    if (sources_.empty() && !ending()) EndWith(outcome_);
  }

  Shell shell_;
  LogRelay& relay_;
  const std::shared_ptr<const int> token_;
  const uint64_t call_id_;
  std::shared_ptr<LogReader> self_;
  grpc::Alarm alarm_;
  CertificateWatch certificate_;
  OpenStreams::Place place_;

  // Files that have not ended.
  std::map<std::string, LogSource> sources_ MESHRUN_GUARDED_BY(mu_);
  // Uploads that have begun, until UploadEnded.
  std::map<std::string, LogUpload*> uploads_ MESHRUN_GUARDED_BY(mu_);
  std::vector<LogUpload*> paused_ MESHRUN_GUARDED_BY(mu_);
  size_t bytes_ MESHRUN_GUARDED_BY(mu_) = 0;
  bool answered_ MESHRUN_GUARDED_BY(mu_) = false;
  bool cancelled_ MESHRUN_GUARDED_BY(mu_) = false;
  absl::Status outcome_ MESHRUN_GUARDED_BY(mu_);
};

void LogUpload::OnReadDone(bool ok) {
  if (!ok) {
    Finish(grpc::Status::OK);
    return;
  }
  if (const absl::Status status = rpc::CheckBounds(request_); !status.ok()) {
    error_ = relay_.shell_.TurnAway(sender_, "UploadLog", status);
    End(status);
    return;
  }
  if (reader_ == nullptr) {
    stream_id_ = request_.stream_id();
    reader_ = relay_.Find(stream_id_);
    if (reader_ == nullptr) {
      End(absl::NotFoundError("no reader waits for log stream " + stream_id_));
      return;
    }
    if (sender_.shows_certificate && !reader_->MayUpload(stream_id_, sender_.identity)) {
      reader_.reset();
      End(absl::PermissionDeniedError("log stream " + stream_id_ +
                                      " is another node's than that of the certificate"));
      return;
    }
  }
  if (const absl::Status stands = relay_.Stands(sender_); !stands.ok()) {
    error_ = absl::UnavailableError("the worker that holds the file may not send it any more");
    End(stands);
    return;
  }
  request_.set_stream_id(stream_id_);
  if (!request_.error().empty()) {
    error_ = request_.gone() ? absl::NotFoundError(request_.error())
                             : absl::UnavailableError(request_.error());
  }
  const LogReader::Answer answer = reader_->Take(this, request_);
  if (answer == LogReader::Answer::kGoOn) {
    request_.Clear();
    StartRead(&request_);
  } else if (answer == LogReader::Answer::kEnd) {
    End(absl::CancelledError("the reader went away"));
  }
}

void LogUpload::OnDone() {
  if (reader_ != nullptr) {
    reader_->UploadEnded(stream_id_,
                         cancelled_.load()
                             ? absl::UnavailableError("the worker that holds the file went away")
                             : error_);
  }
  delete this;
}

LogRelay::LogRelay(Shell shell) : shell_(shell) {
  shell_.recipients.SetUploads([this](const std::string& node_id, const absl::Status& why) {
    for (const auto& reader : Readers()) reader->FailNode(node_id, why);
  });
}

LogRelay::~LogRelay() { shell_.recipients.SetUploads(nullptr); }

grpc::ServerWriteReactor<v1::ReadLogsResponse>* LogRelay::Read(const Sender& sender,
                                                               const v1::ReadLogsRequest& request) {
  const auto reader = std::make_shared<LogReader>(shell_, *this);
  reader->Begin(sender, request);
  return reader.get();
}

grpc::ServerReadReactor<v1::UploadLogRequest>* LogRelay::Upload(
    grpc::CallbackServerContext* context) {
  return new LogUpload(*this, context);
}

absl::Status LogRelay::Stands(const Sender& sender) {
  if (shell_.standing == nullptr || !sender.shows_certificate) return absl::OkStatus();
  return shell_.standing->Check(sender.certificate);
}

void LogRelay::Add(const std::string& stream_id, std::shared_ptr<LogReader> reader) {
  MutexLock lock(mu_);
  readers_[stream_id] = std::move(reader);
}

void LogRelay::Remove(const std::string& stream_id) {
  std::shared_ptr<LogReader> last;
  MutexLock lock(mu_);
  const auto it = readers_.find(stream_id);
  if (it == readers_.end()) return;
  last = std::move(it->second);
  readers_.erase(it);
}

std::shared_ptr<LogReader> LogRelay::Find(const std::string& stream_id) {
  MutexLock lock(mu_);
  const auto it = readers_.find(stream_id);
  return it == readers_.end() ? nullptr : it->second;
}

std::set<std::shared_ptr<LogReader>> LogRelay::Readers() {
  std::set<std::shared_ptr<LogReader>> out;
  MutexLock lock(mu_);
  for (const auto& [id, reader] : readers_) out.insert(reader);
  return out;
}

void LogRelay::OnSessionEnded(uint64_t session_id) {
  for (const auto& reader : Readers()) reader->FailSilentSources(session_id);
}

void LogRelay::Stop() {
  for (const auto& reader : Readers()) {
    reader->End(absl::UnavailableError("the coordinator is stopping"));
  }
}

}  // namespace meshrun::coordinator
