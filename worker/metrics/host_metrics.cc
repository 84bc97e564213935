#include "worker/metrics/host_metrics.h"

#include <fmt/format.h>

#include <cmath>
#include <set>

namespace meshrun::worker {
namespace {

using metrics::Exposition;

double Seconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

void CollectGpus(const GpuWatch::State& state, Exposition& out) {
  auto busy = out.Gauge("meshrun_gpu_busy_ratio",
                        "Part of the last moments in which a kernel ran on the GPU.");
  auto memory_busy =
      out.Gauge("meshrun_gpu_memory_busy_ratio",
                "Part of the last moments in which the GPU's memory was read or written.");
  auto used = out.Gauge("meshrun_gpu_memory_used_bytes", "Memory of the GPU that is in use.");
  auto size = out.Gauge("meshrun_gpu_memory_bytes", "Memory of the GPU.");
  auto celsius = out.Gauge("meshrun_gpu_temperature_celsius", "Temperature of the GPU.");
  auto ecc = out.Counter("meshrun_gpu_uncorrected_errors_total",
                         "Errors of the GPU's memory that could not be corrected, since its driver "
                         "was loaded.");
  auto xids = out.Counter("meshrun_gpu_xid_errors_total",
                          "Errors that the driver has reported of the GPU (Xid).");
  auto last = out.Gauge("meshrun_gpu_last_xid", "Number of the last of these errors; 0: none.");
  for (const GpuReading& gpu : state.readings) {
    const std::string index = fmt::to_string(gpu.index);
    const metrics::Labels labels = {{"gpu", index}, {"uuid", gpu.uuid}};
    const auto add = [&labels](auto& family, const auto& value) {
      if (value) family.Add(static_cast<double>(*value), labels);
    };
    add(busy, gpu.busy);
    add(memory_busy, gpu.memory_busy);
    add(used, gpu.memory_used_bytes);
    add(size, gpu.memory_bytes);
    add(celsius, gpu.celsius);
    add(ecc, gpu.uncorrected_errors);
    const auto count = state.xids.find(gpu.index);
    xids.Add(count == state.xids.end() ? 0 : static_cast<double>(count->second), labels);
    const auto number = state.last_xid.find(gpu.index);
    last.Add(number == state.last_xid.end() ? 0 : static_cast<double>(number->second), labels);
  }
  if (state.read_at == std::chrono::steady_clock::time_point()) return;
  out.Gauge("meshrun_gpu_reading_age_seconds",
            "Since the driver answered last; it is read every 5 s.")
      .Add(Seconds(std::chrono::steady_clock::now() - state.read_at));
}

}  // namespace

void HostMetrics::Place(const std::vector<RunningRank>& ranks) {
  decltype(places_) kept;
  std::set<uint32_t> taken;
  for (const RunningRank& rank : ranks) {
    const auto found = places_.find({rank.job_id, rank.process});
    if (found == places_.end()) continue;
    kept.insert(*found);
    taken.insert(found->second);
  }
  uint32_t next = 0;
  for (const RunningRank& rank : ranks) {
    const auto [place, is_new] = kept.try_emplace({rank.job_id, rank.process});
    if (!is_new) continue;
    while (taken.contains(next)) ++next;
    place->second = next++;
  }
  places_ = std::move(kept);
}

void HostMetrics::CollectRanks(const HostMeasures& measures, Exposition& out) {
  Place(measures.ranks);
  auto step = out.Gauge("meshrun_rank_step", "The step that the rank reported last.");
  auto step_seconds =
      out.Gauge("meshrun_rank_step_seconds", "How long the rank's last reported step took.");
  auto samples = out.Counter("meshrun_rank_samples_total",
                             "Samples that the rank has trained on; its rate is samples a second.");
  auto waited =
      out.Counter("meshrun_rank_collective_wait_seconds_total",
                  "Time in which the rank waited for others; its rate is the share of the time.");
  auto data = out.Counter("meshrun_rank_data_wait_seconds_total",
                          "Time in which the rank waited for its data; its rate is the share.");
  auto bytes = out.Counter("meshrun_rank_collective_bytes_total",
                           "Bytes that the rank's collectives have sent to other ranks.");
  auto loss = out.Gauge("meshrun_rank_loss", "The loss that the rank reported last.");
  for (const RunningRank& rank : measures.ranks) {
    const std::string place = fmt::to_string(places_.at({rank.job_id, rank.process}));
    const std::string number = fmt::to_string(rank.rank);
    metrics::Labels labels = {{"place", place}, {"user", rank.user}, {"rank", number}};
    if (with_job_) labels.emplace_back("job", rank.job_id);
    const v1::Progress& said = rank.progress;
    if (said.has_step()) step.Add(static_cast<double>(said.step()), labels);
    if (rank.step_seconds) step_seconds.Add(*rank.step_seconds, labels);
    if (said.has_samples()) samples.Add(said.samples(), labels);
    if (said.has_waited_seconds()) waited.Add(said.waited_seconds(), labels);
    if (said.has_data_seconds()) data.Add(said.data_seconds(), labels);
    if (said.has_collective_bytes())
      bytes.Add(static_cast<double>(said.collective_bytes()), labels);
    if (said.has_loss()) loss.Add(said.loss(), labels);
  }
}

void HostMetrics::Collect(const HostMeasures* measures, const std::optional<LogSpace>& logs,
                          const GpuWatch::State* gpus, Exposition* out) {
  if (measures != nullptr) {
    out->Gauge("meshrun_worker_slots", "CPU slots of this host.").Add(measures->slots);
    out->Gauge("meshrun_worker_ranks", "Ranks that run on this host.")
        .Add(static_cast<double>(measures->ranks.size()));
    out->Gauge("meshrun_worker_connected", "1 while the coordinator is connected.")
        .Add(measures->connected ? 1 : 0);
    out->Gauge("meshrun_worker_lease_age_seconds",
               "Since the last heartbeat that the coordinator has answered was sent.")
        .Add(Seconds(measures->lease_age));
    out->Gauge("meshrun_worker_problems", "Problems that the checks of this host have found.")
        .Add(static_cast<double>(measures->problems));
    out->Gauge("meshrun_worker_term", "The highest term of a coordinator that this host has seen.")
        .Add(static_cast<double>(measures->term));
    CollectRanks(*measures, *out);
  }
  if (logs) {
    out->Gauge("meshrun_log_bytes", "What the kept output of ranks takes on the disk.")
        .Add(static_cast<double>(logs->log_bytes));
    out->Gauge("meshrun_log_filesystem_free_bytes",
               "Room in the file system with the ranks' output.")
        .Add(static_cast<double>(logs->free_bytes));
    out->Gauge("meshrun_log_filesystem_bytes", "Size of that file system.")
        .Add(static_cast<double>(logs->size_bytes));
  }
  if (gpus != nullptr) CollectGpus(*gpus, *out);
}

}  // namespace meshrun::worker
