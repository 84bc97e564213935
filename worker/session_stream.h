// One stream of a session: what the daemon's loop writes, and what comes over it.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "core/os/boot_time.h"
#include "core/rpc/status_conversion.h"
#include "meshrun/v1/session.grpc.pb.h"
#include "worker/session.h"

namespace meshrun::worker {

// With more messages in the queue the coordinator is not reading: the session is given up, and the
// next Hello repeats everything.
inline constexpr size_t kMostQueued = 4096;

// Owned by the session until OnDone has been posted; the loop's order of tasks makes
// that the last thing that happens to it.
class SessionStream
    : public grpc::ClientBidiReactor<v1::OpenSessionRequest, v1::OpenSessionResponse> {
 public:
  SessionStream(Session& session, EventLoop& loop, rpc::StubOf<v1::SessionService>& stub,
                uint32_t attempt)
      : session_(session), loop_(loop), stub_(stub.Get(&address_)), attempt_(attempt) {}

  void Begin() {
    stub_->async()->OpenSession(&context_, this);
    // This hold lets writes start outside of gRPC's reactions until reading has ended.
    AddHold();
    StartRead(&incoming_);
    StartCall();
  }

  // --- on the loop ---
  void Write(v1::OpenSessionRequest message) {
    if (reading_ended_ || writes_done_) return;
    if (queue_.size() >= kMostQueued) {
      Cancel();
      return;
    }
    queue_.push_back(std::move(message));
    Pump();
  }
  void SayHello(v1::OpenSessionRequest message) {
    hello_ = message.hello();
    Write(std::move(message));
  }
  void Cancel() {
    is_cancelled_ = true;
    context_.TryCancel();
  }
  // Another number's stream, or another of its number, is the session: nobody misses this one.
  void Supersede() {
    is_superseded_ = true;
    Cancel();
  }
  // What check_welcome says of the coordinator that it reached.
  void Refuse(absl::Status why) {
    refused_ = std::move(why);
    Cancel();
  }
  bool is_cancelled() const { return is_cancelled_; }
  bool is_superseded() const { return is_superseded_; }
  const absl::Status& refused() const { return refused_; }
  const rpc::StubOf<v1::SessionService>::Stub& stub() const { return stub_; }
  // Address of the coordinator to which it leads.
  const std::string& address() const { return address_; }
  // Number and attempt.
  std::pair<uint64_t, uint32_t> place() const { return {hello_.session_number(), attempt_}; }
  std::chrono::steady_clock::time_point began() const { return began_; }
  const v1::Hello& hello() const { return hello_; }
  // CLOCK_BOOTTIME.
  std::chrono::nanoseconds hello_sent() const { return hello_sent_; }
  void HalfClose() {
    half_close_ = true;
    Pump();
  }

 private:
  void Pump() {
    if (writing_ || reading_ended_ || writes_done_) return;
    if (!queue_.empty()) {
      writing_ = true;
      StartWrite(&queue_.front());
    } else if (half_close_) {
      writes_done_ = true;
      StartWritesDone();
    }
  }

  // --- gRPC's threads ---
  void OnReadDone(bool ok) override {
    if (ok) {
      loop_.Post([this, message = std::move(incoming_)] { session_.OnMessage(*this, message); });
      incoming_.Clear();
      StartRead(&incoming_);
      return;
    }
    loop_.Post([this] {
      reading_ended_ = true;
      RemoveHold();
    });
  }
  void OnWriteDone(bool ok) override {
    loop_.Post([this, ok] {
      writing_ = false;
      queue_.pop_front();
      if (ok) Pump();
    });
  }
  void OnDone(const grpc::Status& status) override {
    loop_.Post([this, status = rpc::FromGrpc(status)] { session_.OnDone(this, status); });
  }

  Session& session_;
  EventLoop& loop_;
  std::string address_;
  const rpc::StubOf<v1::SessionService>::Stub stub_;
  const uint32_t attempt_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  const std::chrono::nanoseconds hello_sent_ = os::BootTimeNow();
  grpc::ClientContext context_;
  v1::OpenSessionResponse incoming_;
  v1::Hello hello_;
  std::deque<v1::OpenSessionRequest> queue_;
  bool writing_ = false;
  bool reading_ended_ = false;
  bool half_close_ = false;
  bool writes_done_ = false;
  bool is_cancelled_ = false;
  bool is_superseded_ = false;
  absl::Status refused_;
};

}  // namespace meshrun::worker
