// Arrays: jobs that differ in one number.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/env_entries.h"
#include "tests/coordinator/support/harness.h"

namespace meshrun::coordinator::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ArraysTest : public ::testing::Test {
 protected:
  static v1::JobSpec Array(const std::vector<uint32_t>& indices, uint32_t at_once = 0) {
    v1::JobSpec spec = MakeSpec(1, 1);
    for (const uint32_t index : indices) spec.mutable_array()->add_indices(index);
    spec.mutable_array()->set_at_once(at_once);
    return spec;
  }
  std::string SubmitArray(const v1::JobSpec& spec, const std::string& user = "ada") {
    return h.TrySubmitAs(user, spec).As<v1::SubmitJobResponse>().job().array_id();
  }
  std::vector<std::string> In(const std::string& array, v1::JobState state) {
    std::vector<std::string> out;
    for (const auto& [id, job] : h.machine().jobs().all()) {
      if (job.view.array_id() == array && job.view.state() == state) out.push_back(id);
    }
    return out;
  }
  Harness::Answer& Send(v1::StateEvent event) { return h.answer(h.Call(std::move(event))); }
  Harness::Answer& CancelAs(const std::string& user, const std::string& id) {
    v1::StateEvent event;
    event.mutable_cancel_job()->set_job_id(id);
    event.mutable_caller()->set_user(user);
    event.mutable_caller()->set_own_jobs_only(true);
    return Send(std::move(event));
  }

  Harness h;
  FakeWorker* node = &h.AddWorker("node1", 4);
};

TEST_F(ArraysTest, EachIndexIsAJobWithItsNumberInItsEnvironment) {
  v1::JobSpec spec = Array({3, 7, 10});
  SetEnv(*spec.mutable_env(), "MESHRUN_ARRAY_INDEX", "mine");
  const v1::SubmitJobResponse answer = h.TrySubmitAs("ada", spec).As<v1::SubmitJobResponse>();
  const std::string array = answer.job().array_id();
  EXPECT_EQ(answer.array_jobs(), 3u);
  EXPECT_EQ(answer.job().job_id(), array + "_3");
  EXPECT_THAT(In(array, v1::JOB_STATE_RUNNING),
              ElementsAre(array + "_10", array + "_3", array + "_7"));
  const v1::Job& last = h.job(array + "_10");
  EXPECT_EQ(last.array_index(), 10u);
  EXPECT_FALSE(last.spec().has_array());
  const auto env = EnvMap(h.machine().jobs().all().at(array + "_10").record.env());
  EXPECT_EQ(env.at("MESHRUN_ARRAY_INDEX"), "10");
  EXPECT_EQ(env.at("MESHRUN_ARRAY_ID"), array);
  EXPECT_EQ(env.at("MESHRUN_ARRAY_SIZE"), "3");
}

TEST_F(ArraysTest, SoManyRunAtATimeAlsoAfterARestart) {
  const std::string array = SubmitArray(Array({0, 1, 2, 3, 4}, 2));
  EXPECT_THAT(In(array, v1::JOB_STATE_RUNNING), ElementsAre(array + "_0", array + "_1"));
  EXPECT_THAT(h.job(array + "_2").reason(), HasSubstr("array " + array + " runs 2 jobs"));
  const std::string other = h.SubmitAs("ada", MakeSpec(1, 1));
  EXPECT_EQ(h.state(other), v1::JOB_STATE_RUNNING) << "the limit is the array's alone";
  h.StartCoordinator();
  h.Connect(*node);
  EXPECT_EQ(In(array, v1::JOB_STATE_RUNNING).size(), 2u);
  h.Say(*node, node->ExitAll(array + "_0", 0));
  EXPECT_THAT(In(array, v1::JOB_STATE_RUNNING), ElementsAre(array + "_1", array + "_2"));
}

TEST_F(ArraysTest, ChangesAreOfAllOrOfOne) {
  const std::string array = SubmitArray(Array({0, 1, 2, 3, 4, 5}));
  v1::StateEvent hold;
  hold.mutable_update_job()->set_job_id(array);
  hold.mutable_update_job()->set_hold(true);
  hold.mutable_update_job()->set_priority(-3);
  EXPECT_TRUE(Send(hold).status.ok());
  EXPECT_EQ(h.job(array + "_5").spec().priority(), -3);
  h.Cancel(array + "_0");
  EXPECT_EQ(h.state(array + "_4"), v1::JOB_STATE_QUEUED) << "it is held";
  hold.mutable_update_job()->set_hold(false);
  Send(hold);
  EXPECT_EQ(h.state(array + "_4"), v1::JOB_STATE_RUNNING);
  h.Cancel(array);
  h.Advance(seconds(40));
  EXPECT_EQ(In(array, v1::JOB_STATE_CANCELLED).size(), 6u);
  EXPECT_THAT(std::string(Send(hold).status.message()), HasSubstr("has ended"));
}

