#include "worker/logs/log_uploads.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>
#include <utility>

#include "core/log.h"
#include "core/rpc/status_conversion.h"
#include "core/utf8.h"
#include "worker/logs/log_file.h"
#include "worker/logs/retention.h"
#include "worker/logs/tail.h"

namespace meshrun::worker {
namespace {

constexpr std::chrono::milliseconds kLookAgain(50);
// A reader that left while its session was broken is noticed only by sending: something is sent
// every 5 s.
constexpr int kLooksPerSign = 100;
constexpr size_t kChunk = 1 << 16;

}  // namespace

// One stream. Everything runs on the loop, except gRPC's reactions; OnDone's task is the last one
// of an upload.
class LogUpload : public grpc::ClientWriteReactor<v1::UploadLogRequest> {
 public:
  LogUpload(LogUploads& owner, v1::OpenLog request, std::string path, bool growing)
      : owner_(owner), request_(std::move(request)), path_(std::move(path)), growing_(growing) {}

  void Begin() {
    stub_ = owner_.stub_.Get();
    stub_->async()->UploadLog(&context_, &response_, this);
    AddHold();
    StartCall();
    // The first message says which stream this is, also where there is nothing to send yet.
    Send("");
  }

  // While a followed file is silent there is no write that could fail.
  void Cancel() {
    context_.TryCancel();
    if (!writing_) End();
  }
  void OnRankEnded(const std::string& job_id, uint64_t generation, int rank) {
    if (request_.job_id() != job_id || request_.generation() != generation ||
        request_.rank() != rank)
      return;
    growing_ = false;
    if (!writing_) Pump();
  }

  void OnWriteDone(bool ok) override {
    owner_.loop_.Post([this, ok] {
      writing_ = false;
      if (ok) {
        Pump();
      } else {
        End();
      }
    });
  }
  void OnDone(const grpc::Status& status) override {
    owner_.stub_.OnEnd(rpc::FromGrpc(status), stub_);
    owner_.loop_.Post([this] { owner_.Forget(request_.stream_id()); });
  }

 private:
  void Send(std::string data) {
    message_.Clear();
    message_.set_stream_id(request_.stream_id());
    message_.set_offset(offset_);
    message_.set_dropped(std::exchange(dropped_, 0));
    offset_ += data.size();
    message_.set_data(std::move(data));
    writing_ = true;
    StartWrite(&message_);
  }

  // Starts nothing more. A hold is removed once.
  void End() {
    if (std::exchange(ended_, true)) return;
    owner_.loop_.Cancel(timer_);
    StartWritesDone();
    RemoveHold();
  }

  void Fail(const std::string& error) {
    if (failed_) return End();
    failed_ = true;
    message_.Clear();
    message_.set_stream_id(request_.stream_id());
    message_.set_error(EscapeBytes(error));
    message_.set_gone(gone_);
    writing_ = true;
    StartWrite(&message_);
  }

  // Sends the next piece, waits for one, or ends.
  void Pump() {
    if (ended_ || writing_) return;
    if (failed_) return End();
    // Read before the file: output that was written before the rank's end is not missed.
    const bool growing = growing_ && request_.follow();
    if (!file_ && !OpenFile(growing)) return;
    const uint64_t before = offset_;
    offset_ = file_->FirstKept(offset_);
    const uint64_t room = std::min<uint64_t>(chunk_, limit_ - std::min(limit_, offset_));
    absl::StatusOr<std::string> data =
        room == 0 ? std::string() : file_->Read(&offset_, static_cast<size_t>(room));
    if (!data.ok()) return Fail(fmt::format("{}: cannot be read", path_));
    dropped_ += offset_ - before;
    // Bytes may be gone up to the end of the file.
    if (!data->empty() || (dropped_ > 0 && !growing)) {
      Send(*std::move(data));
    } else if (growing) {
      LookAgain();
    } else {
      End();
    }
  }

