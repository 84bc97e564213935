#include "parallel/comm/ucx/engine/planning/schedule_cache.h"

#include <algorithm>
#include <utility>

namespace meshrun::ucx {
namespace {

// Only tells keys apart quickly; equality is decided by the keys.
uint64_t digest_of(std::span<const int64_t> key) {
  uint64_t digest = key.size();
  for (int64_t value : key) {
    digest = (digest ^ static_cast<uint64_t>(value)) * 0x9e3779b97f4a7c15;
    digest ^= digest >> 32;
  }
  return digest;
}

}  // namespace

std::shared_ptr<const Schedule> ScheduleCache::find(uint64_t digest, std::span<const int64_t> key) {
  for (Entry& entry : entries_) {
    if (entry.digest != digest || !std::ranges::equal(entry.key, key)) continue;
    entry.last_used = ++uses_;
    return entry.schedule;
  }
  return nullptr;
}

std::shared_ptr<const Schedule> ScheduleCache::get(std::span<const int64_t> key,
                                                   const std::function<Schedule()>& build) {
  const uint64_t digest = digest_of(key);
  {
    MutexLock lock(mu_);
    if (auto found = find(digest, key)) return found;
  }
  auto built = std::make_shared<const Schedule>(build());
  std::shared_ptr<const Schedule> evicted;  // freed after the lock
  MutexLock lock(mu_);
  if (auto found = find(digest, key)) return found;
  if (entries_.size() < kEntries) {
    entries_.emplace_back();
  }
  const auto oldest =
      std::min_element(entries_.begin(), entries_.end(),
                       [](const Entry& a, const Entry& b) { return a.last_used < b.last_used; });
  evicted = std::move(oldest->schedule);
  *oldest = {digest, ++uses_, {key.begin(), key.end()}, built};
  return built;
}

}  // namespace meshrun::ucx
