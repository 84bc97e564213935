// SIGKILL of a rank inside each operation: the others raise soon, name it, and exit clean.
//
// Also a rank program: MESHRUN_TEST_RANK_FUNCTION="lose a rank", MESHRUN_TEST_OPERATION its name,
// MESHRUN_TEST_VICTIM a rank ("operations" lists the names). Under meshrun the survivors get
// SIGTERM when their peer dies; they catch it, since they are to end by themselves.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <thread>

#include "spdlog/fmt/fmt.h"
#include "spdlog/fmt/ranges.h"
#include "tests/parallel/collectives/faults/every_operation.h"
#include "tests/parallel/collectives/faults/private_shm.h"
#include "tests/parallel/collectives/faults/raised.h"
#include "tests/parallel/support/rank_processes.h"
#include "tests/parallel/support/rank_world.h"

namespace meshrun {
namespace {

constexpr int kRanks = 3;
// The call in which the victim dies; those before it open the connections.
constexpr int kCallsBefore = 2;
// More than any survivor makes before it hears of the death.
constexpr int kMostCalls = 1'000'000;

void lose_a_rank() {
  std::signal(SIGTERM, [](int) {});
  RankWorld world;
  world.leave_alone();
  const std::string name = variable("MESHRUN_TEST_OPERATION", "all_gather_v");
  const NamedOperation* operation = nullptr;
  for (const NamedOperation& known : every_operation()) {
    if (known.name == name) operation = &known;
  }
  ASSERT_NE(operation, nullptr) << name;
  for (int call = 0; call < kCallsBefore; ++call) operation->call(world.group());
  if (world.rank() == std::stoi(variable("MESHRUN_TEST_VICTIM", "1"))) {
    std::atomic<bool> is_inside{false};
    std::thread([&] {
      while (!is_inside) std::this_thread::yield();
      note_time(name.c_str());
      kill(getpid(), SIGKILL);
    }).detach();
    is_inside = true;
    for (int call = 0; call < kMostCalls; ++call) operation->call(world.group());
    return;
  }
  const bool has_raised = note_raised(name, [&] {
    for (int call = 0; call < kMostCalls; ++call) operation->call(world.group());
  });
  EXPECT_TRUE(has_raised);
}

void list_operations() {
  for (const NamedOperation& operation : every_operation()) std::puts(operation.name.c_str());
}

[[maybe_unused]] const bool kRegistered[] = {register_rank_function("lose a rank", lose_a_rank),
                                             register_rank_function("operations", list_operations)};

class LostRankTest : public ::testing::TestWithParam<const char*> {
 protected:
  static void SetUpTestSuite() { shm_ = new PrivateShm; }

  void lose(const NamedOperation& operation, int victim) {
    std::vector<Variables> ranks = env_ranks(kRanks);
    for (Variables& variables : ranks) {
      variables["MESHRUN_TEST_OPERATION"] = operation.name;
      variables["MESHRUN_TEST_VICTIM"] = std::to_string(victim);
      if (*GetParam() != '\0') variables["UCX_TLS"] = GetParam();
    }
    const auto results = run_ranks("lose a rank", ranks, std::chrono::minutes(1), RankStart::kFork);
    EXPECT_EQ(results[victim].signal, SIGKILL) << results[victim].output;
    const auto killed = raised_in(results[victim].output);
    ASSERT_EQ(killed.size(), 1u) << results[victim].output;
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank == victim) continue;
      EXPECT_EQ(results[rank].exit_code, 0)
          << "rank " << rank << ", signal " << results[rank].signal << ": " << results[rank].output;
      const auto raised = raised_in(results[rank].output);
      ASSERT_EQ(raised.size(), 1u) << "rank " << rank << ": " << results[rank].output;
      EXPECT_EQ(raised[0].kind, "peer lost") << "rank " << rank << ": " << raised[0].text;
      EXPECT_NE(raised[0].text.find("rank " + std::to_string(victim)), std::string::npos)
          << "rank " << rank << ": " << raised[0].text;
      const auto took = raised[0].at - killed[0].at;
      EXPECT_LE(took, std::chrono::seconds(8)) << "rank " << rank;
      slowest_ = std::max(slowest_, took);
    }
  }

  std::chrono::nanoseconds slowest_{0};
  static inline PrivateShm* shm_ = nullptr;
};

TEST_P(LostRankTest, SurvivorsOfAKillInsideEachOperationRaiseNameItAndExitClean) {
  int victim = 0;
  for (const NamedOperation& operation : every_operation()) {
    SCOPED_TRACE(operation.name);
    victim = (victim + 1) % kRanks;
    lose(operation, victim);
  }
  std::printf("  %zu operations, slowest error %lld ms after the kill\n", every_operation().size(),
              static_cast<long long>(slowest_.count() / 1'000'000));
  if (shm_->is_private()) {
    EXPECT_EQ(fmt::format("{}", fmt::join(shm_->left(), " ")), "");
  } else {
    std::puts(
        "  /dev/shm not checked: other programs use it, and a mount namespace of our own is "
        "not permitted");
  }
}

INSTANTIATE_TEST_SUITE_P(SharedMemory, LostRankTest, ::testing::Values(""));
INSTANTIATE_TEST_SUITE_P(Tcp, LostRankTest, ::testing::Values("tcp"));

}  // namespace
}  // namespace meshrun
