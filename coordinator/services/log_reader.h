// The two ends of LogRelay: a client's call, and a worker's upload of one file. Part of it alone.
#pragma once

#include <grpcpp/alarm.h>
#include <grpcpp/server_context.h>

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/services/log_relay.h"
#include "coordinator/services/outgoing_stream.h"

namespace meshrun::coordinator {

// From OpenLog to the first bytes of the file, or to the message that it has none; the page waits
// for pictures.
inline constexpr std::chrono::seconds kUploadStart(10);
inline constexpr std::chrono::seconds kPicturesStart(3);

// What differs between the calls of readers.
struct LogKind {
  using Request = v1::ReadLogsRequest;
  using Response = v1::ReadLogsResponse;
  static constexpr std::chrono::seconds kStart = kUploadStart;

  static void Put(const Request& request, v1::StateEvent& event) {
    *event.mutable_read_logs() = request;
  }
  // Before all else; null: nothing.
  static std::shared_ptr<Response> First(const OpenLogRelay&) { return nullptr; }
  // Null: the message says nothing yet.
  static std::shared_ptr<Response> Take(const LogSource& source, v1::UploadLogRequest& chunk) {
    if (chunk.data().empty() && chunk.dropped() == 0) return nullptr;
    auto out = std::make_shared<Response>();
    out->set_rank(source.rank);
    out->set_stream(source.open.stream());
    out->set_generation(source.generation);
    out->set_offset(chunk.offset());
    out->set_dropped(chunk.dropped());
    out->set_allocated_data(chunk.release_data());
    return out;
  }
  static size_t BytesOf(const Response& response) { return response.data().size(); }
};

struct PictureKind {
  using Request = v1::ReadPicturesRequest;
  using Response = v1::ReadPicturesResponse;
  static constexpr std::chrono::seconds kStart = kPicturesStart;

  static void Put(const Request& request, v1::StateEvent& event) {
    *event.mutable_read_pictures() = request;
  }
  static std::shared_ptr<Response> First(const OpenLogRelay& relay) {
    auto out = std::make_shared<Response>();
    if (!relay.sources.empty()) out->set_generation(relay.sources.front().generation);
    return out;
  }
  static std::shared_ptr<Response> Take(const LogSource& source, v1::UploadLogRequest& chunk) {
    if (chunk.data().empty() && chunk.pictures().empty()) return nullptr;
    auto out = std::make_shared<Response>();
    out->set_generation(source.generation);
    out->mutable_pictures()->Swap(chunk.mutable_pictures());
    out->set_allocated_data(chunk.release_data());
    return out;
  }
  static size_t BytesOf(const Response& response) { return response.ByteSizeLong(); }
};

class LogUpload;

// A client's call, as its uploads and the relay see it.
class LogReader {
 public:
  virtual ~LogReader() = default;

