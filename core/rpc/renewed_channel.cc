#include "core/rpc/renewed_channel.h"

#include "core/status.h"

namespace meshrun::rpc {

absl::StatusOr<std::shared_ptr<RenewedChannel>> RenewedChannel::Create(Options options) {
  std::string address = options.choice->address();
  MESHRUN_ASSIGN_OR_RETURN(auto channel, options.make(address));
  return std::shared_ptr<RenewedChannel>(
      new RenewedChannel(std::move(options), std::move(address), std::move(channel)));
}

std::shared_ptr<grpc::Channel> RenewedChannel::Get(std::string* address) {
  // Another channel of the process may have found the leader.
  Follow();
  MutexLock lock(mu_);
  if (address != nullptr) *address = address_;
  return channel_;
}

void RenewedChannel::OnEnd(const absl::Status& status, const std::shared_ptr<grpc::Channel>& used) {
  std::string address;
  {
    MutexLock lock(mu_);
    if (renewing_ || used != channel_) return;
    address = address_;
  }
  if (absl::IsUnauthenticated(status)) return Replace();
  if (!options_.chooses) return;
  choice().OnEnd(address, status);
  Follow();
}

void RenewedChannel::Follow() {
  const std::string address = choice().address();
  {
    MutexLock lock(mu_);
    if (renewing_ || address == address_) return;
    renewing_ = true;
  }
  options_.run([me = shared_from_this(), address] { me->Renew(address); });
}

void RenewedChannel::Replace() {
  std::string address;
  {
    MutexLock lock(mu_);
    const SteadyNanos now = options_.clock.SteadyNow();
    if (renewing_ || (last_ && now - *last_ < kLeastDistance)) return;
    renewing_ = true;
    last_ = now;
    address = address_;
  }
  options_.run([me = shared_from_this(), address] { me->Renew(address); });
}

void RenewedChannel::Leave() {
  if (!choice().HasOthers()) return Replace();
  std::string address;
  {
    MutexLock lock(mu_);
    address = address_;
  }
  if (options_.chooses) choice().OnUnreached(address);
  Follow();
}

void RenewedChannel::Renew(const std::string& address) {
  auto channel = options_.make(address);
  bool moved = false;
  {
    // The old channel ends outside of the lock.
    MutexLock lock(mu_);
    renewing_ = false;
    moved = address != address_;
    if (channel.ok()) {
      channel_.swap(*channel);
      address_ = address;
    }
  }
  // A named leader, say, to which only TLS leads.
  if (!channel.ok() && moved && options_.chooses) choice().OnUnreached(address);
}

}  // namespace meshrun::rpc
