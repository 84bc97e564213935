#include "client/render/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "client/render/step_axis.h"
#include "core/proto_time.h"

namespace meshrun::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Json = nlohmann::json;

constexpr int64_t kMilli = 1'000'000;

v1::Job Job(int ranks) {
  v1::Job job;
  job.set_job_id("geoid-a");
  job.set_world_size(static_cast<uint32_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) job.add_ranks()->set_node_name("node-a");
  return job;
}

// A rank whose own clock is `offset_ms` behind the coordinator's, with a step each 10 ms from
// 1000 ms on, on the coordinator's clock.
v1::GetFlightRecordsResponse Rank(int rank, int64_t offset_ms, int steps, const Json& operations,
                                  double now_ms = 1500) {
  v1::GetFlightRecordsResponse answer;
  answer.set_now_nanos(5000 * kMilli);
  *answer.mutable_now() = ToProtoTimestamp(std::chrono::seconds(1'700'000'005));
  v1::FlightRecord& record = *answer.mutable_record();
  record.set_rank(rank);
  record.mutable_clock()->set_offset_nanos(offset_ms * kMilli);
  record.mutable_clock()->set_error_nanos(kMilli / 2);
  const Json json = {{"now_ms", now_ms - static_cast<double>(offset_ms)},
                     {"groups", {{{"group", "world"}, {"operations", operations}}}}};
  record.set_json(json.dump());
  for (int step = 1; step <= steps; ++step) {
    v1::StepTime& time = *record.add_steps();
    time.set_step(step);
    time.set_at_nanos((1000 + 10 * step) * kMilli);
  }
  return answer;
}

// The same with a report of each of these steps, in this order.
v1::GetFlightRecordsResponse RankOf(int rank, const std::vector<int64_t>& steps,
                                    const Json& operations = Json::array(), double now_ms = 4000) {
  v1::GetFlightRecordsResponse answer = Rank(rank, 0, 0, operations, now_ms);
  int64_t at = 1000;
  for (const int64_t step : steps) {
    v1::StepTime& time = *answer.mutable_record()->add_steps();
    time.set_step(step);
    time.set_at_nanos((at += 10) * kMilli);
  }
  return answer;
}

// These, then from `first` to `last`.
std::vector<int64_t> Then(std::vector<int64_t> steps, int64_t first, int64_t last) {
  for (int64_t step = first; step <= last; ++step) steps.push_back(step);
  return steps;
}

Json Operation(int sequence, double submitted, double checked, double finished) {
  return {{"sequence", sequence},  {"operation", "all_reduce"}, {"bytes", 4096},
          {"dtype", "float32"},    {"state", "done"},           {"submitted_ms", submitted},
          {"checked_ms", checked}, {"finished_ms", finished}};
}

// One each 0.1 ms, of 0.05 ms, in this time: a step has 100.
Json Operations(int first, double from, double to) {
  Json operations = Json::array();
  for (int i = 0; from + 0.1 * i < to; ++i) {
    const double at = from + 0.1 * i;
    operations.push_back(Operation(first + i, at, at + 0.02, at + 0.05));
  }
  return operations;
}

std::vector<Json> Events(const JobTrace& trace, const std::string& category) {
  std::vector<Json> events;
  const Json json = Json::parse(trace.json);
  for (const Json& event : json["traceEvents"]) {
    if (event.value("cat", "") == category) events.push_back(event);
  }
  return events;
}

std::vector<std::string> NamesOfSteps(const JobTrace& trace) {
  std::vector<std::string> names;
  for (const Json& step : Events(trace, "step")) names.push_back(step["name"]);
  return names;
}

TEST(TraceTest, RanksWithOtherClocksMeetOnOneAxis) {
  // The same collective, on clocks that are 900 ms and 3900 ms behind.
  const JobTrace trace =
      MakeTrace(Job(2),
                {Rank(0, 900, 5, Json::array({Operation(7, 141, 143, 144)})),
                 Rank(1, 3900, 5, Json::array({Operation(7, -2857, -2857, -2856)}))},
                {}, 2);
  EXPECT_EQ(trace.first_step, 4);
  EXPECT_EQ(trace.last_step, 5);
  EXPECT_EQ(trace.collectives, 2u);
  EXPECT_THAT(trace.notes, IsEmpty());
  const std::vector<Json> collectives = Events(trace, "collective");
  ASSERT_EQ(collectives.size(), 2u);
  // The trace begins with step 4, at 1030 ms.
  EXPECT_DOUBLE_EQ(collectives[0]["ts"], 11'000);
  EXPECT_DOUBLE_EQ(collectives[0]["dur"], 3'000);
  EXPECT_DOUBLE_EQ(collectives[1]["ts"], 13'000);
  EXPECT_DOUBLE_EQ(collectives[1]["dur"], 1'000);
  EXPECT_EQ(collectives[0]["args"]["bytes"], 4096);
  EXPECT_EQ(collectives[0]["args"]["group"], "world");
  // Rank 0 waited for rank 1.
  const std::vector<Json> waits = Events(trace, "wait");
  ASSERT_EQ(waits.size(), 1u);
  EXPECT_EQ(waits[0]["pid"], 0);
  EXPECT_DOUBLE_EQ(waits[0]["dur"], 2'000);
}

// The record is the rank's own.
TEST(TraceTest, ARecordWithOtherTypesAndNumbersBeyondAllTimesIsShownAsFarAsItGoes) {
  Json named = Operation(1, 1041, 1042, 1043);
  named["operation"] = 7;
  Json endless = Operation(2, 1044, 1e300, -1e300);
  v1::GetFlightRecordsResponse rank =
      Rank(0, 0, 5, Json::array({named, endless, Operation(3, 1e300, 1, 2)}));
  Json json = Json::parse(rank.record().json());
  json["groups"][0]["group"] = {1, 2};
  rank.mutable_record()->set_json(json.dump());
  const std::vector<Json> collectives = Events(MakeTrace(Job(1), {rank}, {}, 2), "collective");
  ASSERT_EQ(collectives.size(), 2u);
  EXPECT_EQ(collectives[0]["name"], "operation");
  EXPECT_EQ(collectives[0]["args"]["group"], "");
  EXPECT_EQ(collectives[1]["name"], "all_reduce");
  EXPECT_GE(collectives[1]["dur"], 0);
}

TEST(TraceTest, TheLastStepsThatAllRanksHaveAreShown) {
  const JobTrace trace =
      MakeTrace(Job(2), {Rank(0, 0, 9, Json::array()), Rank(1, 0, 7, Json::array())}, {}, 3);
  EXPECT_EQ(trace.first_step, 5);
  EXPECT_EQ(trace.last_step, 7);
  const std::vector<Json> steps = Events(trace, "step");
  ASSERT_EQ(steps.size(), 6u);
  EXPECT_EQ(steps[0]["name"], "step 5");
  EXPECT_DOUBLE_EQ(steps[0]["dur"], 10'000);
}

TEST(TraceTest, ProgramsThatReportEachTenthStepHaveAtLeastSoManySteps) {
  v1::GetFlightRecordsResponse rank = Rank(0, 0, 6, Json::array());
  for (v1::StepTime& step : *rank.mutable_record()->mutable_steps())
    step.set_step(10 * step.step());
  const JobTrace trace = MakeTrace(Job(1), {rank}, {}, 15);
  EXPECT_EQ(trace.first_step, 41);
  EXPECT_EQ(trace.last_step, 60);
  const std::vector<Json> steps = Events(trace, "step");
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0]["name"], "steps 41 to 50");
}

// 100 steps an epoch, and half of the next one.
TEST(TraceTest, TheLastStepsAreThoseOfTheEpochThatIsUnderWay) {
  const std::vector<int64_t> reported = Then(Then({}, 0, 99), 0, 50);
  const std::vector<v1::GetFlightRecordsResponse> ranks = {RankOf(0, reported),
                                                           RankOf(1, reported)};
  const JobTrace trace = MakeTrace(Job(2), ranks, {}, 5);
  EXPECT_EQ(trace.shown, "steps 46 to 50");
  EXPECT_EQ(trace.first_step, 46);
  EXPECT_EQ(trace.last_step, 50);
  EXPECT_EQ(trace.steps, 5);
  EXPECT_EQ(Events(trace, "step").size(), 10u);
  // That is the report of step 45, the 146th.
  EXPECT_EQ(Json::parse(trace.json)["otherData"]["began"], "2023-11-14T22:13:22.460Z");

  const JobTrace both = MakeTrace(Job(2), ranks, {}, 60);
  EXPECT_EQ(both.shown, "steps 91 to 99 and 0 to 50");
  EXPECT_EQ(both.steps, 60);
  const std::vector<Json> steps = Events(both, "step");
  ASSERT_EQ(steps.size(), 120u);
  EXPECT_EQ(steps[0]["name"], "step 91");
  EXPECT_EQ(steps[9]["name"], "step 0");
  EXPECT_EQ(steps[59]["name"], "step 50");
  EXPECT_EQ(steps[59]["args"]["step"], 50);
  for (size_t i = 0; i < 60; ++i) {
    EXPECT_DOUBLE_EQ(steps[i]["ts"], 10'000.0 * static_cast<double>(i));
    EXPECT_DOUBLE_EQ(steps[i]["dur"], 10'000);
  }
}

TEST(TraceTest, ARankThatHasNotBegunTheEpochIsAmongTheStepsBefore) {
  const JobTrace trace =
      MakeTrace(Job(3),
                {RankOf(0, Then(Then({}, 0, 99), 0, 1)), RankOf(1, Then({}, 0, 99)),
                 RankOf(2, Then(Then({}, 0, 99), 0, 0))},
                {}, 5);
  EXPECT_EQ(trace.shown, "steps 95 to 99");
  EXPECT_EQ(Events(trace, "step").size(), 15u);
  for (const Json& step : Events(trace, "step")) EXPECT_DOUBLE_EQ(step["dur"], 10'000);
}

// One has kept more: its host counts more reports.
TEST(TraceTest, EpochsOfRecordsThatBeginAtOtherStepsAreTheSame) {
  const std::vector<int64_t> all = Then(Then(Then({}, 0, 99), 0, 99), 0, 20);
  v1::GetFlightRecordsResponse shorter = RankOf(1, all);
  shorter.mutable_record()->mutable_steps()->DeleteSubrange(0, 140);
  for (const bool is_first : {false, true}) {
    const JobTrace trace = is_first ? MakeTrace(Job(2), {shorter, RankOf(0, all)}, {}, 100)
                                    : MakeTrace(Job(2), {RankOf(0, all), shorter}, {}, 100);
    EXPECT_EQ(trace.shown, "steps 41 to 99 and 0 to 20");
    EXPECT_EQ(Events(trace, "step").size(), 160u);
    for (const Json& step : Events(trace, "step")) EXPECT_DOUBLE_EQ(step["dur"], 10'000);
  }
}

TEST(TraceTest, StepsOfTwoEpochsThatAreLeftOutAreNamed) {
  const JobTrace trace = MakeTrace(
      Job(1), {RankOf(0, Then(Then({}, 1, 5), 1, 5), Operations(400, 1067.01, 1105), 1105)}, {}, 8);
  EXPECT_EQ(trace.shown, "steps 3 to 5");
  EXPECT_THAT(trace.notes,
              ElementsAre("rank 0's record begins in the middle of step 2: it holds the last 380 "
                          "operations of group world, so that steps 3 to 5 and 1 to 2 are left "
                          "out"));
}

TEST(TraceTest, ProgramsThatReportEachTenthStepOfAnEpochHaveSlicesInOrder) {
  const std::vector<v1::GetFlightRecordsResponse> ranks = {RankOf(0, {10, 20, 30, 10, 20})};
  const JobTrace last = MakeTrace(Job(1), ranks, {}, 15);
  EXPECT_EQ(last.shown, "steps 1 to 20");
  EXPECT_EQ(last.steps, 20);
  const JobTrace trace = MakeTrace(Job(1), ranks, {}, 25);
  EXPECT_EQ(trace.shown, "steps 21 to 30 and 1 to 20");
  EXPECT_EQ(trace.steps, 30);
  EXPECT_EQ(NamesOfSteps(trace),
            (std::vector<std::string>{"steps 21 to 30", "steps 1 to 10", "steps 11 to 20"}));
}

// Steps 0, 10, ... of 100: nobody reports that the steps after 90 are taken before the next epoch.
TEST(TraceTest, StepsAfterTheLastReportOfAnEpochAreCounted) {
  const JobTrace trace =
      MakeTrace(Job(2), {RankOf(0, {70, 80, 90, 0, 10}), RankOf(1, {70, 80, 90, 0})}, {}, 15);
  EXPECT_EQ(trace.shown, "steps 81 to 99 and 0");
  EXPECT_EQ(trace.steps, 20);
  EXPECT_EQ(NamesOfSteps(trace),
            (std::vector<std::string>{"steps 81 to 90", "steps 91 to 99 and 0", "steps 81 to 90",
                                      "steps 91 to 99 and 0"}));
}

TEST(TraceTest, NumbersThatHaveNoRoomOnOneAxisAreThoseOfTheLastEpoch) {
  const JobTrace trace =
      MakeTrace(Job(1), {RankOf(0, {7, 8, std::numeric_limits<int64_t>::max(), 1, 2, 3})}, {}, 5);
  EXPECT_EQ(trace.shown, "steps 2 to 3");
}

// Perfetto drops what is before its time 0.
TEST(TraceTest, TheTraceBeginsWithWhatWasUnderWayBeforeItsFirstStep) {
  const JobTrace trace =
      MakeTrace(Job(1), {Rank(0, 0, 5, Json::array({Operation(1, 1025, 1031, 1033)}))}, {}, 2);
  const std::vector<Json> collectives = Events(trace, "collective");
  ASSERT_EQ(collectives.size(), 1u);
  EXPECT_DOUBLE_EQ(collectives[0]["ts"], 0);
  EXPECT_DOUBLE_EQ(collectives[0]["dur"], 8'000);
  // Step 4 begins at 1030 ms.
  EXPECT_DOUBLE_EQ(Events(trace, "step")[0]["ts"], 5'000);
  // 5000 ms of the coordinator's clock are 5 s past.
  EXPECT_EQ(Json::parse(trace.json)["otherData"]["began"], "2023-11-14T22:13:21.025Z");
}

TEST(TraceTest, FewerStepsThanAskedForAreCounted) {
  EXPECT_EQ(MakeTrace(Job(1), {Rank(0, 0, 3, Json::array())}, {}, 5).steps, 2);
  EXPECT_EQ(MakeTrace(Job(1), {Rank(0, 0, 1, Json::array())}, {}, 5).steps, 0);
  EXPECT_EQ(MakeTrace(Job(1), {Rank(0, 0, 0, Json::array())}, {}, 5).steps, 0);
}

TEST(TraceTest, OperationsThatOverlapHaveThreadsOfTheirOwn) {
  const JobTrace trace = MakeTrace(
      Job(1),
      {Rank(0, 0, 0,
            {Operation(1, 10, 11, 20), Operation(2, 12, 13, 18), Operation(3, 21, 22, 23)})},
      {}, 1);
  std::vector<int> threads;
  for (const Json& event : Events(trace, "collective")) threads.push_back(event["tid"]);
  EXPECT_THAT(threads, ElementsAre(1, 2, 1));
}

TEST(TraceTest, EventsOfTheJobLieOnTheSameAxis) {
  v1::ClusterEvent event;
  event.set_kind("CheckpointCommitted");
  // 5000 ms of the coordinator's clock are 5 s past: 1045 ms are these.
  *event.mutable_at() = ToProtoTimestamp(std::chrono::milliseconds(1'700'000'001'045));
  v1::ClusterEvent early = event;
  *early.mutable_at() = ToProtoTimestamp(std::chrono::seconds(1'600'000'000));
  const JobTrace trace = MakeTrace(Job(1), {Rank(0, 0, 5, Json::array())}, {early, event}, 2);
  const std::vector<Json> events = Events(trace, "event");
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0]["name"], "CheckpointCommitted");
  EXPECT_DOUBLE_EQ(events[0]["ts"], 15'000);
}

TEST(TraceTest, StepsWhoseCollectivesARecordHasLostAreLeftOut) {
  const JobTrace trace = MakeTrace(Job(2),
                                   {Rank(0, 0, 5, Operations(1, 1000.01, 1055)),
                                    Rank(1, 0, 5, Operations(271, 1027.01, 1055), 1055)},
                                   {}, 3);
  EXPECT_EQ(trace.first_step, 4);
  EXPECT_EQ(trace.last_step, 5);
  EXPECT_EQ(trace.steps, 2);
  EXPECT_EQ(trace.collectives, 400u);
  EXPECT_TRUE(trace.complete);
  // Its record is shorter than three steps.
  EXPECT_FALSE(trace.may_grow);
  EXPECT_THAT(trace.notes,
              ElementsAre("rank 1's record begins in the middle of step 3: it holds the last 280 "
                          "operations of group world, so that step 3 is left out"));
}

TEST(TraceTest, ARecordThatWasTakenTooLongAfterTheStepsIsTakenAgain) {
  const JobTrace trace =
      MakeTrace(Job(1), {Rank(0, 0, 5, Operations(400, 1045.01, 1085), 1085)}, {}, 3);
  EXPECT_EQ(trace.first_step, 3);
  EXPECT_EQ(trace.last_step, 5);
  EXPECT_FALSE(trace.complete);
  EXPECT_TRUE(trace.may_grow);
  EXPECT_THAT(trace.notes,
              ElementsAre(HasSubstr("rank 0's record begins in the middle of step 5")));
  EXPECT_THAT(trace.notes, ElementsAre(HasSubstr("collectives of these steps are missing")));
}

TEST(TraceTest, CollectivesAfterTheLastStepAreNotOfTheSteps) {
  const JobTrace trace = MakeTrace(
      Job(2),
      {Rank(0, 0, 5, Operations(1, 1000.01, 1085)), Rank(1, 0, 5, Operations(1, 1000.01, 1085))},
      {}, 3);
  EXPECT_EQ(trace.first_step, 3);
  EXPECT_EQ(trace.collectives, 600u);
  EXPECT_THAT(trace.notes, IsEmpty());
}

TEST(TraceTest, StepsAfterTheRecordWasTakenAreNotShown) {
  const JobTrace trace =
      MakeTrace(Job(1), {Rank(0, 0, 5, Operations(1, 1000.01, 1037), 1037)}, {}, 2);
  EXPECT_EQ(trace.first_step, 2);
  EXPECT_EQ(trace.last_step, 3);
  EXPECT_EQ(trace.collectives, 200u);
  EXPECT_TRUE(trace.complete);
}

TEST(TraceTest, ARecordWithoutCollectivesIsSaid) {
  const JobTrace trace = MakeTrace(
      Job(2), {Rank(0, 0, 5, Operations(1, 1000.01, 1055)), Rank(1, 0, 5, Json::array())}, {}, 2);
  EXPECT_EQ(trace.collectives, 200u);
  EXPECT_THAT(trace.notes, ElementsAre("rank 1 has no collectives: its record holds none"));
}

TEST(TraceTest, RanksThatReportAtOtherMomentsHaveTheSameCollectives) {
  v1::GetFlightRecordsResponse late =
      Rank(1, 0, 5, {Operation(1, 1028, 1029, 1029.9), Operation(2, 1036, 1037, 1038)});
  // All of its reports are 3 ms later.
  for (v1::StepTime& step : *late.mutable_record()->mutable_steps()) {
    step.set_at_nanos(step.at_nanos() + 3 * kMilli);
  }
  const JobTrace trace = MakeTrace(
      Job(2),
      {Rank(0, 0, 5, {Operation(1, 1027, 1029, 1029.9), Operation(2, 1035, 1037, 1038)}), late}, {},
      2);
  std::vector<int> sequences;
  for (const Json& event : Events(trace, "collective")) {
    sequences.push_back(event["args"]["sequence"]);
  }
  EXPECT_THAT(sequences, ElementsAre(2, 2));
}

TEST(TraceTest, WhatIsMissingIsSaid) {
  v1::GetFlightRecordsResponse old = Rank(1, 0, 5, Json::array());
  old.mutable_record()->clear_clock();
  v1::GetFlightRecordsResponse silent = Rank(2, 0, 5, Json::array());
  silent.mutable_record()->clear_json();
  silent.mutable_record()->set_error("it has no process group on ucx that runs");
  v1::GetFlightRecordsResponse garbled = Rank(3, 0, 5, Json::array());
  garbled.mutable_record()->set_json("{]");
  const JobTrace trace =
      MakeTrace(Job(4), {Rank(0, 0, 5, Json::array()), old, silent, garbled}, {}, 2);
  EXPECT_THAT(trace.notes, ElementsAre(HasSubstr("rank 1 is left out"),
                                       HasSubstr("rank 2 has no collectives: it has no process"),
                                       HasSubstr("rank 3 has no collectives: its record"),
                                       HasSubstr("rank 0 has no collectives: its record holds")));
  EXPECT_EQ(trace.ranks, 3);
  EXPECT_EQ(trace.steps, 2);
}

TEST(TraceTest, AJobThatEndsWhileStepsAreWaitedForLeavesWhatItsRanksKept) {
  v1::Job job = Job(2);
  job.set_state(v1::JOB_STATE_SUCCEEDED);
  const JobTrace before =
      MakeTrace(job, {Rank(0, 0, 25, Json::array()), Rank(1, 0, 25, Json::array())}, {}, 50);
  const auto trace = TraceOfEnded(job, before, 50);
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_EQ(trace->notes.size(), before.notes.size() + 1);
  EXPECT_EQ(trace->notes.back(), "job geoid-a ended after 24 of 50 steps");
  EXPECT_EQ(Json::parse(trace->json)["otherData"]["notes"], Json(trace->notes));
  EXPECT_EQ(Events(*trace, "step"), Events(before, "step"));
}

TEST(TraceTest, AJobThatEndedBeforeIsSaidToHaveNothingToTrace) {
  v1::Job job = Job(1);
  job.set_state(v1::JOB_STATE_SUCCEEDED);
  for (const std::optional<JobTrace>& before : {std::optional<JobTrace>(), {JobTrace()}}) {
    const auto trace = TraceOfEnded(job, before, 5);
    EXPECT_EQ(trace.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(trace.status().message(),
              "job geoid-a is SUCCEEDED, so that there is nothing to trace: ranks keep their steps "
              "and collectives while they run; ask while it runs");
  }
}

TEST(TraceTest, RanksThatEndTakeNothingFromAnEarlierTraceOfTheirGeneration) {
  v1::Job job = Job(2);
  const JobTrace both =
      MakeTrace(job, {Rank(0, 0, 9, Json::array()), Rank(1, 0, 9, Json::array())}, {}, 50);
  const JobTrace one = MakeTrace(job, {Rank(0, 0, 9, Json::array())}, {}, 50);
  const JobTrace more =
      MakeTrace(job, {Rank(0, 0, 10, Json::array()), Rank(1, 0, 10, Json::array())}, {}, 50);
  EXPECT_TRUE(HasLost(one, both));
  EXPECT_FALSE(HasLost(more, both));
  job.set_generation(2);
  EXPECT_FALSE(HasLost(MakeTrace(job, {Rank(0, 0, 2, Json::array())}, {}, 50), both));
}

// A record keeps the last reports, so that the first of them says nothing of where an epoch began.
TEST(StepAxisTest, ARankAtTheEndOfAnEpochIsInThatEpoch) {
  StepAxis::Reports sparse, dense;
  for (int64_t step = 0; step <= 990; step += 10) sparse.emplace_back(step, step);
  sparse.emplace_back(0, 1000);
  for (int64_t step = 744; step <= 990; ++step) dense.emplace_back(step, step);
  const StepAxis axis({sparse, dense});
  EXPECT_EQ(axis.PlacesOf(0).rbegin()->first, 991);
  EXPECT_EQ(axis.PlacesOf(1).begin()->first, 744);
  EXPECT_EQ(axis.PlacesOf(1).rbegin()->first, 990);
  EXPECT_EQ(axis.StepAt(991), 0);
}

TEST(StepAxisTest, StepsBetweenTwoEpochsAreThoseThatReportsSay) {
  // Steps that a rank has reported, in this order; where the last one lies.
  const std::vector<std::pair<std::vector<int64_t>, int64_t>> cases = {
      {{97, 98, 99, 0, 1}, 101},
      {{98, 99, 100, 1, 2}, 102},
      {{80, 90, 100, 10}, 110},
      {{70, 80, 90, 0}, 100},
      {{79, 89, 99, 9}, 109},
      // It reports the last step of an epoch too.
      {{80, 90, 99, 0}, 100},
      // Whenever a second has passed: nobody knows.
      {{13, 55, 96, 31}, 97},
      // A rank that goes back for another reason, and one that has lost reports.
      {{104, 105, 101, 102}, 107},
      {{70, 80, 90, 50}, 100},
      {{7, 3, 3}, 8}};
  for (const auto& [steps, place] : cases) {
    StepAxis::Reports reports;
    for (const int64_t step : steps)
      reports.emplace_back(step, static_cast<int64_t>(reports.size()));
    const StepAxis axis({reports});
    EXPECT_EQ(axis.PlacesOf(0).rbegin()->first, place) << ::testing::PrintToString(steps);
    EXPECT_EQ(axis.StepAt(place), steps.back());
  }
}

// Sums of such steps would not fit into 64 bits.
TEST(StepAxisTest, OneRankWithHugeStepsShortensAll) {
  const StepAxis axis({{{1, 1}, {2, 2}, {1, 3}}, {{std::numeric_limits<int64_t>::max(), 2}}});
  EXPECT_EQ(axis.PlacesOf(0).rbegin()->first, 1);
  EXPECT_EQ(axis.PlacesOf(1).begin()->first, std::numeric_limits<int64_t>::max());
}

}  // namespace
}  // namespace meshrun::client