  // Whether this file is one that the caller may upload.
  virtual bool MayUpload(const std::string& stream_id, const rpc::Identity& caller) = 0;
  // Takes an upload's bytes. kPause: stop reading until Resume. kEnd: the reader has gone.
  enum class Answer { kGoOn, kPause, kEnd };
  virtual Answer Take(LogUpload* upload, v1::UploadLogRequest& chunk) = 0;
  // The upload has ended.
  virtual void UploadEnded(const std::string& stream_id, const absl::Status& status) = 0;
  // Fails the files whose upload has not begun: those of this session alone, or (0) of all
  // sessions.
  virtual void FailSilentSources(uint64_t session_id) = 0;
  // Files of the node, whether their upload has begun or not.
  virtual void FailNode(const std::string& node_id, const absl::Status& why) = 0;
  // Drops what is buffered, stops the uploads, ends the call.
  virtual void End(const absl::Status& status) = 0;
};

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

// Alive as long as gRPC, the relay or an upload refers to it. `Kind`: LogKind or PictureKind.
template <typename Kind>
class ReaderOf : public OutgoingStream<grpc::ServerWriteReactor<typename Kind::Response>,
                                       typename Kind::Response>,
                 public PendingCall,
                 public LogReader,
                 public std::enable_shared_from_this<ReaderOf<Kind>> {
  using Stream =
      OutgoingStream<grpc::ServerWriteReactor<typename Kind::Response>, typename Kind::Response>;
  using Stream::Advance;
  using Stream::ending;
  using Stream::EndWith;
  using Stream::finished;
  using Stream::mu_;

 public:
  ReaderOf(Shell shell, LogRelay& relay)
      : shell_(shell), relay_(relay), presence_(relay), call_id_(shell.loop.NewId()) {}

  void Begin(const Sender& sender, const typename Kind::Request& request) {
    self_ = this->shared_from_this();
    this->StartSendInitialMetadata();
    v1::StateEvent event;
    event.set_call_id(call_id_);
    Kind::Put(request, event);
    StampCaller(sender, shell_.standing, event);
    shell_.recipients.AddCall(call_id_, this);
    certificate_.Begin(shell_, sender, WallNanos(0),
                       [weak = this->weak_from_this()](const absl::Status& why) {
                         if (const auto reader = weak.lock()) reader->Expel(why);
                       });
    const absl::Status refused = shell_.Receive(sender, request);
    const absl::Status status =
        refused.ok() ? shell_.PostStream(sender, std::move(event), &place_) : refused;
    if (!status.ok() && shell_.recipients.RemoveCall(call_id_)) End(status);
  }

  void Reply(const absl::Status& status, const MessagePtr&) override {
    const auto self = this->shared_from_this();
    Answered();
    End(status);
  }

  void OpenRelay(OpenLogRelay&& relay) override {
    const auto self = this->shared_from_this();
    if (Answered()) {
      End(absl::CancelledError("the reader went away"));
      return;
    }
    // First: what ends the call takes out of the relay what is in sources_.
    for (const LogSource& source : relay.sources) relay_.Add(source.open.stream_id(), self);
    bool begins = false;
    {
      MutexLock lock(mu_);
      begins = !ending();
      if (begins) BeginSources(relay);
    }
    if (!begins) {
      for (const LogSource& source : relay.sources) relay_.Remove(source.open.stream_id());
      return;
    }
    for (LogSource& source : relay.sources) {
      v1::OpenSessionResponse message;
      *message.mutable_fence() = source.fence;
      if (source.pictures) {
        *message.mutable_open_pictures() = *std::move(source.pictures);
      } else {
        *message.mutable_open_log() = std::move(source.open);
      }
      shell_.recipients.Send(source.session_id, std::move(message));
    }
    Advance([&]() MESHRUN_REQUIRES(mu_) { EndAfterLastSource(); });
  }

  bool MayUpload(const std::string& stream_id, const rpc::Identity& caller) override {
    MutexLock lock(mu_);
    const auto it = sources_.find(stream_id);
    return it == sources_.end() || caller.SpeaksFor(it->second.node_name);
  }

  Answer Take(LogUpload* upload, v1::UploadLogRequest& chunk) override {
    Answer answer = Answer::kGoOn;
    Advance([&]() MESHRUN_REQUIRES(mu_) {
      const auto it = sources_.find(chunk.stream_id());
      if (ending() || it == sources_.end()) {
        answer = Answer::kEnd;
        return;
      }
      uploads_[chunk.stream_id()] = upload;
      if (auto out = Kind::Take(it->second, chunk)) {
        bytes_ += Kind::BytesOf(*out);
        this->Push(std::move(out));
      }
      if (bytes_ > LogRelay::kBufferBytes) {
        paused_.push_back(upload);
        answer = Answer::kPause;
      }
    });
    return answer;
  }

  void UploadEnded(const std::string& stream_id, const absl::Status& status) override {
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

  void FailSilentSources(uint64_t session_id) override {
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

  void FailNode(const std::string& node_id, const absl::Status& why) override {
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
    const auto self = this->shared_from_this();
    std::vector<LogUpload*> resume;
    Advance([&]() MESHRUN_REQUIRES(mu_) {
      bytes_ -= Kind::BytesOf(*this->Written());
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
    certificate_.End();
    self_.reset();
  }

  void End(const absl::Status& status) override {
    std::map<std::string, LogSource> sources;
    std::vector<LogUpload*> paused;
    const auto self = this->shared_from_this();
    Advance([&]() MESHRUN_REQUIRES(mu_) {
      if (finished()) return;
      sources.swap(sources_);
      paused.swap(paused_);
      this->Drop();
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

  void BeginSources(const OpenLogRelay& relay) MESHRUN_REQUIRES(mu_) {
    outcome_ = relay.end;
    for (const LogSource& source : relay.sources) sources_[source.open.stream_id()] = source;
    if (auto first = Kind::First(relay)) {
      bytes_ += Kind::BytesOf(*first);
      this->Push(std::move(first));
    }
    if (sources_.empty()) return;
    // Weak: an alarm keeps its function for as long as it lives itself.
    alarm_.Set(std::chrono::system_clock::now() + Kind::kStart,
               [weak = this->weak_from_this()](bool due) {
                 const auto reader = due ? weak.lock() : nullptr;
                 if (reader != nullptr) reader->FailSilentSources(0);
               });
  }

  void EndAfterLastSource() MESHRUN_REQUIRES(mu_) {
    if (sources_.empty() && !ending()) EndWith(outcome_);
  }

  Shell shell_;
  LogRelay& relay_;
  // Above all that refers to the server: it is destroyed after that.
  const LogRelay::Presence presence_;
  const uint64_t call_id_;
  std::shared_ptr<ReaderOf> self_;
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

}  // namespace meshrun::coordinator
