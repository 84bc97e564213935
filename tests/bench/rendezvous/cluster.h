// A coordinator's own process, and simulated workers with real session streams to it: what the
// benchmarks of the control plane measure. All on this machine.
#pragma once

#include <grpcpp/channel.h>
#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "core/mutex.h"
#include "meshrun/v1/job_service.grpc.pb.h"
#include "tests/coordinator/support/grpc_worker.h"

namespace meshrun::bench {

// A machine that is busy must not lose its own simulated hosts.
inline constexpr const char* kLease = "30s";
inline constexpr size_t kStreamsPerChannel = 100;
inline constexpr std::chrono::seconds kHeartbeat(1);

// On a state directory that goes with it.
class Coordinator {
 public:
  // `program`: path of meshrun-coordinator.
  absl::Status Start(const std::string& program, std::chrono::seconds heartbeat = kHeartbeat);
  ~Coordinator();
  const std::string& address() const { return address_; }
  pid_t pid() const { return pid_; }
  // Resident memory, in bytes.
  size_t resident() const;
  // Until it has used no processor for a fifth of a second: what was sent to it has arrived.
  void AwaitIdle() const;

 private:
  std::string directory_;
  std::string address_;
  pid_t pid_ = -1;
};

// Workers that beat as hosts do, each at a time of its own, and a count of those that hold their
// Start. Thread-safe, except Connect.
class Fleet {
 public:
  Fleet(size_t size, uint32_t slots, std::chrono::seconds heartbeat = kHeartbeat)
      : size_(size), slots_(slots), heartbeat_(heartbeat) {}
  ~Fleet();

  // Each says Hello and has its Welcome.
  absl::Status Connect(const std::string& address);
  // Once each worker has had so many Starts in all; when the last one came.
  bool AwaitStarts(size_t starts, std::chrono::steady_clock::time_point* last);
  // Every rank of the job exits with 0.
  void EndAll(const std::string& job_id);
  coordinator::testing::GrpcWorker& worker(size_t i) { return *workers_[i]; }
  // The most that one host received.
  uint64_t BytesPerHost();

 private:
  void OnMessage(const v1::OpenSessionResponse& message);
  void Beat();

  const size_t size_;
  const uint32_t slots_;
  const std::chrono::milliseconds heartbeat_;
  // Reserved before the heart beats: its elements stay where they are.
  std::vector<std::unique_ptr<coordinator::testing::GrpcWorker>> workers_;
  std::thread heart_;
  Mutex mu_;
  CondVar changed_;
  size_t starts_ MESHRUN_GUARDED_BY(mu_) = 0;
  size_t connected_ MESHRUN_GUARDED_BY(mu_) = 0;
  bool stopping_ MESHRUN_GUARDED_BY(mu_) = false;
  std::chrono::steady_clock::time_point last_start_ MESHRUN_GUARDED_BY(mu_);
};

// Spec of a job that takes `hosts` hosts with `ranks` ranks each.
v1::JobSpec BenchSpec(size_t hosts, uint32_t ranks);
// Waits for the end of the job, which is to be in that state.
absl::Status AwaitEnd(v1::JobService::Stub& jobs, const std::string& id, v1::JobState wanted);

}  // namespace meshrun::bench
