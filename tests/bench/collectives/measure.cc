#include "tests/bench/collectives/measure.h"

#include <mpi/mpi.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <random>

#include "ATen/ops/equal.h"
#include "fmt/format.h"
#include "parallel/base/shared_heap.h"
#include "parallel/collectives/call/output_memory.h"
#include "tests/bench/collectives/counting_allocator.h"

namespace meshrun::bench {
namespace {

int64_t most(int64_t mine) {
  int64_t result = 0;
  MPI_Allreduce(&mine, &result, 1, MPI_INT64_T, MPI_MAX, MPI_COMM_WORLD);
  return result;
}

bool is_shared(const at::Tensor& result) {
  const SharedHeap* const heap = SharedHeap::of_process();
  return heap != nullptr && heap->offset_of(result.const_data_ptr(), result.nbytes()).has_value();
}

// Value at this share of the sorted values, which may come in any order.
double at_share(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1) + 0.5)];
}

// Problem of the lowest rank that has one.
std::string shared_problem(const Problem& problem, const std::string& mine) {
  int rank = mine.empty() ? problem.size : problem.rank;
  int lowest = 0;
  MPI_Allreduce(&rank, &lowest, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  if (lowest == problem.size) return {};
  char text[128] = {};
  std::strncpy(text, mine.c_str(), sizeof text - 1);
  MPI_Bcast(text, sizeof text, MPI_CHAR, lowest, MPI_COMM_WORLD);
  return fmt::format("rank {}: {}", lowest, text);
}

void poison(const Contender& contender) {
  for (const at::Tensor& tensor : contender.kept) {
    if (tensor.nbytes() > 0) std::memset(tensor.data_ptr(), 0xff, tensor.nbytes());
  }
}

// Twice: sums must have the same bits again.
void verify(const Problem& problem, const Contender& contender,
            const std::function<int64_t()>& engine_copied, Measured& measured) {
  static CountingAllocator& allocator = *new CountingAllocator;
  at::Tensor first;
  std::string wrong;
  for (int turn = 0; turn < 2; ++turn) {
    poison(contender);
    release_output_memory();
    const size_t before = output_memory().used_bytes;
    if (contender.prepare) contender.prepare();
    const int64_t copied = copied_bytes() + engine_copied();
    MPI_Barrier(MPI_COMM_WORLD);
    at::Tensor result;
    {
      CountingAllocator::Use counting(allocator);
      result = contender.call();
    }
    measured.allocations = most(allocator.allocations());
    measured.peak_bytes =
        most(allocator.peak_bytes() + static_cast<int64_t>(output_memory().peak_bytes - before));
    measured.copied_bytes = most(copied_bytes() + engine_copied() - copied);
    if (!contender.has_result) return;
    measured.in_shared_memory = most(result.defined() && !is_shared(result) ? 1 : 0) == 0;
    if (contender.ordered && problem.expected.defined()) result = contender.ordered(result);
    if (wrong.empty()) wrong = problem.problem_of(result);
    if (!problem.expected.defined()) continue;
    if (turn == 0) {
      first = result.clone();
    } else if (wrong.empty() && !at::equal(first, result)) {
      wrong = "other bits in the second run";
    }
  }
  measured.problem = shared_problem(problem, wrong);
}

double time_once(const Contender& contender) {
  // Once before: what ran between has had the caches, and not the same of every contender.
  if (contender.prepare) contender.prepare();
  contender.call();
  if (contender.prepare) contender.prepare();
  at::Tensor result;  // freed after the clock has stopped
  MPI_Barrier(MPI_COMM_WORLD);
  const auto start = std::chrono::steady_clock::now();
  result = contender.call();
  const auto end = std::chrono::steady_clock::now();
  return std::chrono::duration<double, std::micro>(end - start).count();
}

}  // namespace

std::vector<Measured> measure(const Problem& problem, std::vector<Contender> contenders,
                              Rounds rounds, const std::function<int64_t()>& engine_copied) {
  std::vector<Measured> result;
  for (const Contender& contender : contenders) {
    Measured measured{.name = contender.name, .note = contender.note};
    verify(problem, contender, engine_copied, measured);
    result.push_back(std::move(measured));
  }
  std::vector<std::vector<double>> times(contenders.size());
  std::vector<size_t> order(contenders.size());
  std::iota(order.begin(), order.end(), 0);
  std::minstd_rand random(1);
  for (int round = -rounds.warm_up; round < rounds.timed; ++round) {
    // A contender leaves its data in the caches for the next one, and all use the same input.
    std::shuffle(order.begin(), order.end(), random);
    for (const size_t i : order) {
      const double time = time_once(contenders[i]);
      if (round >= 0) times[i].push_back(time);
    }
  }
  for (size_t i = 0; i < contenders.size(); ++i) {
    std::vector<double>& slowest = times[i];  // in the order of the rounds
    MPI_Allreduce(MPI_IN_PLACE, slowest.data(), static_cast<int>(slowest.size()), MPI_DOUBLE,
                  MPI_MAX, MPI_COMM_WORLD);
    result[i].median_us = at_share(slowest, 0.5);
    result[i].p10_us = at_share(slowest, 0.1);
    result[i].p90_us = at_share(slowest, 0.9);
    const auto begin = [&](int part) {
      return slowest.begin() + static_cast<ptrdiff_t>(slowest.size()) * part / kParts;
    };
    for (int part = 0; part < kParts; ++part) {
      result[i].parts_us.push_back(
          at_share(std::vector<double>(begin(part), begin(part + 1)), 0.5));
    }
  }
  return result;
}

}  // namespace meshrun::bench
