// The leadership of a coordinator that has no standbys: its state is its own (a file that it has
// locked, or memory), so it leads from the start until it stops.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/leadership/leadership.h"

namespace meshrun::coordinator {

class FixedLeadership : public Leadership {
 public:
  absl::Status Campaign() override {
    if (stopped_.load()) return absl::CancelledError("the coordinator is stopping");
    campaigned_.store(true);
    return absl::OkStatus();
  }
  bool Leads() const override { return !stopped_.load(); }
  void OnLost(std::function<void(const std::string&)> lost) override { lost_ = std::move(lost); }
  // There is nobody to choose from.
  std::optional<Candidate> Leader() const override { return std::nullopt; }
  std::vector<Candidate> Candidates() const override { return {}; }
  void Stop() override {
    if (!stopped_.exchange(true) && campaigned_.load() && lost_) lost_("it is stopping");
  }

 private:
  std::function<void(const std::string&)> lost_;
  std::atomic<bool> campaigned_{false};
  std::atomic<bool> stopped_{false};
};

}  // namespace meshrun::coordinator
