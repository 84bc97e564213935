// The host's NVIDIA GPUs, through the driver's libnvidia-ml.so.1, opened at run time. A driver that
// is ill may not answer for minutes: nothing here is called on the daemon's loop.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "meshrun/v1/common.pb.h"

namespace meshrun::worker {

// What a GPU does at one moment; what it does not tell is absent.
struct GpuReading {
  uint32_t index = 0;
  // The same in all readings.
  std::string uuid;
  // Parts of the time in which a kernel ran, and in which its memory was read or written.
  std::optional<double> busy;
  std::optional<double> memory_busy;
  std::optional<uint64_t> memory_used_bytes;
  std::optional<uint64_t> memory_bytes;
  std::optional<double> celsius;
  // ECC errors that could not be corrected, since the driver was loaded.
  std::optional<uint64_t> uncorrected_errors;
};

// An error that the driver has reported: NVIDIA's list of Xid errors has the numbers.
struct GpuXid {
  uint32_t index = 0;
  uint64_t xid = 0;
};

// One thread at a time.
class Nvml {
 public:
  // Null where there is no driver, and where it does not answer.
  static std::unique_ptr<Nvml> Open();
  ~Nvml();

  // In PCI order.
  std::vector<v1::Gpu> List() const;
  std::vector<GpuReading> Read() const;
  // Waits for the next error that any GPU reports. Absent: there was none in this time, or the
  // driver tells of none (then it returns at once).
  std::optional<GpuXid> AwaitXid(std::chrono::milliseconds wait);
  // Whether AwaitXid can wait.
  bool TellsXids() const;

 private:
  struct Library;
  explicit Nvml(std::unique_ptr<Library> library);

  const std::unique_ptr<Library> library_;
};

// In PCI order. Empty where there is no driver, and where it does not answer.
std::vector<v1::Gpu> ListGpus();

}  // namespace meshrun::worker
