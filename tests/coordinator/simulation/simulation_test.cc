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
constexpr uint64_t kEtcdSeeds = 500;
constexpr size_t kNotes = 60;

void ExpectNoViolation(const Plan& plan, const Outcome& outcome) {
  if (outcome.violation.empty()) return;
  std::string notes;
  for (const std::string& note : Simulate(plan, kNotes).notes) notes += note + "\n";
  FAIL() << "seed " << plan.seed << ": " << outcome.violation << "\nthe last events:\n"
         << notes << "again: bazel run //tests/coordinator/simulation:simulate -- "
         << (plan.etcd_fault_chance > 0 ? "--etcd " : "") << "--seed " << plan.seed;
}

class SimulationTest : public ::testing::TestWithParam<uint64_t> {};

TEST_P(SimulationTest, TheRulesHoldThroughRandomFaults) {
  Outcome all;
  const uint64_t first = GetParam() * (kSeeds / kParts) + 1;
  for (uint64_t seed = first; seed < first + kSeeds / kParts && !HasFailure(); ++seed) {
    const Outcome outcome = Simulate(PlanOf(seed));
    ExpectNoViolation(PlanOf(seed), outcome);
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

TEST(SimulationTest, TheRulesHoldWhereTheStateIsInEtcd) {
  Outcome all;
  for (uint64_t seed = 1; seed <= kEtcdSeeds && !HasFailure(); ++seed) {
    const Outcome outcome = Simulate(EtcdPlanOf(seed));
    ExpectNoViolation(EtcdPlanOf(seed), outcome);
    all += outcome;
  }
  fmt::print("{}\n", Text(all));
  EXPECT_GE(all.failed_commits, kEtcdSeeds);
  EXPECT_GE(all.done_nevertheless, kEtcdSeeds / 5);
  EXPECT_GE(all.stale_commits, kEtcdSeeds / 5);
  EXPECT_GE(all.late_refusals, kEtcdSeeds / 5);
  EXPECT_GE(all.succeeded, static_cast<int>(kEtcdSeeds / 2));
}

TEST(SimulationTest, TheSameSeedRunsAlike) {
  for (const uint64_t seed : {1, 2, 4, 7}) {
    const Outcome once = Simulate(PlanOf(seed), kNotes);
    const Outcome again = Simulate(PlanOf(seed), kNotes);
    EXPECT_EQ(once.steps, again.steps);
    EXPECT_EQ(once.notes, again.notes);
    EXPECT_EQ(Simulate(EtcdPlanOf(seed), kNotes).notes, Simulate(EtcdPlanOf(seed), kNotes).notes);
  }
}

}  // namespace
}  // namespace meshrun::coordinator::simulation
