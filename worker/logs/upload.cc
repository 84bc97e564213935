#include "worker/logs/upload.h"

#include <utility>

#include "core/rpc/status_conversion.h"
#include "core/utf8.h"

namespace meshrun::worker {

void Upload::Begin() {
  stub_ = owner_.stub_.Get();
  stub_->async()->UploadLog(&context_, &response_, this);
  AddHold();
  StartCall();
  // The first message says which stream this is, also where there is nothing to send yet.
  NewMessage();
  Write();
}

void Upload::Cancel() {
  context_.TryCancel();
  if (!writing_) End();
}

void Upload::OnWriteDone(bool ok) {
  owner_.loop_.Post([this, ok] {
    writing_ = false;
    if (ok) {
      Pump();
    } else {
      End();
    }
  });
}

void Upload::OnDone(const grpc::Status& status) {
  owner_.stub_.OnEnd(rpc::FromGrpc(status), stub_);
  owner_.loop_.Post([this] { owner_.Forget(stream_id_); });
}

void Upload::Pump() {
  if (ended_ || writing_) return;
  if (failed_) return End();
  Next();
}

v1::UploadLogRequest& Upload::NewMessage() {
  message_.Clear();
  message_.set_stream_id(stream_id_);
  return message_;
}

void Upload::Write() {
  writing_ = true;
  StartWrite(&message_);
}

void Upload::End() {
  // A hold is removed once.
  if (std::exchange(ended_, true)) return;
  owner_.loop_.Cancel(timer_);
  StartWritesDone();
  RemoveHold();
}

void Upload::Fail(const std::string& error, bool gone) {
  if (failed_) return End();
  failed_ = true;
  v1::UploadLogRequest& message = NewMessage();
  message.set_error(EscapeBytes(error));
  message.set_gone(gone);
  Write();
}

void Upload::PumpAfter(std::chrono::milliseconds wait) {
  owner_.loop_.Cancel(timer_);
  timer_ = owner_.loop_.After(wait, [this] { Pump(); });
}

}  // namespace meshrun::worker
