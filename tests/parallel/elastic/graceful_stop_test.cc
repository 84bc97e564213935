// The collective part of a graceful stop, in real rank processes.
#include "parallel/elastic/graceful_stop.h"

#include <gtest/gtest.h>

#include <string>

#include "parallel/base/no_collectives.h"
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

TEST(GracefulStopTest, ErrorsNameWhatTheProgramHasCalled) {
  run_in_worlds("graceful_stop_names", {1, 2}, {"ucx"});
}

}  // namespace
}  // namespace meshrun
