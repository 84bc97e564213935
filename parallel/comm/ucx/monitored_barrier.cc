#include "parallel/comm/ucx/monitored_barrier.h"

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "parallel/base/collective_errors.h"

namespace meshrun {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::microseconds kFirstPause{100};
constexpr std::chrono::milliseconds kLongestPause{20};
// Rank 0 may have come later than others, and decides at the end of its own time.
constexpr std::chrono::milliseconds kForVerdict{1000};

// A look-up that waits would hold the store, which other operations find their peers by.
bool comes(c10d::Store& store, const std::vector<std::string>& keys,
           steady_clock::time_point deadline) {
  std::chrono::microseconds pause = kFirstPause;
  while (!store.check(keys)) {
    const auto left = deadline - steady_clock::now();
    if (left <= left.zero()) return false;
    std::this_thread::sleep_for(std::min<steady_clock::duration>(pause, left));
    pause = std::min<std::chrono::microseconds>(2 * pause, kLongestPause);
  }
  return true;
}

}  // namespace

MonitoredBarrier::MonitoredBarrier(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                   std::string group)
    : rank_(rank), size_(size), group_(std::move(group)), store_(std::move(store)) {}

std::string MonitoredBarrier::key(int64_t number, int rank) const {
  return fmt::format("{}/{}", number, rank);
}

std::string MonitoredBarrier::verdict_key(int64_t number) const {
  return fmt::format("{}/verdict", number);
}

void MonitoredBarrier::end() {
  MutexLock lock(mu_);
  store_.reset();
}

void MonitoredBarrier::wait(std::chrono::milliseconds timeout, bool wait_all_ranks) {
  MutexLock call(calls_);
  c10::intrusive_ptr<c10d::Store> store;
  {
    MutexLock lock(mu_);
    store = store_;
  }
  if (store == nullptr) {
    throw GroupAbortedError(fmt::format(
        "monitoredBarrier was called on rank {} in group \"{}\", which has ended", rank_, group_));
  }
  ++number_;
  if (rank_ == 0) {
    wait_for_others(*store, timeout, wait_all_ranks);
  } else {
    wait_for_verdict(*store, timeout);
  }
}

void MonitoredBarrier::wait_for_others(c10d::Store& store, std::chrono::milliseconds timeout,
                                       bool wait_all_ranks) {
  std::vector<std::string> keys;
  for (int rank = 1; rank < size_; ++rank) keys.push_back(key(number_, rank));
  std::string problem;
  if (timeout <= timeout.zero()) {
    problem = fmt::format(
        "Rank 0 timed out in monitoredBarrier number {} of group \"{}\": its "
        "timeout is {} ms",
        number_, group_, timeout.count());
  } else if (!comes(store, keys, steady_clock::now() + timeout)) {
    std::vector<int> missing;
    for (int rank = 1; rank < size_; ++rank) {
      if (!store.check({key(number_, rank)})) missing.push_back(rank);
    }
    if (!wait_all_ranks && missing.size() > 1) missing.resize(1);
    // The last one may have come meanwhile.
    if (!missing.empty()) {
      problem = fmt::format(
          "Rank{} {} failed to pass monitoredBarrier number {} of group \"{}\" "
          "within {} ms",
          wait_all_ranks ? "s" : "", fmt::join(missing, ", "), number_, group_, timeout.count());
    }
  }
  store.set(verdict_key(number_), problem);
  if (!problem.empty()) throw CollectiveTimeoutError(problem);
  for (const std::string& arrived : keys) store.deleteKey(arrived);
  // Everybody who has come to this one has read that of the one before.
  if (number_ > 1) store.deleteKey(verdict_key(number_ - 1));
}

void MonitoredBarrier::wait_for_verdict(c10d::Store& store, std::chrono::milliseconds timeout) {
  store.set(key(number_, rank_), std::vector<uint8_t>{1});
  std::string verdict = fmt::format("it has not come within {} ms", timeout.count());
  if (comes(store, {verdict_key(number_)}, steady_clock::now() + timeout + kForVerdict)) {
    const std::vector<uint8_t> value = store.get(verdict_key(number_));
    verdict.assign(value.begin(), value.end());
  }
  if (verdict.empty()) return;
  throw CollectiveTimeoutError(
      fmt::format("Rank {} successfully reached monitoredBarrier, but received errors while "
                  "waiting for send/recv from rank 0: {}",
                  rank_, verdict));
}

}  // namespace meshrun
