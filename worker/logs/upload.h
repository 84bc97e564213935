// One UploadLog call: a stream that the coordinator asked for. What it sends, its kind decides.
// Everything runs on the loop of LogUploads, except gRPC's reactions; OnDone's task is the last one
// of an upload.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "meshrun/v1/session.grpc.pb.h"
#include "worker/logs/log_uploads.h"

namespace meshrun::worker {

class Upload : public grpc::ClientWriteReactor<v1::UploadLogRequest> {
 public:
  Upload(LogUploads& owner, std::string stream_id)
      : owner_(owner), stream_id_(std::move(stream_id)) {}

  void Begin();
  // While a stream is silent there is no write that could fail.
  void Cancel();
  // The rank has ended: its files no longer grow.
  virtual void OnRankEnded(const std::string&, uint64_t, int) {}

  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

 protected:
  // Sends the next piece, waits for one, or ends. Not called while a message is being written,
  // after the end, or after Fail.
  virtual void Next() = 0;

  // Next, where it may be called.
  void Pump();
  // A message to fill in and Write; one at a time.
  v1::UploadLogRequest& NewMessage();
  void Write();
  // Starts nothing more.
  void End();
  // Sends the reason, and ends. `gone`: to ask again does not help.
  void Fail(const std::string& error, bool gone);
  // Calls Pump after a while.
  void PumpAfter(std::chrono::milliseconds wait);

 private:
  LogUploads& owner_;
  const std::string stream_id_;
  std::shared_ptr<v1::SessionService::Stub> stub_;
  grpc::ClientContext context_;
  v1::UploadLogResponse response_;
  v1::UploadLogRequest message_;
  bool writing_ = false;
  bool failed_ = false;
  bool ended_ = false;
  EventLoop::TimerId timer_ = 0;
};

}  // namespace meshrun::worker
