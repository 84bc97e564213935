// A call of a service within this process: a thread waits for what gRPC would send over the wire.
//
// gRPC hands each call to a reactor by an interface (grpc::ServerCallbackUnary and
// ServerCallbackWriter). The two classes here implement them, so that the HTTP API runs the
// services' own reactors. They keep gRPC's promises to a reactor: one write at a time, no reaction
// after OnDone, OnDone after all else.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "core/mutex.h"
#include "core/rpc/status_conversion.h"

namespace meshrun::coordinator {

using Deadline = std::chrono::steady_clock::time_point;

// How long a thread waits for a call: until then, or until its answer has nowhere to go
// (http::Request::gone; may be null).
struct Patience {
  Deadline until;
  std::function<bool()> gone = nullptr;
};

// Waits in steps: `wait` returns at the time that it is given, or true before. DEADLINE_EXCEEDED
// with `late`; UNAVAILABLE: gone.
absl::Status AwaitPatiently(const Patience& patience, const char* late,
                            const std::function<bool(Deadline step)>& wait);

// What both have: the end of the call, and of its reactor. Lives until both its holder and the
// reactor are done, which may be within any call of it: each holds it until it returns. `Call`: the
// interface; `Reactor`: what it is bound to.
template <typename Call, typename Reactor>
class LocalCall : public Call, public std::enable_shared_from_this<LocalCall<Call, Reactor>> {
 public:
  // Ends the call for a caller that went away. Nothing happens where it has ended.
  void Cancel() {
    React([](Reactor& reactor) { reactor.OnCancel(); });
  }

 protected:
  // Once.
  void Run(Reactor* reactor) {
    self_ = this->shared_from_this();
    reactor_ = reactor;
    // The reactor may have finished already, and is told so under its own lock.
    React([this](Reactor& bound) { this->BindReactor(&bound); });
  }

  // Runs a reaction, unless the call is over.
  template <typename Reaction>
  void React(Reaction reaction) {
    const auto alive = this->shared_from_this();
    {
      MutexLock lock(mu_);
      if (done_) return;
      ++reacting_;
    }
    reaction(*reactor_);
    {
      MutexLock lock(mu_);
      --reacting_;
    }
    EndReactor();
  }

  void Finish(grpc::Status status) override {
    const auto alive = this->shared_from_this();
    {
      MutexLock lock(mu_);
      end_ = rpc::FromGrpc(status);
      changed_.NotifyAll();
    }
    EndReactor();
  }
  void SendInitialMetadata() override {}

  // Until something changes or the time comes; false: it has come.
  bool Await(Deadline until) MESHRUN_REQUIRES(mu_) { return changed_.WaitUntil(mu_, until); }

  Mutex mu_;
  CondVar changed_;
  // Set by Finish.
  std::optional<absl::Status> end_ MESHRUN_GUARDED_BY(mu_);

 private:
  grpc::internal::ServerReactor* reactor() override { return reactor_; }
  void CallOnDone() override {}

  void EndReactor() {
    std::shared_ptr<LocalCall> self;
    {
      MutexLock lock(mu_);
      if (!end_ || reacting_ > 0 || done_) return;
      done_ = true;
      self = std::move(self_);
    }
    reactor_->OnDone();
  }

  Reactor* reactor_ = nullptr;
  // While the reactor lives.
  std::shared_ptr<LocalCall> self_;
  int reacting_ MESHRUN_GUARDED_BY(mu_) = 0;
  bool done_ MESHRUN_GUARDED_BY(mu_) = false;
};

// A call with one answer. Made by std::make_shared.
class LocalUnary final : public LocalCall<grpc::ServerCallbackUnary, grpc::ServerUnaryReactor> {
 public:
  // `keeps`: what the reactor refers to, its request and its response.
  void Begin(grpc::ServerUnaryReactor* reactor, std::shared_ptr<const void> keeps) {
    keeps_ = std::move(keeps);
    Run(reactor);
  }
  // The call's status; absent: it has not ended by then. The call goes on.
  std::optional<absl::Status> Wait(Deadline until) {
    MutexLock lock(mu_);
    while (!end_ && Await(until)) {
    }
    return end_;
  }

 private:
  std::shared_ptr<const void> keeps_;
};

// A stream of answers, of any type.
class LocalStream {
 public:
  virtual ~LocalStream() = default;
  enum class Taken { kMessage, kNothing, kEnd };
  // Hands the next answer to `take`, for which it waits so long. After kEnd `status` is the call's.
  virtual Taken Take(Deadline until,
                     const std::function<void(const google::protobuf::Message&)>& take) = 0;
  virtual absl::Status status() = 0;
  // The reader goes away.
  virtual void Leave() = 0;
};

template <typename Response>
class LocalStreamOf final
    : public LocalCall<grpc::ServerCallbackWriter<Response>, grpc::ServerWriteReactor<Response>>,
      public LocalStream {
 public:
  static std::shared_ptr<LocalStream> Begin(grpc::ServerWriteReactor<Response>* reactor) {
    auto stream = std::make_shared<LocalStreamOf>();
    stream->Run(reactor);
    return stream;
  }

  Taken Take(Deadline until,
             const std::function<void(const google::protobuf::Message&)>& take) override {
    const Response* message = nullptr;
    {
      MutexLock lock(this->mu_);
      while (message_ == nullptr && !this->end_) {
        if (!this->Await(until)) return Taken::kNothing;
      }
      message = std::exchange(message_, nullptr);
      if (message == nullptr) return Taken::kEnd;
    }
    // It is the reactor's until the reactor hears that it was written.
    take(*message);
    this->React([](auto& reactor) { reactor.OnWriteDone(true); });
    return Taken::kMessage;
  }
  absl::Status status() override {
    MutexLock lock(this->mu_);
    return this->end_.value_or(absl::OkStatus());
  }
  void Leave() override {
    {
      MutexLock lock(this->mu_);
      left_ = true;
    }
    this->Cancel();
    FailWrites();
  }

 private:
  void Write(const Response* message, grpc::WriteOptions) override {
    const auto alive = this->shared_from_this();
    {
      MutexLock lock(this->mu_);
      message_ = message;
      this->changed_.NotifyAll();
      if (!left_) return;
    }
    FailWrites();
  }
  // None of the services' reactors does.
  void WriteAndFinish(const Response* message, grpc::WriteOptions options,
                      grpc::Status status) override {
    Write(message, options);
    this->Finish(std::move(status));
  }
  // Not by recursion: a reaction begins the next write, and there may be thousands.
  void FailWrites() {
    // The last reaction may end the call.
    const auto alive = this->shared_from_this();
    while (true) {
      {
        MutexLock lock(this->mu_);
        if (failing_ || message_ == nullptr) return;
        message_ = nullptr;
        failing_ = true;
      }
      this->React([](auto& reactor) { reactor.OnWriteDone(false); });
      MutexLock lock(this->mu_);
      failing_ = false;
    }
  }

  const Response* message_ MESHRUN_GUARDED_BY(this->mu_) = nullptr;
  bool failing_ MESHRUN_GUARDED_BY(this->mu_) = false;
  bool left_ MESHRUN_GUARDED_BY(this->mu_) = false;
};

}  // namespace meshrun::coordinator
