// A channel that is made anew when its server refuses the certificate of its connection, or when
// its connection stands still. gRPC keeps a connection for as long as it can, and the certificate
// with it: the server takes another certificate only over another connection.
//
// Threads: any.
#pragma once

#include <grpcpp/channel.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/clock.h"
#include "core/mutex.h"

namespace meshrun::rpc {

class RenewedChannel : public std::enable_shared_from_this<RenewedChannel> {
 public:
  // Shortest time between two attempts to make a new channel.
  static constexpr std::chrono::seconds kLeastDistance{1};

  // Reads certificates.
  using Make = std::function<absl::StatusOr<std::shared_ptr<grpc::Channel>>()>;
  // Runs work that a file system may hold up. Called by OnEnd and Replace.
  using Run = std::function<void(std::function<void()>)>;

  // The errors of `make`. `clock` outlives the channel.
  static absl::StatusOr<std::shared_ptr<RenewedChannel>> Create(Make make, Run run,
                                                                const Clock& clock = Clock::Real());

  std::shared_ptr<grpc::Channel> Get() const MESHRUN_EXCLUDES(mu_);
  // Tells how a call has ended. After UNAUTHENTICATED the following calls get a new connection.
  // Calls under way stay with theirs. If `make` fails, the old channel stays, and the next
  // UNAUTHENTICATED, or Replace, tries again.
  void OnEnd(const absl::Status& status) MESHRUN_EXCLUDES(mu_);
  // The same for a connection over which nothing comes any more: another one may have more luck.
  void Replace() MESHRUN_EXCLUDES(mu_);

 private:
  RenewedChannel(Make make, Run run, const Clock& clock, std::shared_ptr<grpc::Channel> channel)
      : make_(std::move(make)), run_(std::move(run)), clock_(clock), channel_(std::move(channel)) {}
  void Renew() MESHRUN_EXCLUDES(mu_);

  const Make make_;
  const Run run_;
  const Clock& clock_;
  mutable Mutex mu_;
  std::shared_ptr<grpc::Channel> channel_ MESHRUN_GUARDED_BY(mu_);
  bool renewing_ MESHRUN_GUARDED_BY(mu_) = false;
  std::optional<SteadyNanos> last_ MESHRUN_GUARDED_BY(mu_);
};

// The stub of the channel as it is now. Hold what Get returns until the call has begun.
template <typename Service>
class StubOf {
 public:
  explicit StubOf(std::shared_ptr<RenewedChannel> channel) : channel_(std::move(channel)) {}

  std::shared_ptr<typename Service::Stub> Get() MESHRUN_EXCLUDES(mu_) {
    std::shared_ptr<grpc::Channel> channel = channel_->Get();
    MutexLock lock(mu_);
    if (channel != of_) {
      stub_ = Service::NewStub(channel);
      of_ = std::move(channel);
    }
    return stub_;
  }
  void OnEnd(const absl::Status& status) { channel_->OnEnd(status); }
  void Replace() { channel_->Replace(); }

 private:
  const std::shared_ptr<RenewedChannel> channel_;
  Mutex mu_;
  std::shared_ptr<grpc::Channel> of_ MESHRUN_GUARDED_BY(mu_);
  std::shared_ptr<typename Service::Stub> stub_ MESHRUN_GUARDED_BY(mu_);
};

}  // namespace meshrun::rpc
