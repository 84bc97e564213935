// What the coordinator needs for 10,000 ranks on 1,250 hosts. Printed; only the bounds gate.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include "tests/coordinator/support/harness.h"

namespace meshrun::coordinator::testing {
namespace {

constexpr int kHosts = 1250;
constexpr int kRanksOfAHost = 8;
constexpr int kWatchers = 20;
constexpr size_t kBound = size_t{1} << 30;

// Bytes of this process's heap in use, the fake workers' share included.
size_t HeapBytes() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

class ScaleTest : public ::testing::Test {
 protected:
  void Print(const char* when) {
    const size_t now = HeapBytes();
    worst_ = std::max(worst_, now - before_);
    fmt::print("  {:<44} {:>7.1f} MiB\n", when, static_cast<double>(now - before_) / (1 << 20));
  }
  v1::OpenSessionRequest Of(FakeWorker& worker) {
    v1::OpenSessionRequest message = worker.Message({id_, h.job(id_).generation()});
    return message;
  }

  const size_t before_ = HeapBytes();
  size_t worst_ = 0;
  Harness h;
  std::vector<FakeWorker*> workers_;
  std::string id_;
};

TEST_F(ScaleTest, TenThousandRanksFitIntoAGibibyte) {
  h.record = false;
  h.heartbeats = false;
  for (int i = 0; i < kHosts; ++i) workers_.push_back(&h.AddWorker(fmt::format("node{}", i)));
  Print("1,250 hosts");
  id_ = h.Submit(MakeSpec(kHosts, kRanksOfAHost));
  ASSERT_EQ(h.state(id_), v1::JOB_STATE_RUNNING);
  Print("10,000 ranks run");
  std::vector<uint64_t> calls;
  for (int i = 0; i < kWatchers; ++i) {
    v1::StateEvent watch;
    watch.mutable_watch_job()->set_job_id(id_);
    // Half of them as simple programs do it.
    watch.mutable_watch_job()->set_deltas(i % 2 == 0);
    calls.push_back(h.Call(std::move(watch)));
    // Sent, as far as the coordinator is concerned.
    h.answer(calls.back()).items.clear();
  }
  for (int host = 0; host < kHosts; ++host) {
    v1::OpenSessionRequest report = Of(*workers_[host]);
    for (int local = 0; local < kRanksOfAHost; ++local) {
      v1::Progress progress;
      progress.set_step(10);
      progress.set_loss(0.5);
      (*report.mutable_progress_report()->mutable_progress())[host * kRanksOfAHost + local] =
          progress;
    }
    h.Say(*workers_[host], {report});
  }
  Print("every rank has reported, 20 watchers");
  size_t items = 0;
  for (const uint64_t call : calls) items += h.answer(call).items.size();
  EXPECT_LE(items, size_t{2 * kWatchers}) << "1,250 reports within a second are told at once";
  EXPECT_LT(worst_, kBound);
}

}  // namespace
}  // namespace meshrun::coordinator::testing