// The name of an array must not get anybody past the owner's check.
TEST_F(ArraysTest, OthersMayNotChangeIt) {
  const std::string array = SubmitArray(Array({0, 1}));
  EXPECT_EQ(CancelAs("bob", array).status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(CancelAs("bob", array + "_1").status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(In(array, v1::JOB_STATE_RUNNING).size(), 2u);
  EXPECT_TRUE(CancelAs("ada", array).status.ok());
}

TEST_F(ArraysTest, ItsIdStandsForNoOneJob) {
  const std::string array = SubmitArray(Array({0, 1}));
  v1::StateEvent event;
  event.mutable_get_job()->set_job_id(array);
  EXPECT_THAT(std::string(Send(event).status.message()),
              HasSubstr("'" + array + "' is an array of 2 jobs: name one of them, for example " +
                        array + "_0"));
  v1::StateEvent list;
  list.mutable_list_jobs()->set_array_id(array);
  h.SubmitAs("ada", MakeSpec(1, 1));
  EXPECT_EQ(Send(list).As<v1::ListJobsResponse>().jobs_size(), 2);
}

TEST_F(ArraysTest, TheSameRequestIsTheSameArray) {
  const v1::SubmitJobResponse first = h.TrySubmit(Array({0, 1}), "r1").As<v1::SubmitJobResponse>();
  const v1::SubmitJobResponse second = h.TrySubmit(Array({0, 1}), "r1").As<v1::SubmitJobResponse>();
  EXPECT_EQ(first.job().array_id(), second.job().array_id());
  EXPECT_EQ(second.array_jobs(), 2u);
  EXPECT_EQ(h.machine().jobs().size(), 2u);
}

TEST_F(ArraysTest, OthersWaitForAllOfIt) {
  const std::string array = SubmitArray(Array({0, 1}));
  v1::JobSpec after = MakeSpec(1, 1);
  after.add_after("ok:" + array);
  const std::string report = h.SubmitAs("ada", after);
  h.Say(*node, node->ExitAll(array + "_0", 0));
  EXPECT_EQ(h.state(report), v1::JOB_STATE_QUEUED);
  h.Say(*node, node->ExitAll(array + "_1", 0));
  EXPECT_EQ(h.state(report), v1::JOB_STATE_RUNNING);

  v1::JobSpec chained = Array({0, 1});
  chained.add_after("any:" + report);
  const std::string second = SubmitArray(chained);
  EXPECT_EQ(In(second, v1::JOB_STATE_QUEUED).size(), 2u);
  h.Say(*node, node->ExitAll(report, 1));
  EXPECT_EQ(In(second, v1::JOB_STATE_RUNNING).size(), 2u);
}

TEST_F(ArraysTest, AllItsJobsCountInTheQuota) {
  h.policy.mutable_limits()->set_queued_jobs(3);
  h.StartCoordinator();
  h.Connect(*node);
  const absl::Status status = h.TrySubmitAs("ada", Array({0, 1, 2, 3})).status;
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the array's 4 more would be over"));
  EXPECT_EQ(h.machine().jobs().size(), 0u);
  EXPECT_FALSE(SubmitArray(Array({0, 1, 2})).empty());
}

TEST_F(ArraysTest, WrongOnesAreRefused) {
  const auto message = [this](const v1::JobSpec& spec) {
    return std::string(h.TrySubmit(spec).status.message());
  };
  v1::JobSpec none = MakeSpec(1, 1);
  none.mutable_array();
  EXPECT_THAT(message(none), HasSubstr("array: it has 0 jobs"));
  std::vector<uint32_t> hundred(101);
  for (uint32_t i = 0; i < 101; ++i) hundred[i] = i;
  v1::JobSpec waits = Array(hundred);
  const std::string first = SubmitArray(Array(hundred));
  waits.add_after("any:" + first);
  EXPECT_THAT(message(waits), HasSubstr("101 jobs would wait for 101 each"));
  h.Cancel(first);
  h.Advance(seconds(3700));
  EXPECT_THAT(message(Array({4, 4})), HasSubstr("index 4 is there twice"));
  v1::JobSpec large;
  std::vector<uint32_t> many(1000);
  for (uint32_t i = 0; i < 1000; ++i) many[i] = i;
  large = Array(many);
  large.add_command(std::string(100'000, 'x'));
  EXPECT_THAT(message(large), HasSubstr("of arguments and environment in all"));
  many.push_back(1000);
  EXPECT_THAT(message(Array(many)), HasSubstr("write 1 to 1000"));
  EXPECT_EQ(h.machine().jobs().size(), 101u);
}

// Each of two users is next, whatever the other has in an array.
TEST_F(ArraysTest, ItTakesTurnsAsItsJobsWouldEach) {
  const std::string array = SubmitArray(Array({0, 1, 2, 3, 4, 5, 6, 7}), "bob");
  const std::string ada = h.SubmitAs("ada", MakeSpec(1, 1));
  h.Say(*node, node->ExitAll(array + "_0", 0));
  EXPECT_EQ(h.state(ada), v1::JOB_STATE_RUNNING);
}

}  // namespace
}  // namespace meshrun::coordinator::testing
