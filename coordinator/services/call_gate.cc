#include "coordinator/services/call_gate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/rpc/status_conversion.h"

namespace meshrun::coordinator {
namespace {

constexpr std::chrono::minutes kForget(1);
constexpr std::chrono::milliseconds kBetweenFloods(100);
// In so long half of what the largest request had is forgotten.
constexpr double kHalfLifeSeconds = 5;
// Nobody knows when one of the calls under way ends.
constexpr double kOneToEnd = 0.05;

bool IsNode(const rpc::Identity& caller) { return !caller.nodes.empty(); }

// `wait`: seconds until such a call may be let in.
absl::Status TooMany(const rpc::Identity& caller, std::string_view what, double wait) {
  return rpc::NotRead(fmt::format("{} {}", CallGate::NameOf(caller), what),
                      std::chrono::milliseconds(static_cast<int64_t>(std::ceil(wait * 1000))));
}

}  // namespace

bool CallGate::SpeaksForAll(const rpc::Identity& caller) {
  return std::find(caller.nodes.begin(), caller.nodes.end(), "*") != caller.nodes.end();
}

size_t CallGate::ShareOf(const rpc::Identity& caller) const {
  return IsNode(caller) ? limits_.node_share : 1;
}

std::string CallGate::NameOf(const rpc::Identity& caller) {
  return fmt::format("{} {}", IsNode(caller) ? "node" : "user", caller.name);
}

CallGate::Holder& CallGate::Find(const rpc::Identity& caller, SteadyNanos now) {
  const auto [found, is_new] = holders_.try_emplace(NameOf(caller));
  Holder& holder = found->second;
  const auto share = static_cast<double>(ShareOf(caller));
  if (is_new) {
    holder.calls.left = limits_.calls_at_once;
    holder.bytes.left = limits_.bytes_at_once * share;
    holder.largest = limits_.largest;
    holder.refusals.left = limits_.refusals_at_once;
    holder.as_of = now;
  }
  const double seconds = std::chrono::duration<double>(now - holder.as_of).count();
  holder.calls.Fill(seconds, limits_.calls_per_second, limits_.calls_at_once);
  holder.bytes.Fill(seconds, limits_.bytes_per_second * share, limits_.bytes_at_once * share);
  holder.refusals.Fill(seconds, limits_.refusals_per_second, limits_.refusals_at_once);
  holder.largest *= std::exp2(-seconds / kHalfLifeSeconds);
  holder.as_of = now;
  while (!holder.coming.empty() && now - holder.coming.front() > limits_.request_time) {
    holder.coming.pop_front();
  }
  return holder;
}

size_t CallGate::Most(const Holder& holder) const {
  const double fit = limits_.bytes / std::max(holder.largest, 1.0);
  return static_cast<size_t>(
      std::clamp(fit, static_cast<double>(limits_.least), static_cast<double>(limits_.most)));
}

absl::Status CallGate::CheckRate(const rpc::Identity& caller, const Holder& holder) const {
  if (IsNode(caller) || holder.calls.left >= 1) return absl::OkStatus();
  return TooMany(caller,
                 fmt::format("makes more than {:.0f} calls a second", limits_.calls_per_second),
                 (1 - holder.calls.left) / limits_.calls_per_second);
}

absl::Status CallGate::Check(const rpc::Identity& caller, const Holder& holder) const {
  const size_t under_way = holder.coming.size() + holder.waiting;
  if (under_way >= Most(holder) * ShareOf(caller)) {
    return TooMany(caller, fmt::format("has {} calls under way already", under_way), kOneToEnd);
  }
  if (holder.bytes.left < 0) {
    const double rate = limits_.bytes_per_second * static_cast<double>(ShareOf(caller));
    return TooMany(caller, "sends too many bytes a second", -holder.bytes.left / rate);
  }
  return CheckRate(caller, holder);
}

bool CallGate::OnRefusal(Holder& holder, size_t share, SteadyNanos now) {
  holder.refusals.left = std::max(holder.refusals.left - 1 / static_cast<double>(share), -1.0);
  if (holder.refusals.left >= 0 || now - holder.flooded_at < kBetweenFloods) return false;
  holder.flooded_at = now;
  return true;
}

absl::Status CallGate::Take(const rpc::Identity& caller, bool begins, absl::Status denied) {
  if (SpeaksForAll(caller)) return denied;
  const SteadyNanos now = clock_.SteadyNow();
  absl::Status status = std::move(denied);
  bool floods = false;
  {
    MutexLock lock(mu_);
    Forget(now);
    Holder& holder = Find(caller, now);
    if (status.ok()) status = begins ? Check(caller, holder) : CheckRate(caller, holder);
    if (status.ok()) {
      holder.calls.left -= 1;
      if (begins) holder.coming.push_back(now);
    } else {
      floods = OnRefusal(holder, ShareOf(caller), now);
    }
  }
  if (floods && on_flood_ != nullptr) on_flood_(NameOf(caller));
  return status;
}

absl::Status CallGate::Admit(const rpc::Identity& caller) {
  return Take(caller, /*begins=*/true, absl::OkStatus());
}

absl::Status CallGate::AdmitUnseen(const rpc::Identity& caller) {
  return Take(caller, /*begins=*/false, absl::OkStatus());
}

void CallGate::OnDenied(const rpc::Identity& caller) {
  Take(caller, /*begins=*/false, absl::PermissionDeniedError("")).IgnoreError();
}

void CallGate::OnRequest(const rpc::Identity& caller, size_t bytes) {
  if (SpeaksForAll(caller)) return;
  const SteadyNanos now = clock_.SteadyNow();
  MutexLock lock(mu_);
  Holder& holder = Find(caller, now);
  // The newest: those whose requests never come stay, and grow old.
  if (!holder.coming.empty()) holder.coming.pop_back();
  // One second of its rate is the most that it can owe.
  const double most_debt = limits_.bytes_per_second * static_cast<double>(ShareOf(caller));
  holder.bytes.left = std::max(holder.bytes.left - static_cast<double>(bytes), -most_debt);
  holder.largest = std::max(static_cast<double>(bytes), holder.largest);
}

void CallGate::OnCall(const rpc::Identity& caller) {
  if (IsNode(caller)) return;
  MutexLock lock(mu_);
  ++Find(caller, clock_.SteadyNow()).waiting;
}

void CallGate::OnAnswer(const rpc::Identity& caller, size_t bytes) {
  if (IsNode(caller)) return;
  MutexLock lock(mu_);
  Holder& holder = Find(caller, clock_.SteadyNow());
  --holder.waiting;
  holder.largest = std::max(static_cast<double>(bytes), holder.largest);
}

void CallGate::Forget(SteadyNanos now) {
  if (now - forgotten_at_ < kForget) return;
  forgotten_at_ = now;
  std::erase_if(holders_, [&](const auto& entry) {
    const Holder& holder = entry.second;
    return holder.waiting == 0 && holder.coming.empty() && now - holder.as_of > kForget;
  });
}

}  // namespace meshrun::coordinator
