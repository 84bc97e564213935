#include "core/rpc/renewed_channel.h"

#include "core/status.h"

namespace meshrun::rpc {

absl::StatusOr<std::shared_ptr<RenewedChannel>> RenewedChannel::Create(Make make, Run run,
                                                                       const Clock& clock) {
  MESHRUN_ASSIGN_OR_RETURN(auto channel, make());
  return std::shared_ptr<RenewedChannel>(
      new RenewedChannel(std::move(make), std::move(run), clock, std::move(channel)));
}

std::shared_ptr<grpc::Channel> RenewedChannel::Get() const {
  MutexLock lock(mu_);
  return channel_;
}

void RenewedChannel::OnEnd(const absl::Status& status) {
  if (absl::IsUnauthenticated(status)) Replace();
}

void RenewedChannel::Replace() {
  {
    MutexLock lock(mu_);
    const SteadyNanos now = clock_.SteadyNow();
    if (renewing_ || (last_ && now - *last_ < kLeastDistance)) return;
    renewing_ = true;
    last_ = now;
  }
  run_([me = shared_from_this()] { me->Renew(); });
}

void RenewedChannel::Renew() {
  auto channel = make_();
  // The old channel ends outside of the lock.
  MutexLock lock(mu_);
  renewing_ = false;
  if (channel.ok()) channel_.swap(*channel);
}

}  // namespace meshrun::rpc
