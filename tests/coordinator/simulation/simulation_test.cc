// Random faults, one thread, no real time: the rules (rules.h, ledger.h) hold whatever happens, in
// whatever order. A failure prints its seed, the last events and the command that runs it again.
#include "tests/coordinator/simulation/simulation.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

namespace meshrun::coordinator::simulation {
namespace {

constexpr uint64_t kSeeds = 2'000;
constexpr uint64_t kParts = 4;
constexpr size_t kNotes = 60;

void ExpectNoViolation(uint64_t seed, const Outcome& outcome) {
  if (outcome.violation.empty()) return;
  std::string notes;
  for (const std::string& note : Simulate(PlanOf(seed), kNotes).notes) notes += note + "\n";
  FAIL() << "seed " << seed << ": " << outcome.violation << "\nthe last events:\n"
         << notes << "again: bazel run //tests/coordinator/simulation:simulate -- --seed " << seed;
}

class SimulationTest : public ::testing::TestWithParam<uint64_t> {};

TEST_P(SimulationTest, TheRulesHoldThroughRandomFaults) {
  Outcome all;
  const uint64_t first = GetParam() * (kSeeds / kParts) + 1;
  for (uint64_t seed = first; seed < first + kSeeds / kParts && !HasFailure(); ++seed) {
    const Outcome outcome = Simulate(PlanOf(seed));
    ExpectNoViolation(seed, outcome);
    all += outcome;
  }
  fmt::print("{}\n", Text(all));
  // A simulation in which nothing happens proves nothing.
  EXPECT_GE(all.steps, 200'000u / kParts);
  EXPECT_GE(all.crashes, kSeeds / kParts / 4);
  EXPECT_GE(all.succeeded, static_cast<int>(kSeeds / kParts / 2));
  EXPECT_GE(all.failed, 100);
  EXPECT_GE(all.cancelled, 50);
}

INSTANTIATE_TEST_SUITE_P(Parts, SimulationTest, ::testing::Range(uint64_t{0}, kParts));

TEST(SimulationTest, TheSameSeedRunsAlike) {
  for (const uint64_t seed : {1, 2, 4, 7}) {
    const Outcome once = Simulate(PlanOf(seed), kNotes);
    const Outcome again = Simulate(PlanOf(seed), kNotes);
    EXPECT_EQ(once.steps, again.steps);
    EXPECT_EQ(once.notes, again.notes);
  }
}

}  // namespace
}  // namespace meshrun::coordinator::simulation