  bool OpenFile(bool growing) {
    absl::StatusOr<LogFile> file = LogFile::Open(path_);
    if (!file.ok()) {
      std::error_code ignored;
      if (absl::IsNotFound(file.status()) && growing) {
        LookAgain();
      } else if (absl::IsNotFound(file.status()) &&
                 std::filesystem::is_directory(std::filesystem::path(path_).parent_path(),
                                               ignored)) {
        // A rank that was never started said nothing.
        End();
      } else {
        gone_ = absl::IsNotFound(file.status());
        Fail(gone_ ? WhyNoLogs(std::filesystem::path(path_).parent_path().string())
                   : std::string(file.status().message()));
      }
      return false;
    }
    file_ = *std::move(file);
    const uint64_t size = file_->Size();
    // Without follow: only what the file holds now, not what a busy rank adds meanwhile.
    if (!request_.follow()) limit_ = size;
    offset_ = request_.offset();
    if (request_.has_tail_lines() && request_.tail_lines() == 0) {
      offset_ = std::max(offset_, size);
    } else if (request_.tail_lines() > 0) {
      const uint64_t begin = file_->FirstKept(0);
      const uint64_t tail = TailOffset(
          begin, size, request_.tail_lines(),
          [this](uint64_t offset, size_t bytes) { return ReadThroughHoles(offset, bytes); });
      offset_ = std::max(offset_, tail);
    }
    return true;
  }

  std::string ReadThroughHoles(uint64_t offset, size_t size) const {
    std::string out(size, '\0');
    const uint64_t end = offset + size;
    while (offset < end) {
      const absl::StatusOr<std::string> piece = file_->Read(&offset, end - offset);
      if (!piece.ok() || piece->empty() || offset >= end) break;
      const size_t fits = std::min<size_t>(piece->size(), end - offset);
      out.replace(size - (end - offset), fits, *piece, 0, fits);
      offset += fits;
    }
    return out;
  }

  void LookAgain() {
    if (++looks_ % kLooksPerSign == 0) return Send("");
    owner_.loop_.Cancel(timer_);
    timer_ = owner_.loop_.After(kLookAgain, [this] { Pump(); });
  }

  LogUploads& owner_;
  const v1::OpenLog request_;
  const std::string path_;
  const size_t chunk_ =
      request_.chunk_bytes() == 0 ? kChunk : std::min<size_t>(kChunk, request_.chunk_bytes());
  bool growing_;
  std::shared_ptr<v1::SessionService::Stub> stub_;
  grpc::ClientContext context_;
  v1::UploadLogResponse response_;
  v1::UploadLogRequest message_;
  std::optional<LogFile> file_;
  uint64_t offset_ = 0;
  // Right before offset_, and not told yet.
  uint64_t dropped_ = 0;
  uint64_t limit_ = UINT64_MAX;
  int looks_ = 0;
  bool writing_ = false;
  bool failed_ = false;
  bool gone_ = false;
  bool ended_ = false;
  EventLoop::TimerId timer_ = 0;
};

LogUploads::LogUploads(std::shared_ptr<rpc::RenewedChannel> channel)
    : stub_(std::move(channel)), thread_([this] { loop_.Run(); }) {}

LogUploads::~LogUploads() {
  loop_.Post([this] {
    ending_ = true;
    for (const auto& [id, upload] : uploads_) upload->Cancel();
    if (uploads_.empty()) loop_.Stop();
  });
  thread_.join();
}

void LogUploads::Open(const v1::OpenLog& request, std::string path, bool growing) {
  loop_.Post([this, request, path = std::move(path), growing]() mutable {
    if (ending_ || uploads_.contains(request.stream_id())) return;
    if (uploads_.size() >= kMostStreams) {
      log::Warning("too many log streams: refused one", {{"streams", uploads_.size()}});
      return;
    }
    auto upload = std::make_unique<LogUpload>(*this, request, std::move(path), growing);
    LogUpload& begun = *upload;
    uploads_.emplace(request.stream_id(), std::move(upload));
    begun.Begin();
  });
}

void LogUploads::Close(const std::string& stream_id) {
  loop_.Post([this, stream_id] {
    const auto upload = uploads_.find(stream_id);
    if (upload != uploads_.end()) upload->second->Cancel();
  });
}

void LogUploads::RankEnded(const std::string& job_id, uint64_t generation, int rank) {
  loop_.Post([this, job_id, generation, rank] {
    for (const auto& [id, upload] : uploads_) upload->OnRankEnded(job_id, generation, rank);
  });
}

void LogUploads::Forget(const std::string& stream_id) {
  uploads_.erase(stream_id);
  if (ending_ && uploads_.empty()) loop_.Stop();
}

}  // namespace meshrun::worker
