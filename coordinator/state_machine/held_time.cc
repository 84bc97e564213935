#include "coordinator/state_machine/held_time.h"

#include <algorithm>
#include <chrono>

#include "core/proto_time.h"

namespace meshrun::coordinator {
namespace {

double Seconds(std::chrono::nanoseconds time) {
  return std::max(std::chrono::duration<double>(time).count(), 0.0);
}

}  // namespace

void HeldTimes::Entry::Count(double seconds) {
  slot_seconds += static_cast<double>(slots) * seconds;
  gpu_seconds += static_cast<double>(gpus) * seconds;
}

void HeldTimes::Entry::CountUntil(WallNanos now) {
  if (!restored.has_value()) Count(Seconds(now - since));
  since = now;
}

void HeldTimes::Hold(const std::string& job_id, uint64_t slots, uint64_t gpus, WallNanos now) {
  Entry& entry = jobs_[job_id];
  entry.CountUntil(now);
  entry.slots += slots;
  entry.gpus += gpus;
}

void HeldTimes::Release(const std::string& job_id, uint64_t slots, uint64_t gpus, WallNanos now) {
  const auto found = jobs_.find(job_id);
  // The job has ended, and what it left behind ends now.
  if (found == jobs_.end()) return;
  found->second.CountUntil(now);
  found->second.slots -= std::min(slots, found->second.slots);
  found->second.gpus -= std::min(gpus, found->second.gpus);
}

v1::HeldTime HeldTimes::Of(const std::string& job_id, WallNanos now) const {
  v1::HeldTime out;
  const auto found = jobs_.find(job_id);
  if (found == jobs_.end()) return out;
  Entry entry = found->second;
  entry.CountUntil(now);
  out.set_slot_seconds(entry.slot_seconds);
  out.set_gpu_seconds(entry.gpu_seconds);
  *out.mutable_as_of() = ToProtoTimestamp(entry.restored.value_or(now));
  return out;
}

void HeldTimes::Restore(const std::string& job_id, const v1::HeldTime& held) {
  Entry& entry = jobs_[job_id];
  entry.slot_seconds = held.slot_seconds();
  entry.gpu_seconds = held.gpu_seconds();
  entry.restored = FromProto(held.as_of());
}

void HeldTimes::Resume(const std::string& job_id, WallNanos now) {
  const auto found = jobs_.find(job_id);
  if (found == jobs_.end()) return;
  if (found->second.restored.has_value())
    found->second.Count(Seconds(now - *found->second.restored));
  found->second.restored.reset();
  found->second.since = now;
}

}  // namespace meshrun::coordinator
