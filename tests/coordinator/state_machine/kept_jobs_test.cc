// What is kept of jobs has a bound for each user, and no user takes all of it.
#include "coordinator/state_machine/kept_jobs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "core/env_entries.h"
#include "tests/coordinator/support/harness.h"

namespace meshrun::coordinator::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr size_t kMiB = 1u << 20;

class KeptJobsTest : public ::testing::Test {
 protected:
  KeptJobsTest() {
    h.retention.set_job_bytes(64 * kMiB);
    h.retention.set_ended_jobs(10);
    h.StartCoordinator();
    node = &h.AddWorker("node1");
  }
  static v1::JobSpec Large(size_t bytes = kMiB - 4096) {
    v1::JobSpec spec = MakeSpec(1, 1);
    spec.set_hold(true);
    spec.add_command(std::string(bytes, 'a'));
    SetEnv(*spec.mutable_env(), "TOKEN", "secret");
    return spec;
  }
  // The job's id; empty: it was refused.
  std::string SubmitAs(const std::string& user, const v1::JobSpec& spec) {
    const Harness::Answer& answer = h.TrySubmitAs(user, spec);
    return answer.status.ok() ? answer.As<v1::SubmitJobResponse>().job().job_id() : "";
  }
  // So many until one is refused.
  int SubmitAll(const std::string& user, int most) {
    for (int i = 0; i < most; ++i) {
      if (SubmitAs(user, Large()).empty()) return i;
    }
    return most;
  }
  void Cancel(const std::string& id) {
    v1::StateEvent event;
    event.mutable_cancel_job()->set_job_id(id);
    EXPECT_TRUE(h.answer(h.Call(event)).status.ok());
  }
  const Job& Of(const std::string& id) { return h.machine().jobs().all().at(id); }

  Harness h;
  FakeWorker* node = nullptr;
};

TEST_F(KeptJobsTest, AUserMayHaveHalfOfWhatTheOthersLeave) {
  const int of_bob = SubmitAll("bob", 100);
  EXPECT_GE(of_bob, 31);
  EXPECT_LE(of_bob, 32);
  EXPECT_EQ(SubmitAll("ada", 100), 16);
  const Harness::Answer& refused = h.TrySubmitAs("bob", Large());
  EXPECT_TRUE(absl::IsResourceExhausted(refused.status));
  EXPECT_THAT(std::string(refused.status.message()),
              HasSubstr("the jobs of user bob that are queued, run or have ended lately take"));
  h.StartCoordinator();
  EXPECT_EQ(SubmitAll("bob", 1), 0);
  EXPECT_EQ(SubmitAll("carol", 1), 1);
}

TEST_F(KeptJobsTest, EveryUserMayHaveSome) {
  for (int i = 0; i < 20; ++i) SubmitAll("user" + std::to_string(i), 100);
  EXPECT_GE(SubmitAll("ada", 100), 3);
}

TEST_F(KeptJobsTest, ShortTextsCountWithWhatTheyTakeInMemory) {
  v1::JobSpec spec = MakeSpec(1, 1);
  EnvEntries env;
  for (int i = 0; i < 10'000; ++i) {
    spec.add_command("a");
    env.Add()->set_name("B");
  }
  EXPECT_GT(KeptJobs::BytesOf(spec, env), 10'000u * (48 + 130));
}

TEST_F(KeptJobsTest, AnArrayCountsWithEachOfItsJobs) {
  v1::JobSpec spec = Large(1000);
  for (uint32_t i = 0; i < 1000; ++i) spec.mutable_array()->add_indices(i);
  int arrays = 0;
  while (arrays < 100 && h.TrySubmitAs("bob", spec).status.ok()) ++arrays;
  EXPECT_EQ(arrays, 5);
}

TEST_F(KeptJobsTest, LargeJobsThatHaveEndedAreKeptWithoutTheirArguments) {
  for (int i = 0; i < 3; ++i) SubmitAs("bob", Large());
  const std::string id = SubmitAs("bob", Large());
  Cancel(id);
  EXPECT_THAT(Of(id).view.spec().command(), ElementsAre("./train", "(1 arguments, not kept)"));
  EXPECT_THAT(Of(id).view.spec().env(), IsEmpty());
  EXPECT_THAT(Of(id).record.env(), IsEmpty());
  EXPECT_EQ(Of(id).view.state(), v1::JOB_STATE_CANCELLED);
  // Small ones, and those of who has few, stay as they are.
  const std::string small = SubmitAs("bob", Large(100));
  const std::string of_ada = SubmitAs("ada", Large());
  Cancel(small);
  Cancel(of_ada);
  EXPECT_EQ(Of(small).view.spec().command(1).size(), 100u);
  EXPECT_EQ(Of(of_ada).view.spec().command(1).size(), kMiB - 4096);
  h.StartCoordinator();
  EXPECT_THAT(Of(id).view.spec().command(), ElementsAre("./train", "(1 arguments, not kept)"));
}

// Who submits and cancels, again and again, is stopped by what must be remembered of each job.
TEST_F(KeptJobsTest, JobsThatHaveEndedCountUntilTheyAreForgotten) {
  int made = 0;
  for (std::string id; made < 20'000 && !(id = SubmitAs("bob", Large(1000))).empty(); ++made)
    Cancel(id);
  EXPECT_GT(made, 5000);
  EXPECT_LT(made, 8000);
  EXPECT_FALSE(SubmitAs("ada", Large()).empty());
  h.Advance(std::chrono::minutes(11));
  EXPECT_FALSE(SubmitAs("bob", Large()).empty());
  EXPECT_LT(h.machine().jobs().size(), 20u);
}

// However many are to be kept by their number.
TEST_F(KeptJobsTest, EndedJobsGoWhereAllTakeTooMuch) {
  h.retention.set_ended_jobs(1'000'000);
  h.StartCoordinator();
  h.Connect(*node);
  for (const char* const user : {"ada", "bob", "carol"}) {
    for (int i = 0; i < 500; ++i) Cancel(SubmitAs(user, Large(25'000)));
  }
  h.Advance(std::chrono::minutes(9));
  EXPECT_EQ(h.machine().jobs().size(), 1500u);
  h.Advance(std::chrono::minutes(2));
  EXPECT_LE(h.machine().jobs().size(), 1150u);
  EXPECT_GE(h.machine().jobs().size(), 1100u);
}

}  // namespace
}  // namespace meshrun::coordinator::testing
