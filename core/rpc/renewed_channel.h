// A channel that is made anew when its server refuses the certificate of its connection, when its
// connection stands still, and when another coordinator is the one to speak to. gRPC keeps a
// connection for as long as it can, and the certificate with it: the server takes another
// certificate only over another connection.
//
// Threads: any.
#pragma once

#include <grpcpp/channel.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/clock.h"
#include "core/mutex.h"
#include "core/rpc/leader_choice.h"

namespace meshrun::rpc {

class RenewedChannel : public std::enable_shared_from_this<RenewedChannel> {
 public:
  // Shortest time between two attempts to make a new channel to the same address.
  static constexpr std::chrono::seconds kLeastDistance{1};

  // Reads certificates.
  using Make =
      std::function<absl::StatusOr<std::shared_ptr<grpc::Channel>>(const std::string& address)>;
  // Runs work that a file system may hold up. Called by every method.
  using Run = std::function<void(std::function<void()>)>;

  struct Options {
    // May be shared with other channels.
    std::shared_ptr<LeaderChoice> choice;
    // Whether what comes of this channel counts for the choice.
    bool chooses = true;
    Make make;
    Run run;
    // Outlives the channel.
    const Clock& clock = Clock::Real();
  };
  // The errors of `make`.
  static absl::StatusOr<std::shared_ptr<RenewedChannel>> Create(Options options);

  // To the chosen address, as soon as there is one: until `run` has made it, to the one before.
  // `*address`: where it leads, if not null.
  std::shared_ptr<grpc::Channel> Get(std::string* address = nullptr) MESHRUN_EXCLUDES(mu_);
  // Tells how a call over `used` has ended: it may choose another address, and after
  // UNAUTHENTICATED the following calls get a new connection. Calls under way stay with theirs. If
  // `make` fails, the old channel stays, and the next UNAUTHENTICATED, or Replace, tries again.
  // What a channel of before came to changes nothing.
  void OnEnd(const absl::Status& status, const std::shared_ptr<grpc::Channel>& used)
      MESHRUN_EXCLUDES(mu_);
  // The next calls go over another connection.
  void Replace() MESHRUN_EXCLUDES(mu_);
  // Nothing comes over the connection any more: another one may have more luck, to another address
  // where there is one.
  void Leave() MESHRUN_EXCLUDES(mu_);
  LeaderChoice& choice() const { return *options_.choice; }

 private:
  RenewedChannel(Options options, std::string address, std::shared_ptr<grpc::Channel> channel)
      : options_(std::move(options)), channel_(std::move(channel)), address_(std::move(address)) {}
  // Makes a new channel if another address is chosen.
  void Follow() MESHRUN_EXCLUDES(mu_);
  void Renew(const std::string& address) MESHRUN_EXCLUDES(mu_);

  const Options options_;
  mutable Mutex mu_;
  std::shared_ptr<grpc::Channel> channel_ MESHRUN_GUARDED_BY(mu_);
  // Where channel_ leads.
  std::string address_ MESHRUN_GUARDED_BY(mu_);
  bool renewing_ MESHRUN_GUARDED_BY(mu_) = false;
  std::optional<SteadyNanos> last_ MESHRUN_GUARDED_BY(mu_);
};

// The stub of the channel as it is now. Hold what Get returns until the call has begun, and for
// OnEnd.
template <typename Service>
class StubOf {
 public:
  using Stub = std::shared_ptr<typename Service::Stub>;

  explicit StubOf(std::shared_ptr<RenewedChannel> channel) : channel_(std::move(channel)) {}

  // `*address`: as RenewedChannel::Get.
  Stub Get(std::string* address = nullptr) MESHRUN_EXCLUDES(mu_) {
    std::shared_ptr<grpc::Channel> channel = channel_->Get(address);
    MutexLock lock(mu_);
    if (channel != of_) {
      stub_ = Service::NewStub(channel);
      of_ = std::move(channel);
    }
    return stub_;
  }
  // See RenewedChannel::OnEnd.
  void OnEnd(const absl::Status& status, const Stub& used) MESHRUN_EXCLUDES(mu_) {
    std::shared_ptr<grpc::Channel> channel;
    {
      MutexLock lock(mu_);
      if (used == stub_) channel = of_;
    }
    if (channel != nullptr) channel_->OnEnd(status, channel);
  }
  void Replace() { channel_->Replace(); }
  void Leave() { channel_->Leave(); }
  LeaderChoice& choice() const { return channel_->choice(); }

 private:
  const std::shared_ptr<RenewedChannel> channel_;
  Mutex mu_;
  std::shared_ptr<grpc::Channel> of_ MESHRUN_GUARDED_BY(mu_);
  Stub stub_ MESHRUN_GUARDED_BY(mu_);
};

}  // namespace meshrun::rpc
