#include "core/rpc/leader_choice.h"

#include <algorithm>
#include <utility>

#include "core/error_detail.h"
#include "core/rpc/status_conversion.h"

namespace meshrun::rpc {

std::vector<std::string> SplitAddresses(std::string_view text) {
  const std::string_view separator = text.starts_with("unix:") ? ",unix:" : ",";
  std::vector<std::string> addresses;
  while (true) {
    const size_t end = text.find(separator);
    std::string address(text.substr(0, end));
    if (std::find(addresses.begin(), addresses.end(), address) == addresses.end()) {
      addresses.push_back(std::move(address));
    }
    if (end == std::string_view::npos) return addresses;
    text.remove_prefix(end + 1);
  }
}

std::string JoinAddresses(const std::vector<std::string>& addresses) {
  std::string text;
  for (const std::string& address : addresses) text += (text.empty() ? "" : ", ") + address;
  return text;
}

LeaderChoice::LeaderChoice(std::vector<std::string> addresses, const Clock& clock)
    : given_(std::move(addresses)), clock_(clock) {
  for (const std::string& address : given_) places_.push_back({.address = address});
}

std::string LeaderChoice::address() const {
  MutexLock lock(mu_);
  return places_[chosen_].address;
}

SteadyNanos LeaderChoice::Wait() const {
  MutexLock lock(mu_);
  return std::max(places_[chosen_].free_at - clock_.SteadyNow(), SteadyNanos(0));
}

bool LeaderChoice::HasOthers() const {
  MutexLock lock(mu_);
  return places_.size() > 1;
}

void LeaderChoice::OnLeads(const std::string& address) {
  MutexLock lock(mu_);
  Place* const place = Find(address);
  if (place == nullptr) return;
  place->unreached = 0;
  place->free_at = SteadyNanos(0);
  chosen_ = place - places_.data();
  named_ = address;
}

bool LeaderChoice::MovesOn(const absl::Status& status) {
  if (!absl::IsUnavailable(status)) return false;
  const v1::ErrorDetail detail = DetailOf(status);
  const bool reached = detail.origin() != v1::ERROR_ORIGIN_UNSPECIFIED;
  return !reached || detail.standby() || !detail.leader().empty();
}

void LeaderChoice::OnEnd(const std::string& address, const absl::Status& status) {
  const v1::ErrorDetail detail = DetailOf(status);
  if (absl::IsUnavailable(status) && detail.origin() == v1::ERROR_ORIGIN_UNSPECIFIED) {
    return OnUnreached(address);
  }
  MutexLock lock(mu_);
  Place* const place = Find(address);
  if (place == nullptr) return;
  place->unreached = 0;
  if (!MovesOn(status)) return;
  place->free_at = clock_.SteadyNow() + kLeastDistance;
  if (!detail.leader().empty() && detail.leader() != address) Remember(detail.leader(), address);
  // Its elements may have moved.
  Leave(*Find(address));
}

void LeaderChoice::Remember(const std::string& leader, const std::string& by) {
  named_ = leader;
  if (Find(leader) != nullptr) return;
  const std::string chosen = places_[chosen_].address;
  const auto is_idle = [&](const Place& place) {
    return place.address != chosen && place.address != by;
  };
  const auto named = places_.begin() + static_cast<ptrdiff_t>(given_.size());
  places_.erase(std::remove_if(named, places_.end(), is_idle), places_.end());
  chosen_ = Find(chosen) - places_.data();
  places_.push_back({.address = leader});
}

void LeaderChoice::OnUnreached(const std::string& address) {
  MutexLock lock(mu_);
  Place* const place = Find(address);
  if (place == nullptr) return;
  // Calls that end together are one attempt.
  if (place != &places_[chosen_] && clock_.SteadyNow() < place->free_at) return;
  const SteadyNanos distance = std::min<SteadyNanos>(
      SteadyNanos(kLeastDistance) * (1 << std::min(place->unreached++, 10)), kLongestDistance);
  place->free_at = clock_.SteadyNow() + distance;
  Leave(*place);
}

LeaderChoice::Place* LeaderChoice::Find(const std::string& address) {
  const auto found = std::find_if(places_.begin(), places_.end(), [&address](const Place& place) {
    return place.address == address;
  });
  return found == places_.end() ? nullptr : &*found;
}

void LeaderChoice::Leave(const Place& place) {
  if (&place != &places_[chosen_]) return;
  const SteadyNanos now = clock_.SteadyNow();
  const auto from = [now](const Place& one) { return std::max(one.free_at, now); };
  // The leader first, then those that follow in the list; of equals the first.
  const Place* best = named_.empty() ? nullptr : Find(named_);
  for (size_t i = 1; i <= places_.size(); ++i) {
    const Place& one = places_[(chosen_ + i) % places_.size()];
    if (best == nullptr || from(one) < from(*best)) best = &one;
  }
  chosen_ = best - places_.data();
}

}  // namespace meshrun::rpc
