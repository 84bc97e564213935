#include "worker/metrics/gpu_watch.h"

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "core/log.h"

namespace meshrun::worker {
namespace {

// Longest wait in the driver, after which the end is looked for.
constexpr std::chrono::milliseconds kLook(500);

}  // namespace

GpuWatch::GpuWatch(std::chrono::milliseconds interval) {
  std::thread([shared = shared_, interval] { Run(shared, interval); }).detach();
}

GpuWatch::~GpuWatch() {
  MutexLock lock(shared_->mu);
  shared_->stopping = true;
  shared_->changed.NotifyAll();
}

GpuWatch::State GpuWatch::state() const {
  MutexLock lock(shared_->mu);
  return shared_->state;
}

void GpuWatch::Run(const std::shared_ptr<Shared>& shared, std::chrono::milliseconds interval) {
  const std::unique_ptr<Nvml> nvml = Nvml::Open();
  if (nvml == nullptr) return;
  auto read_at = std::chrono::steady_clock::time_point::min();
  while (true) {
    if (const auto now = std::chrono::steady_clock::now();
        read_at == std::chrono::steady_clock::time_point::min() || now - read_at >= interval) {
      read_at = now;
      auto readings = nvml->Read();
      MutexLock lock(shared->mu);
      shared->state.readings = std::move(readings);
      shared->state.read_at = std::chrono::steady_clock::now();
    }
    const auto before = std::chrono::steady_clock::now();
    const auto wait = std::min(kLook, interval);
    const std::optional<GpuXid> error = nvml->AwaitXid(wait);
    if (error) {
      log::Error("a GPU has reported an error", {{"gpu", error->index}, {"xid", error->xid}});
    }
    MutexLock lock(shared->mu);
    if (error) {
      ++shared->state.xids[error->index];
      shared->state.last_xid[error->index] = error->xid;
    }
    // Where the driver has nothing to wait for.
    while (!error && !shared->stopping && shared->changed.WaitUntil(shared->mu, before + wait)) {
    }
    if (shared->stopping) return;
  }
}

}  // namespace meshrun::worker
