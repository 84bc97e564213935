// A day of a cluster in minutes: simulated time over real storage, and so as many commits as there
// are seconds with work in the day. Jobs come in rushes, as people and schedulers send them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "coordinator/state_store/sqlite_state_store.h"
#include "core/parse_integer.h"
#include "tests/coordinator/simulation/simulation.h"

namespace meshrun::coordinator::simulation {
namespace {

constexpr int kJobsADay = 200'000;
constexpr uint32_t kKeepEnded = 1'000;

// MESHRUN_SIMULATED_HOURS, for a shorter day.
int Hours() {
  const char* const asked = std::getenv("MESHRUN_SIMULATED_HOURS");
  if (asked == nullptr) return 24;
  const auto hours = ParseInteger<int>(asked);
  EXPECT_TRUE(hours.has_value()) << "MESHRUN_SIMULATED_HOURS=" << asked;
  return hours.value_or(0);
}

TEST(DayTest, ADayOf200000JobsLeavesADirectoryThatDoesNotGrow) {
  const std::string directory = std::string(::testing::TempDir()) + "/day";
  auto store = SqliteStateStore::Open(directory);
  ASSERT_TRUE(store.ok()) << store.status();
  const int jobs = kJobsADay / 24 * Hours();
  Plan plan{.seed = 24, .hosts = 120, .jobs = jobs, .most_nodes = 1};
  plan.chaos = std::chrono::hours(Hours());
  plan.keep_ended = kKeepEnded;
  plan.rush = std::chrono::minutes(6);
  plan.faults = 80 * Hours();
  plan.crash_chance = 0;
  plan.check_interval = 1'000;
  plan.store = store->get();
  plan.turn = seconds(1);
  plan.longest_work = seconds(4);
  // As on large clusters: a day has ten million heartbeats of a second.
  plan.heartbeat = seconds(5);
  plan.lease = seconds(25);
  const auto start = std::chrono::steady_clock::now();
  const Outcome outcome = Simulate(plan);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_EQ(outcome.violation, "");
  std::map<int, int> rows;
  const auto stored = (*store)->Load();
  ASSERT_TRUE(stored.ok()) << stored.status();
  for (const v1::StateRow& row : *stored) ++rows[row.table()];
  uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    if (entry.is_regular_file()) bytes += entry.file_size();
  }
  fmt::print("{}: {:.0f} s; {}; {} jobs forgotten; {} MiB on disk\n",
             Hours() == 24 ? "A day" : fmt::format("{} hours", Hours()), took.count(),
             Text(outcome), outcome.forgotten, bytes >> 20);
  for (const auto& [table, count] : rows) {
    fmt::print("{}: {} rows\n", v1::StateTable_Name(static_cast<v1::StateTable>(table)), count);
  }
  const uint64_t known = rows[v1::STATE_TABLE_JOBS];
  EXPECT_EQ(known + outcome.forgotten, static_cast<uint64_t>(jobs));
  // What is left is bounded by what is remembered, not by what has happened.
  EXPECT_LE(known, kKeepEnded + 100);
  EXPECT_LE(rows[v1::STATE_TABLE_EVENTS], 20'000);
  EXPECT_EQ(rows[v1::STATE_TABLE_VALUES], 0);
  EXPECT_EQ(rows[v1::STATE_TABLE_REQUESTS], 0);
  EXPECT_LE(bytes, uint64_t{512} << 20);
}

}  // namespace
}  // namespace meshrun::coordinator::simulation
