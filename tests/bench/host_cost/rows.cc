#include "tests/bench/host_cost/rows.h"

#include <valgrind/callgrind.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "tests/bench/collectives/counting_allocator.h"
#include "third_party/libtorch/shims.h"

namespace meshrun::bench {
namespace {

constexpr int kCountedCalls = 100;

}  // namespace

std::vector<double> microseconds(const std::vector<Row>& rows) {
  constexpr int kBatches = 101;
  // A batch is short beside the time that the scheduler gives a process at a time.
  constexpr double kBatchMicroseconds = 100;
  constexpr int kMostCalls = 200;
  std::vector<std::vector<double>> times(rows.size());
  std::vector<int> calls(rows.size(), 10);
  for (int batch = -5; batch < kBatches; ++batch) {
    for (size_t row = 0; row < rows.size(); ++row) {
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < calls[row]; ++i) rows[row].run();
      const std::chrono::duration<double, std::micro> time =
          std::chrono::steady_clock::now() - start;
      const double one = time.count() / calls[row];
      if (batch >= 0) {
        times[row].push_back(one);
      } else {
        calls[row] = std::clamp(static_cast<int>(kBatchMicroseconds / one), 5, kMostCalls);
      }
    }
  }
  std::vector<double> medians;
  for (std::vector<double>& of_row : times) {
    std::nth_element(of_row.begin(), of_row.begin() + kBatches / 2, of_row.end());
    medians.push_back(of_row[kBatches / 2]);
  }
  return medians;
}

void count(const Row& row, const std::function<int64_t()>& copied_bytes) {
  static CountingAllocator& allocator = *new CountingAllocator;
  for (int i = 0; i < kCountedCalls; ++i) row.run();
  const int64_t copied = copied_bytes();
  {
    const CountingAllocator::Use counting(allocator);
    row.run();
  }
  const nlohmann::json line = {{"name", row.name},
                               {"libtorch", libtorch::kVersion},
                               {"calls", kCountedCalls},
                               {"allocations", allocator.allocations()},
                               {"peak_bytes", allocator.peak_bytes()},
                               {"copied_bytes", copied_bytes() - copied}};
  std::printf("%s\n", line.dump().c_str());
  CALLGRIND_START_INSTRUMENTATION;
  CALLGRIND_ZERO_STATS;
  for (int i = 0; i < kCountedCalls; ++i) row.run();
  CALLGRIND_DUMP_STATS_AT(row.name.c_str());
  CALLGRIND_STOP_INSTRUMENTATION;
}

}  // namespace meshrun::bench
