#include "coordinator/services/log_relay.h"

#include <utility>

#include "coordinator/services/log_reader.h"

namespace meshrun::coordinator {

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
  const auto reader = std::make_shared<ReaderOf<LogKind>>(shell_, *this);
  reader->Begin(sender, request);
  return reader.get();
}

grpc::ServerWriteReactor<v1::ReadPicturesResponse>* LogRelay::Read(
    const Sender& sender, const v1::ReadPicturesRequest& request) {
  const auto reader = std::make_shared<ReaderOf<PictureKind>>(shell_, *this);
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
  // No upload looks for one any more.
  std::map<std::string, std::shared_ptr<LogReader>> last;
  MutexLock lock(mu_);
  last.swap(readers_);
}

bool LogRelay::AwaitReaders(std::chrono::milliseconds timeout) {
  const auto until = std::chrono::steady_clock::now() + timeout;
  MutexLock lock(alive_mu_);
  while (alive_ > 0 && left_.WaitUntil(alive_mu_, until)) {
  }
  return alive_ == 0;
}

}  // namespace meshrun::coordinator
