// The collective part of a graceful stop, in real rank processes.
#include "parallel/elastic/graceful_stop.h"

#include <gtest/gtest.h>

#include <csignal>
#include <string>

#include "parallel/base/no_collectives.h"
#include "parallel/elastic/stop_signal.h"
#include "tests/parallel/collectives/worlds.h"
#include "tests/parallel/support/rank_processes.h"

namespace meshrun {
namespace {

const bool kAgreesUnderItsName = register_rank_function("graceful_stop_names", [] {
  const JoinedWorld world;
  GracefulStop stop;
  EXPECT_FALSE(stop.agreed());
  {
    const NoCollectives none("update()");
    const std::string text = error_of([&] { stop.agreed(); });
    EXPECT_NE(text.find("GracefulStop::agreed() inside update()"), std::string::npos) << text;
  }
  if (world.size > 1) {
    expect_error_on_all_ranks(
        [&] {
          if (world.rank == 1) {
            world.manager.world()->barrier()->wait();
          } else {
            stop.agreed();
          }
        },
        "rank 0 called GracefulStop::agreed (all_reduce of int32 [1], max); rank 1 called barrier");
  }
  EXPECT_FALSE(stop.agreed()) << "the group goes on";
});

// slurmstepd signals each process of a step, and meshrun passes on what it gets itself.
TEST(StopSignalTest, SignalsThatComeTogetherAreOneRequest) {
  constexpr int64_t kSecond = 1'000'000'000;
  RepeatedSignal signal;
  EXPECT_FALSE(signal.insists(100 * kSecond));
  EXPECT_FALSE(signal.insists(100 * kSecond + 1));
  EXPECT_FALSE(signal.insists(101 * kSecond));
  EXPECT_TRUE(signal.insists(101 * kSecond + 1));
}

TEST(StopSignalDeathTest, ThreeAtOnceDoNotEndTheProcess) {
  const auto signalled = [] {
    catch_stop_signals();
    for (int i = 0; i < 3; ++i) std::raise(SIGTERM);
    std::quick_exit(stop_requested() ? stop_signal() : 0);
  };
  EXPECT_EXIT(signalled(), ::testing::ExitedWithCode(SIGTERM), "");
}

TEST(GracefulStopTest, ErrorsNameWhatTheProgramHasCalled) {
  run_in_worlds("graceful_stop_names", {1, 2}, {"ucx"});
}

}  // namespace
}  // namespace meshrun
