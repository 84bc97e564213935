// The last operations of each group: what a rank was doing, for the day that something hangs, and
// for `meshrun trace`.
//
// Written by the executor as operations advance; fixed memory, no allocation, a few stores each.
// Thread-safe. Dumped on a timeout, on a lost peer, and when the agent asks
// (`meshrun describe --flight-recorder JOB`).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "core/clock.h"
#include "core/mutex.h"
#include "parallel/comm/ucx/engine/protocol/header_check.h"

namespace meshrun::ucx {

// As drawn in operation.h.
enum class OperationState : uint8_t {
  kQueued,
  kConnecting,
  kChecking,
  kMoving,
  kDone,
  kFailed,
};
const char* name_of(OperationState state);

struct FlightRecord {
  static constexpr int kSizes = 8;

  uint64_t sequence = 0;
  OperationKind kind = OperationKind::kBarrier;
  // The function that the program has called (call_scope.h), static; null: this operation.
  const char* scope = nullptr;
  DType dtype = DType::kUInt8;
  OperationState state = OperationState::kQueued;
  uint8_t ndim = 0;
  int32_t peer = -1;  // point to point: the other rank; else the root; -1: none
  int32_t size_count = 0;
  std::array<int64_t, kSizes> shape{};
  std::array<int64_t, kSizes> sizes{};  // the first of `size_count`
  int64_t bytes = 0;
  SteadyNanos submitted{0}, checked{0}, finished{0};
};

class FlightRecorder {
 public:
  // What is kept, and what is shown unless more is asked for.
  static constexpr int kRecords = 1024;
  static constexpr int kShown = 256;

  explicit FlightRecorder(std::string group_name);

  // The ticket by which advance() finds it.
  uint64_t put(const FlightRecord& record) MESHRUN_EXCLUDES(mu_);
  // Ignored once the record has been overwritten.
  void advance(uint64_t ticket, OperationState state, SteadyNanos now) MESHRUN_EXCLUDES(mu_);

  const std::string& group_name() const { return group_name_; }
  // The last `most`, oldest first; 0: kShown.
  std::vector<FlightRecord> records(int most = 0) const MESHRUN_EXCLUDES(mu_);
  // One JSON object: {"group": ..., "operations": [{"sequence": 17, "operation": "all_reduce",
  // ...}]}
  std::string to_json() const;

 private:
  const std::string group_name_;
  mutable Mutex mu_;
  uint64_t count_ MESHRUN_GUARDED_BY(mu_) = 0;
  // Has room for kRecords from the start, and touches it as records come.
  std::vector<FlightRecord> ring_ MESHRUN_GUARDED_BY(mu_);
};

// As FlightRecorder::to_json.
std::string to_json(const std::string& group_name, const std::vector<FlightRecord>& records);

// "all_reduce"; where a function has called it, "reduce_loss (reduce)".
std::string called(const FlightRecord& record);

// "float32 [3, 4], sizes [3, 2, 3], 48 bytes"
std::string describe(const FlightRecord& record);

}  // namespace meshrun::ucx
