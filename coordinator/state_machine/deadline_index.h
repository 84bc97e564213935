// Keys in the order of their deadlines.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <utility>

#include "core/clock.h"

namespace meshrun::coordinator {

// One deadline per key. All operations are logarithmic.
template <typename Key>
class DeadlineIndex {
 public:
  void Set(const Key& key, SteadyNanos deadline) {
    Clear(key);
    by_key_[key] = deadline;
    by_time_.insert({deadline, key});
  }
  void Clear(const Key& key) {
    const auto it = by_key_.find(key);
    if (it == by_key_.end()) return;
    by_time_.erase({it->second, key});
    by_key_.erase(it);
  }
  std::optional<SteadyNanos> Of(const Key& key) const {
    const auto it = by_key_.find(key);
    return it == by_key_.end() ? std::nullopt : std::optional<SteadyNanos>(it->second);
  }
  std::optional<SteadyNanos> Next() const {
    if (by_time_.empty()) return std::nullopt;
    return by_time_.begin()->first;
  }
  // Removes and returns the earliest key that is due at `now`.
  std::optional<Key> PopDue(SteadyNanos now) {
    if (by_time_.empty() || by_time_.begin()->first > now) return std::nullopt;
    Key key = by_time_.begin()->second;
    Clear(key);
    return key;
  }
  // No deadline is earlier than `at` afterwards.
  void PostponeTo(SteadyNanos at) {
    while (!by_time_.empty() && by_time_.begin()->first < at) {
      const Key key = by_time_.begin()->second;
      Set(key, at);
    }
  }

 private:
  std::map<Key, SteadyNanos> by_key_;
  std::set<std::pair<SteadyNanos, Key>> by_time_;
};

}  // namespace meshrun::coordinator
