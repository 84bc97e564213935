#include "worker/logs/log_uploads.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>
#include <utility>

#include "core/log.h"
#include "worker/logs/log_file.h"
#include "worker/logs/picture_upload.h"
#include "worker/logs/retention.h"
#include "worker/logs/tail.h"
#include "worker/logs/upload.h"

namespace meshrun::worker {
namespace {

constexpr std::chrono::milliseconds kLookAgain(50);
// A reader that left while its session was broken is noticed only by sending: something is sent
// every 5 s.
constexpr int kLooksPerSign = 100;
constexpr size_t kChunk = 1 << 16;

}  // namespace

// A rank's output, or what is left of it.
class LogUpload : public Upload {
 public:
  LogUpload(LogUploads& owner, const v1::OpenLog& request, std::string path, bool growing)
      : Upload(owner, request.stream_id()),
        request_(request),
        path_(std::move(path)),
        growing_(growing) {}

  void OnRankEnded(const std::string& job_id, uint64_t generation, int rank) override {
    if (request_.job_id() != job_id || request_.generation() != generation ||
        request_.rank() != rank)
      return;
    growing_ = false;
    Pump();
  }

 private:
  void Send(std::string data) {
    v1::UploadLogRequest& message = NewMessage();
    message.set_offset(offset_);
    message.set_dropped(std::exchange(dropped_, 0));
    offset_ += data.size();
    message.set_data(std::move(data));
    Write();
  }

  void Next() override {
    // Read before the file: output that was written before the rank's end is not missed.
    const bool growing = growing_ && request_.follow();
    if (!file_ && !OpenFile(growing)) return;
    const uint64_t before = offset_;
    offset_ = file_->FirstKept(offset_);
    const uint64_t room = std::min<uint64_t>(chunk_, limit_ - std::min(limit_, offset_));
    absl::StatusOr<std::string> data =
        room == 0 ? std::string() : file_->Read(&offset_, static_cast<size_t>(room));
    if (!data.ok()) return Fail(fmt::format("{}: cannot be read", path_), /*gone=*/false);
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
        const bool gone = absl::IsNotFound(file.status());
        Fail(gone ? WhyNoLogs(std::filesystem::path(path_).parent_path().string())
                  : std::string(file.status().message()),
             gone);
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
    PumpAfter(kLookAgain);
  }

  const v1::OpenLog request_;
  const std::string path_;
  const size_t chunk_ =
      request_.chunk_bytes() == 0 ? kChunk : std::min<size_t>(kChunk, request_.chunk_bytes());
  bool growing_;
  std::optional<LogFile> file_;
  uint64_t offset_ = 0;
  // Right before offset_, and not told yet.
  uint64_t dropped_ = 0;
  uint64_t limit_ = UINT64_MAX;
  int looks_ = 0;
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
  Start(request.stream_id(), [this, request, path = std::move(path), growing] {
    return std::make_unique<LogUpload>(*this, request, path, growing);
  });
}

void LogUploads::OpenPictures(const v1::OpenPictures& request, std::vector<PicturePlace> places) {
  Start(request.stream_id(), [this, request, places = std::move(places)] {
    return std::make_unique<PictureUpload>(*this, request, places);
  });
}

void LogUploads::Start(const std::string& stream_id,
                       std::function<std::unique_ptr<Upload>()> make) {
  loop_.Post([this, stream_id, make = std::move(make)] {
    if (ending_ || uploads_.contains(stream_id)) return;
    if (uploads_.size() >= kMostStreams) {
      log::Warning("too many log streams: refused one", {{"streams", uploads_.size()}});
      return;
    }
    const auto begun = uploads_.emplace(stream_id, make()).first;
    begun->second->Begin();
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
