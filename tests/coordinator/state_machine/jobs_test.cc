#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/state_machine/curve.h"
#include "core/env_entries.h"
#include "core/job_delta.h"
#include "core/proto_time.h"
#include "tests/coordinator/support/harness.h"

namespace meshrun::coordinator::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class JobsTest : public ::testing::Test {
 protected:
  std::string Message(const Harness::Answer& answer) {
    return std::string(answer.status.message());
  }
  Harness h;
};

TEST_F(JobsTest, SubmitAnswersQueuedWithTheReason) {
  h.AddWorker("node1", 8);
  const v1::Job job = h.TrySubmit(MakeSpec(1, 99)).As<v1::SubmitJobResponse>().job();
  EXPECT_EQ(job.state(), v1::JOB_STATE_QUEUED);
  EXPECT_EQ(job.reason(),
            "needs 1 node, and 0 of 1 can take it: node1 would have to give 99 slots, and 8 of 8 "
            "are free");
}

// An event that no part of the state machine takes would leave its caller without an answer.
TEST_F(JobsTest, EveryCallIsAnsweredAlsoWhenItNamesNothing) {
  const google::protobuf::OneofDescriptor* const events =
      v1::StateEvent::descriptor()->FindOneofByName("event");
  const std::set<std::string> no_calls = {"tick",           "session_message", "session_closed",
                                          "call_cancelled", "restore",         "notice",
                                          "set_policy",     "outside_call"};
  for (int i = 0; i < events->field_count(); ++i) {
    const google::protobuf::FieldDescriptor* const field = events->field(i);
    if (no_calls.contains(field->name())) continue;
    v1::StateEvent event;
    event.GetReflection()->MutableMessage(&event, field);
    EXPECT_TRUE(h.answer(h.Call(std::move(event))).done) << field->name();
  }
}

TEST_F(JobsTest, TheSameRequestIsTheSameJob) {
  h.AddWorker("node1");
  const std::string first =
      h.TrySubmit(MakeSpec(1, 1), "r1").As<v1::SubmitJobResponse>().job().job_id();
  h.StartCoordinator();
  EXPECT_EQ(h.TrySubmit(MakeSpec(1, 1), "r1").As<v1::SubmitJobResponse>().job().job_id(), first);
  EXPECT_NE(h.TrySubmit(MakeSpec(1, 1), "r2").As<v1::SubmitJobResponse>().job().job_id(), first);
}

TEST_F(JobsTest, ValuesOfTheEnvironmentGoToTheRanksAloneAlsoAfterARestart) {
  v1::JobSpec spec = MakeSpec(1, 1);
  SetEnv(*spec.mutable_env(), "TOKEN", "secret");
  const std::string id = h.Submit(spec);
  EXPECT_EQ(EnvMap(h.job(id).spec().env()).at("TOKEN"), "(hidden)");
  h.StartCoordinator();
  EXPECT_EQ(EnvMap(h.job(id).spec().env()).at("TOKEN"), "(hidden)");
  FakeWorker& worker = h.AddWorker("node1");
  int prepared = 0;
  for (const v1::OpenSessionResponse& message : worker.received) {
    if (!message.has_prepare()) continue;
    EXPECT_EQ(EnvMap(message.prepare().spec().env()).at("TOKEN"), "secret");
    ++prepared;
  }
  EXPECT_EQ(prepared, 1);
}

TEST_F(JobsTest, MustFitRefusesWhatCouldNeverRun) {
  h.AddWorker("node1", 8);
  h.Submit(MakeSpec(1, 8));
  EXPECT_TRUE(h.TrySubmit(MakeSpec(1, 8), "", true).status.ok());
  const auto& refused = h.TrySubmit(MakeSpec(1, 9), "", true);
  EXPECT_TRUE(absl::IsFailedPrecondition(refused.status));
  EXPECT_THAT(Message(refused), HasSubstr("9 slots, and 8 of 8 are free"));
}

TEST_F(JobsTest, AnUnknownShippedJobIsRefusedWithWhatIsOffered) {
  h.AddWorkerWith({.name = "node1", .shipped_jobs = {"ddp_recipe", "geoid"}});
  v1::JobSpec spec = MakeSpec(1, 1);
  spec.set_shipped_job("geiod");
  const auto& answer = h.TrySubmit(spec);
  EXPECT_TRUE(absl::IsNotFound(answer.status));
  EXPECT_THAT(Message(answer), HasSubstr("offered are: ddp_recipe, geoid"));
}

TEST_F(JobsTest, QueueTimeoutFailsTheJobWithItsReason) {
  h.AddWorker("node1", 2);
  v1::JobSpec spec = MakeSpec(1, 4);
  *spec.mutable_queue_timeout() = ToProtoDuration(seconds(3));
  const std::string id = h.Submit(spec);
  h.Advance(milliseconds(2999));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_QUEUED);
  h.Advance(milliseconds(1));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_FAILED);
  EXPECT_EQ(h.job(id).failure().cause(), v1::FAILURE_CAUSE_QUEUE_TIMEOUT);
  EXPECT_THAT(h.job(id).failure().message(),
              HasSubstr("within its queue timeout of 3s: needs 1 node"));
}

TEST_F(JobsTest, FirstComeFirstServedWithinAPriority) {
  FakeWorker& worker = h.AddWorker("node1", 4);
  const std::string running = h.Submit(MakeSpec(1, 3));
  const std::string large = h.Submit(MakeSpec(1, 4));
  const std::string small = h.Submit(MakeSpec(1, 1));
  v1::JobSpec urgent_spec = MakeSpec(1, 4);
  urgent_spec.set_priority(1);
  const std::string urgent = h.Submit(urgent_spec);
  // One slot is free, and the small one would fit: it waits, else the large one might never start.
  EXPECT_EQ(h.state(small), v1::JOB_STATE_QUEUED);
  EXPECT_THAT(h.job(small).reason(), HasSubstr("behind job " + urgent));
  h.Say(worker, worker.ExitAll(running, 0));
  EXPECT_EQ(h.state(urgent), v1::JOB_STATE_RUNNING);
  h.Say(worker, worker.ExitAll(urgent, 0));
  EXPECT_EQ(h.state(large), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(h.state(small), v1::JOB_STATE_QUEUED);
}

TEST_F(JobsTest, AJobThatCouldNeverRunHoldsNobodyUp) {
  h.AddWorker("node1", 4);
  const std::string never = h.Submit(MakeSpec(1, 99));
  EXPECT_EQ(h.state(h.Submit(MakeSpec(1, 1))), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(h.state(never), v1::JOB_STATE_QUEUED);
}

TEST_F(JobsTest, AQueuedJobStartsWhenANodeJoins) {
  const std::string id = h.Submit(MakeSpec(2, 4));
  h.AddWorker("node1");
  EXPECT_EQ(h.job(id).reason(), "needs 2 nodes, and 1 is connected");
  h.AddWorker("node2");
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
}

TEST_F(JobsTest, APrefixFindsTheOneJobThatHasIt) {
  const std::string first = h.Submit(MakeSpec(1, 1));
  v1::StateEvent get;
  get.mutable_get_job()->set_job_id("tra");
  EXPECT_EQ(h.answer(h.Call(get)).As<v1::GetJobResponse>().job().job_id(), first);
  h.Submit(MakeSpec(1, 1));
  const auto& two = h.answer(h.Call(get));
  EXPECT_TRUE(absl::IsNotFound(two.status));
  EXPECT_THAT(Message(two), HasSubstr("'tra' matches 2 jobs"));
  get.mutable_get_job()->set_job_id("nope");
  const auto& none = h.answer(h.Call(get));
  EXPECT_TRUE(absl::IsNotFound(none.status));
  EXPECT_THAT(Message(none), HasSubstr("no job 'nope' among the 2 that are known"));
}

TEST_F(JobsTest, CancellingAnEndedJobIsNoError) {
  const std::string id = h.Submit(MakeSpec(1, 1));
  h.Cancel(id);
  EXPECT_EQ(h.state(id), v1::JOB_STATE_CANCELLED);
  v1::StateEvent cancel;
  cancel.mutable_cancel_job()->set_job_id(id);
  EXPECT_TRUE(h.answer(h.Call(cancel)).status.ok());
}

TEST_F(JobsTest, ListsNewestFirstInPages) {
  std::vector<std::string> ids;
  for (int i = 0; i < 5; ++i) ids.push_back(h.Submit(MakeSpec(1, 1)));
  v1::StateEvent list;
  list.mutable_list_jobs()->set_page_size(3);
  const auto first = h.answer(h.Call(list)).As<v1::ListJobsResponse>();
  ASSERT_EQ(first.jobs_size(), 3);
  EXPECT_EQ(first.jobs(0).job_id(), ids[4]);
  list.mutable_list_jobs()->set_page_token(first.next_page_token());
  const auto second = h.answer(h.Call(list)).As<v1::ListJobsResponse>();
  ASSERT_EQ(second.jobs_size(), 2);
  EXPECT_EQ(second.jobs(1).job_id(), ids[0]);
  EXPECT_EQ(second.next_page_token(), "");
  list.mutable_list_jobs()->set_page_token("x");
  EXPECT_TRUE(absl::IsInvalidArgument(h.answer(h.Call(list)).status));
}

TEST_F(JobsTest, AListCanBeNarrowedAndHasRunningJobsFirst) {
  FakeWorker& node = h.AddWorker("node1", 2);
  const std::string running = h.SubmitAs("ada", MakeSpec(1, 2));
  const std::string ended = h.SubmitAs("ada", MakeSpec(1, 2));
  h.Cancel(ended);
  std::vector<std::string> queued;
  for (int i = 0; i < 3; ++i) queued.push_back(h.SubmitAs(i == 1 ? "ada" : "bob", MakeSpec(1, 2)));
  const auto list = [&](v1::ListJobsRequest request) {
    std::vector<std::string> ids;
    v1::StateEvent event;
    *event.mutable_list_jobs() = std::move(request);
    do {
      const auto page = h.answer(h.Call(event)).As<v1::ListJobsResponse>();
      for (const v1::Job& job : page.jobs()) ids.push_back(job.job_id());
      event.mutable_list_jobs()->set_page_token(page.next_page_token());
    } while (!event.list_jobs().page_token().empty());
    return ids;
  };
  v1::ListJobsRequest request;
  request.set_running_first(true);
  for (const uint32_t page : {1, 2, 100}) {
    request.set_page_size(page);
    EXPECT_THAT(list(request), ElementsAre(running, queued[2], queued[1], queued[0], ended));
  }
  request.set_user("ada");
  EXPECT_THAT(list(request), ElementsAre(running, queued[1], ended));
  request.set_active_only(true);
  EXPECT_THAT(list(request), ElementsAre(running, queued[1]));
  request.add_states(v1::JOB_STATE_QUEUED);
  EXPECT_THAT(list(request), ElementsAre(queued[1]));
  request.set_user("eve");
  EXPECT_TRUE(list(request).empty());
  EXPECT_EQ(node.received.empty(), false);
}

// 70 jobs with a megabyte of arguments each made an answer that no client takes.
TEST_F(JobsTest, PagesOfJobsAndEventsEndByTheirBytes) {
  v1::JobSpec large = MakeSpec(1, 1);
  large.set_hold(true);
  large.add_command(std::string(1'000'000, 'x'));
  std::set<std::string> ids;
  for (int i = 0; i < 10; ++i) ids.insert(h.Submit(large));
  v1::StateEvent list;
  list.mutable_list_jobs()->set_page_size(1000);
  std::set<std::string> listed;
  int pages = 0;
  do {
    const auto page = h.answer(h.Call(list)).As<v1::ListJobsResponse>();
    EXPECT_LE(page.ByteSizeLong(), 5u << 20);
    for (const v1::Job& job : page.jobs()) EXPECT_TRUE(listed.insert(job.job_id()).second);
    list.mutable_list_jobs()->set_page_token(page.next_page_token());
    ++pages;
  } while (!list.list_jobs().page_token().empty() && pages < 20);
  EXPECT_EQ(listed, ids);
  EXPECT_EQ(pages, 3);

  v1::StateEvent notice;
  notice.mutable_notice()->set_kind("Noticed");
  notice.mutable_notice()->set_message(std::string(1'000'000, 'n'));
  for (int i = 0; i < 1500; ++i) h.Call(notice);
  v1::StateEvent cancel;
  cancel.mutable_cancel_job()->set_reason(std::string(1'000'000, 'r'));
  for (const std::string& id : ids) {
    cancel.mutable_cancel_job()->set_job_id(id);
    h.Call(cancel);
  }
  v1::StateEvent events;
  events.mutable_list_events()->set_limit(10'000);
  const auto page = h.answer(h.Call(events)).As<v1::ListEventsResponse>();
  EXPECT_TRUE(page.more());
  EXPECT_LE(page.ByteSizeLong(), 5u << 20);
  for (const v1::ClusterEvent& event : page.events()) EXPECT_LE(event.message().size(), 4096u);
  v1::StateEvent describe;
  describe.mutable_describe_cluster()->set_max_events(10'000);
  const auto cluster = h.answer(h.Call(describe)).As<v1::DescribeClusterResponse>();
  EXPECT_LE(cluster.ByteSizeLong(), 5u << 20);
  EXPECT_EQ(cluster.events(cluster.events_size() - 1).job_id(), *ids.rbegin()) << "the newest stay";
}

TEST_F(JobsTest, AWatchShowsEachChangeAndEndsWithTheJob) {
  FakeWorker& worker = h.AddWorker("node1");
  const std::string id = h.Submit(MakeSpec(1, 1));
  v1::StateEvent watch;
  watch.mutable_watch_job()->set_job_id(id);
  Harness::Answer& answer = h.answer(h.Call(watch));
  ASSERT_EQ(answer.items.size(), 1u);
  h.Say(worker, worker.ExitAll(id, 0));
  EXPECT_TRUE(answer.done);
  EXPECT_TRUE(answer.status.ok());
  const auto& last = dynamic_cast<const v1::WatchJobResponse&>(*answer.items.back());
  EXPECT_EQ(last.job().state(), v1::JOB_STATE_SUCCEEDED);
  EXPECT_GT(last.job().revision(),
            dynamic_cast<const v1::WatchJobResponse&>(*answer.items.front()).job().revision());
}

TEST_F(JobsTest, AWatchTellsProgressAtMostOnceASecondAndStatesAtOnce) {
  FakeWorker& worker = h.AddWorker("node1");
  const std::string id = h.Submit(MakeSpec(1, 3));
  v1::StateEvent watch;
  watch.mutable_watch_job()->set_job_id(id);
  watch.mutable_watch_job()->set_deltas(true);
  watch.mutable_watch_job()->set_curve(true);
  Harness::Answer& answer = h.answer(h.Call(watch));
  ASSERT_EQ(answer.items.size(), 1u);
  v1::Job job = dynamic_cast<const v1::WatchJobResponse&>(*answer.items[0]).job();
  EXPECT_EQ(job.ranks_size(), 3);
  v1::OpenSessionRequest report = worker.Message({id, h.job(id).generation()});
  for (int step = 1; step <= 40; ++step) {
    h.Advance(milliseconds(100));
    (*report.mutable_progress_report()->mutable_progress())[0].set_step(step);
    h.Say(worker, {report});
  }
  EXPECT_GE(answer.items.size(), 4u);
  EXPECT_LE(answer.items.size(), 6u);
  const auto& delta = dynamic_cast<const v1::WatchJobResponse&>(*answer.items.back());
  EXPECT_FALSE(delta.has_job());
  EXPECT_EQ(delta.delta().ranks_size(), 0) << "no rank has changed its state";
  EXPECT_GE(delta.curve_size(), 9) << "all steps of the last second";
  const size_t before = answer.items.size();
  h.Say(worker, worker.Exit(id, 1, 3));
  ASSERT_GT(answer.items.size(), before) << "a state is told at once";
  for (size_t i = 1; i < answer.items.size(); ++i) {
    const auto& item = dynamic_cast<const v1::WatchJobResponse&>(*answer.items[i]);
    ASSERT_TRUE(item.has_delta());
    Fold(item.delta(), &job);
  }
  EXPECT_EQ(job.state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(job.spec().name(), "train");
  EXPECT_EQ(job.progress().step(), 40);
  EXPECT_EQ(job.ranks(1).exit().exit_code(), 3);
  EXPECT_EQ(job.ranks(0).state(), v1::RANK_STATE_EXITED);
  EXPECT_TRUE(answer.done);
}

TEST_F(JobsTest, WatchersOfALargeJobArePacedAndShareWhatTheyAreTold) {
  FakeWorker& worker = h.AddWorker("node1", 300);
  const std::string id = h.Submit(MakeSpec(1, 300));
  v1::StateEvent watch;
  watch.mutable_watch_job()->set_job_id(id);
  Harness::Answer& first = h.answer(h.Call(watch));
  Harness::Answer& second = h.answer(h.Call(watch));
  h.Advance(seconds(2));
  const size_t before = first.items.size();
  v1::OpenSessionRequest report = worker.Message({id, h.job(id).generation()});
  for (int step = 1; step <= 20; ++step) {
    h.Advance(milliseconds(100));
    (*report.mutable_progress_report()->mutable_progress())[0].set_step(step);
    h.Say(worker, {report});
  }
  EXPECT_GE(first.items.size(), before + 2);
  EXPECT_LE(first.items.size(), before + 4);
  EXPECT_EQ(first.items.back(), second.items.back()) << "one message for both";
  h.Advance(seconds(1));
  EXPECT_EQ(dynamic_cast<const v1::WatchJobResponse&>(*first.items.back()).job().progress().step(),
            20)
      << "the last news comes without another one";
}

TEST_F(JobsTest, AWatcherOfAWaitingJobHearsItsReasonWithinASecond) {
  h.AddWorker("node1", 2);
  const std::string id = h.Submit(MakeSpec(1, 4));
  v1::StateEvent watch;
  watch.mutable_watch_job()->set_job_id(id);
  watch.mutable_watch_job()->set_deltas(true);
  Harness::Answer& answer = h.answer(h.Call(watch));
  h.Advance(seconds(5));
  ASSERT_EQ(answer.items.size(), 1u) << "nothing is news";
  h.AddWorker("node2", 3);
  h.Advance(seconds(1));
  ASSERT_EQ(answer.items.size(), 2u);
  const auto& delta = dynamic_cast<const v1::WatchJobResponse&>(*answer.items[1]).delta();
  EXPECT_THAT(delta.head().reason(), HasSubstr("0 of 2 can take it"));
}

TEST_F(JobsTest, ACurveCoversTheWholeRunInABoundedNumberOfPoints) {
  Curve curve;
  v1::Progress progress;
  for (int second = 0; second < 10'000; ++second) {
    progress.set_step(second);
    progress.set_loss(1.0 / (1 + second));
    (*progress.mutable_metrics())["lr"] = second;
    curve.Add(progress, seconds(second));
  }
  v1::GetJobResponse out;
  curve.Since(0, out.mutable_curve());
  ASSERT_LE(out.curve_size(), static_cast<int>(Curve::kMostPoints));
  ASSERT_GE(out.curve_size(), static_cast<int>(Curve::kMostPoints / 2));
  EXPECT_EQ(out.curve(0).step(), 0);
  EXPECT_GT(out.curve(out.curve_size() - 1).step(), 9'900);
  EXPECT_EQ(out.curve(1).metrics().at("lr"), out.curve(1).step());
}

TEST_F(JobsTest, AShortJobsCurveHasAllItsPoints) {
  Curve curve;
  v1::Progress progress;
  for (int step = 1; step <= 200; ++step) {
    progress.set_step(step);
    curve.Add(progress, milliseconds(10 * step));
  }
  v1::GetJobResponse out;
  curve.Since(0, out.mutable_curve());
  EXPECT_EQ(out.curve_size(), 200);
}

// A point as a line of text.
std::vector<std::string> Lines(const Curve& curve) {
  google::protobuf::RepeatedPtrField<v1::ProgressPoint> points;
  curve.Since(0, &points);
  std::vector<std::string> lines;
  for (const v1::ProgressPoint& point : points) {
    std::string& line = lines.emplace_back(fmt::format("{}:", point.step()));
    if (point.has_loss()) line += fmt::format(" {}", point.loss());
    std::map<std::string, double> metrics(point.metrics().begin(), point.metrics().end());
    for (const auto& [name, value] : metrics) line += fmt::format(" {}={}", name, value);
  }
  return lines;
}

v1::Progress Said(int64_t step, std::optional<double> loss,
                  const std::map<std::string, double>& metrics = {}) {
  v1::Progress progress;
  progress.set_step(step);
  if (loss) progress.set_loss(*loss);
  progress.mutable_metrics()->insert(metrics.begin(), metrics.end());
  return progress;
}

TEST_F(JobsTest, APointHasTheNumbersOfItsReportAlone) {
  Curve curve;
  curve.Add(Said(1, 0.1, {{"m", 1}}), seconds(1));
  curve.Add(Said(2, std::nullopt), seconds(2));
  curve.Add(Said(3, std::numeric_limits<double>::quiet_NaN()), seconds(3));
  curve.Add(Said(3, std::numeric_limits<double>::quiet_NaN()), seconds(3));
  curve.Add(Said(3, std::nullopt, {{"m", 3}}), seconds(3));
  curve.Add(Said(1, 0.1), seconds(4));
  EXPECT_THAT(Lines(curve), ElementsAre("1: 0.1 m=1", "2:", "3: nan", "3: m=3", "1: 0.1"));
}

TEST_F(JobsTest, ACurveHasTheFirstEightMetricsByNameWhereOneReportHasMore) {
  Curve curve;
  curve.Add(Said(1, 0.1, {{"zz", 1}}), seconds(1));
  std::map<std::string, double> many;
  for (int i = 0; i < 100; ++i) many[fmt::format("m{:02}", i)] = i;
  curve.Add(Said(2, 0.2, many), seconds(2));
  curve.Add(Said(3, std::nullopt, {{"late", 3}}), seconds(3));
  EXPECT_THAT(Lines(curve),
              ElementsAre("1: 0.1 zz=1", "2: 0.2 m00=0 m01=1 m02=2 m03=3 m04=4 m05=5 m06=6", "3:"));
}

TEST_F(JobsTest, AMetricThatComesRarelyCoversTheWholeRunToo) {
  Curve curve;
  for (int second = 0; second < 10'000; ++second) {
    std::map<std::string, double> metrics;
    if (second % 100 == 99) metrics["validation"] = second;
    curve.Add(Said(second, 1.0 / (1 + second), metrics), seconds(second));
  }
  google::protobuf::RepeatedPtrField<v1::ProgressPoint> points;
  curve.Since(0, &points);
  EXPECT_LE(points.size(), static_cast<int>(Curve::kMostPoints));
  std::vector<int64_t> steps;
  for (const v1::ProgressPoint& point : points) {
    if (!point.metrics().contains("validation")) continue;
    steps.push_back(point.step());
    EXPECT_EQ(point.metrics().at("validation"), point.step());
  }
  EXPECT_GE(steps.size(), 40u);
  EXPECT_LT(steps.front(), 1'000);
  EXPECT_GT(steps.back(), 9'000);
}

TEST_F(JobsTest, ACurveEndsWithTheLastStep) {
  Curve curve;
  v1::Progress progress;
  for (int second = 0; second <= 9'999; ++second) {
    progress.set_step(second);
    curve.Add(progress, seconds(second));
    curve.Add(progress, seconds(second));
  }
  curve.End();
  curve.End();
  v1::GetJobResponse out;
  curve.Since(0, out.mutable_curve());
  EXPECT_EQ(out.curve(out.curve_size() - 1).step(), 9'999);
  EXPECT_LT(out.curve(out.curve_size() - 2).step(), 9'999);
}

TEST_F(JobsTest, RanksComeInPagesAndConsequencesWithoutTheirLines) {
  FakeWorker& worker = h.AddWorker("node1");
  const std::string id = h.Submit(MakeSpec(1, 5));
  h.Say(worker, worker.Exit(id, 2, 3));
  v1::StateEvent get;
  get.mutable_get_job()->set_job_id(id);
  get.mutable_get_job()->set_max_ranks(2);
  const auto first = h.answer(h.Call(get)).As<v1::GetJobResponse>();
  ASSERT_EQ(first.job().ranks_size(), 2);
  EXPECT_EQ(first.next_rank(), 2);
  EXPECT_EQ(first.job().ranks(0).exit().last_lines_size(), 0);
  EXPECT_EQ(first.job().failure().exit().last_lines_size(), 1);
  EXPECT_GT(first.events_size(), 0);
  get.mutable_get_job()->set_first_rank(4);
  const auto last = h.answer(h.Call(get)).As<v1::GetJobResponse>();
  ASSERT_EQ(last.job().ranks_size(), 1);
  EXPECT_EQ(last.job().ranks(0).assignment().rank(), 4);
  EXPECT_EQ(last.next_rank(), 0);
  EXPECT_EQ(last.events_size(), 0);
}

TEST_F(JobsTest, PagesOfRanksEndByTheirBytes) {
  constexpr int kNodes = 40;
  constexpr int kRanks = kNodes * 100;
  std::vector<FakeWorker*> workers;
  for (int i = 0; i < kNodes; ++i) {
    workers.push_back(&h.AddWorker(fmt::format("node{}", i), kRanks / kNodes));
    workers.back()->stubborn = true;
  }
  const std::string id = h.Submit(MakeSpec(kNodes, kRanks / kNodes));
  for (int rank = 0; rank < kRanks; ++rank) {
    FakeWorker& worker = *workers[static_cast<size_t>(rank) / 100];
    FakeWorker::Requests said = worker.Exit(id, rank, 3);
    said.front().mutable_rank_exit()->set_error_message(std::string(50'000, 'm'));
    h.Say(worker, {said.front()});
  }
  v1::StateEvent get;
  get.mutable_get_job()->set_job_id(id);
  get.mutable_get_job()->set_max_ranks(kRanks);
  int ranks = 0;
  int pages = 0;
  do {
    const auto page = h.answer(h.Call(get)).As<v1::GetJobResponse>();
    EXPECT_LE(page.ByteSizeLong(), 5u << 20);
    for (const v1::RankStatus& rank : page.job().ranks()) {
      // All but the first ended as a consequence.
      EXPECT_EQ(rank.exit().error_message().size(), ranks == 0 ? 50'000u : 1000u);
      EXPECT_EQ(rank.assignment().rank(), ranks++);
    }
    get.mutable_get_job()->set_first_rank(page.next_rank());
  } while (get.get_job().first_rank() > 0 && ++pages < 20);
  EXPECT_EQ(ranks, kRanks);
  EXPECT_EQ(pages, 1);
}

TEST_F(JobsTest, ACancelledWatchIsAnsweredAndForgotten) {
  const std::string id = h.Submit(MakeSpec(1, 1));
  v1::StateEvent watch;
  watch.mutable_watch_job()->set_job_id(id);
  const uint64_t call = h.Call(watch);
  h.CancelCall(call);
  EXPECT_TRUE(absl::IsCancelled(h.answer(call).status));
  h.Cancel(id);
  EXPECT_EQ(h.answer(call).items.size(), 1u);
}

TEST_F(JobsTest, ProgressOfTheLowestRankThatReportsIsTheJobs) {
  FakeWorker& worker = h.AddWorker("node1");
  const std::string id = h.Submit(MakeSpec(1, 3));
  v1::OpenSessionRequest report = worker.Message({id, h.job(id).generation()});
  auto& progress = *report.mutable_progress_report()->mutable_progress();
  progress[2].set_step(20);
  h.Say(worker, {report});
  EXPECT_EQ(h.job(id).progress().step(), 20);
  progress.clear();
  progress[1].set_step(10);
  h.Say(worker, {report});
  EXPECT_EQ(h.job(id).progress().step(), 10);
}

TEST_F(JobsTest, LogsAreFoundOnTheNodesThatHoldThem) {
  h.AddWorker("node1");
  FakeWorker& second = h.AddWorker("node2");
  const std::string id = h.Submit(MakeSpec(2, 1));
  v1::StateEvent read;
  read.mutable_read_logs()->set_job_id(id);
  read.mutable_read_logs()->add_streams(v1::LOG_STREAM_STDOUT);
  h.Call(read);
  EXPECT_THAT(h.outcome.back(), HasSubstr("rank: 1"));
  h.Disconnect(second);
  h.Call(read);
  EXPECT_THAT(h.outcome.back(), HasSubstr("UNAVAILABLE: the output of rank 1 is on node2"));
  read.mutable_read_logs()->add_ranks(7);
  EXPECT_TRUE(absl::IsNotFound(h.answer(h.Call(read)).status));
  const std::string waiting = h.Submit(MakeSpec(9, 1));
  read.mutable_read_logs()->set_job_id(waiting);
  EXPECT_TRUE(absl::IsFailedPrecondition(h.answer(h.Call(read)).status));
}

TEST_F(JobsTest, PicturesAreAskedOfEachNodeOnce) {
  h.AddWorker("node1", 512);
  FakeWorker& second = h.AddWorker("node2", 512);
  const std::string id = h.Submit(MakeSpec(2, 200));
  v1::StateEvent read;
  read.mutable_read_pictures()->set_job_id(id);
  const auto questions = [this, &read] {
    h.Call(read);
    const std::string& said = h.outcome.back();
    size_t count = 0;
    for (size_t at = 0; (at = said.find("stream_id", at)) != std::string::npos; ++at) ++count;
    return count;
  };
  EXPECT_EQ(questions(), 2u);
  EXPECT_THAT(h.outcome.back(), HasSubstr("process_rank: 399"));
  read.mutable_read_pictures()->set_name("map.png");
  read.mutable_read_pictures()->set_rank(250);
  EXPECT_EQ(questions(), 1u);
  EXPECT_THAT(h.outcome.back(), HasSubstr("process_rank: 250"));
  h.Disconnect(second);
  EXPECT_EQ(questions(), 0u);
  EXPECT_THAT(h.outcome.back(), HasSubstr("UNAVAILABLE: the pictures of rank 250 are on node2"));
  read.mutable_read_pictures()->set_name("map.svg");
  EXPECT_TRUE(absl::IsInvalidArgument(h.answer(h.Call(read)).status));
  read.mutable_read_pictures()->set_name("");
  const std::string waiting = h.Submit(MakeSpec(9, 1));
  read.mutable_read_pictures()->set_job_id(waiting);
  EXPECT_EQ(questions(), 0u);
  EXPECT_THAT(h.outcome.back(), HasSubstr("OK"));
}

TEST_F(JobsTest, AStreamThatIsResumedIsNotCutToItsTail) {
  h.AddWorker("node1");
  v1::StateEvent read;
  v1::ReadLogsRequest& request = *read.mutable_read_logs();
  request.set_job_id(h.Submit(MakeSpec(1, 1)));
  request.set_tail_lines(5);
  v1::LogPosition& position = *request.add_positions();
  position.set_stream(v1::LOG_STREAM_STDERR);
  position.set_offset(4711);
  h.Call(read);
  const std::string& said = h.outcome.back();
  // stdout comes first.
  EXPECT_LT(said.find("tail_lines: 5"), said.find("offset: 4711"));
  EXPECT_EQ(said.find("tail_lines"), said.rfind("tail_lines"));
}

TEST_F(JobsTest, NumbersBelowZeroAreRefused) {
  h.AddWorker("node1");
  const std::string id = h.Submit(MakeSpec(1, 1));
  v1::StateEvent read;
  read.mutable_read_logs()->set_job_id(id);
  read.mutable_read_logs()->set_tail_lines(-1);
  const absl::Status lines = h.answer(h.Call(read)).status;
  EXPECT_EQ(lines.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(lines.message(), "tail_lines: -1 is not a number of lines: write 0 or more");
  v1::StateEvent get;
  get.mutable_get_job()->set_job_id(id);
  get.mutable_get_job()->set_first_rank(-1);
  const absl::Status rank = h.answer(h.Call(get)).status;
  EXPECT_EQ(rank.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(rank.message(), "first_rank: -1 is not a rank: write 0 or more");
}

TEST_F(JobsTest, LinesOfRanksAreShownWhereAnEarlierGenerationFailed) {
  FakeWorker& worker = h.AddWorker("node1");
  v1::JobSpec spec = MakeSpec(1, 4);
  spec.set_max_restarts(1);
  const std::string id = h.Submit(spec);
  h.Say(worker, worker.Exit(id, 2, 3));
  h.Advance(seconds(60));
  ASSERT_EQ(h.state(id), v1::JOB_STATE_RUNNING) << h.job(id).reason();
  ASSERT_EQ(h.job(id).failure().generation(), 1u);
  h.Say(worker, worker.Exit(id, 0, 0));
  v1::StateEvent get;
  get.mutable_get_job()->set_job_id(id);
  const auto shown = h.answer(h.Call(get)).As<v1::GetJobResponse>();
  EXPECT_EQ(shown.job().ranks(0).exit().last_lines_size(), 1);
}

// With 100,000 of each, the coordinator stood still for a minute.
TEST_F(JobsTest, ManyRanksAndPositionsCostWhatTheirNumberSays) {
  h.AddWorker("node1", 512);
  const std::string id = h.Submit(MakeSpec(1, 256));
  v1::StateEvent read;
  v1::ReadLogsRequest& request = *read.mutable_read_logs();
  request.set_job_id(id);
  for (int i = 0; i < 65'536; ++i) request.add_ranks(i % 256);
  for (int i = 0; i < 131'072; ++i) {
    v1::LogPosition& position = *request.add_positions();
    position.set_rank(i % 512);
    position.set_stream(v1::LOG_STREAM_STDERR);
    position.set_offset(i);
  }
  h.Call(read);
  // Each file once, and the last position of several counts.
  EXPECT_THAT(h.outcome.back(), HasSubstr(fmt::format("offset: {}", 131'072 - 512 + 255)));
  const std::string& said = h.outcome.back();
  size_t files = 0;
  for (size_t at = 0; (at = said.find("stream_id", at)) != std::string::npos; ++at) ++files;
  EXPECT_EQ(files, 512u);
}

TEST_F(JobsTest, OneCallReadsSoManyFilesOfAHost) {
  h.AddWorker("node1", 512);
  const std::string id = h.Submit(MakeSpec(1, 300));
  v1::StateEvent read;
  read.mutable_read_logs()->set_job_id(id);
  const absl::Status status = h.answer(h.Call(read)).status;
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("more than 512 files of these ranks are on node1"));
}

TEST_F(JobsTest, OldEndedJobsGo) {
  for (int i = 0; i < 1005; ++i) h.Cancel(h.Submit(MakeSpec(1, 1)));
  h.Advance(std::chrono::minutes(10));
  EXPECT_EQ(h.machine().jobs().size(), 1000u);
  h.StartCoordinator();
  EXPECT_EQ(h.machine().jobs().size(), 1000u);
}

TEST_F(JobsTest, ALateRetryFindsItsJobHoweverManyHaveEndedSince) {
  const std::string id =
      h.TrySubmit(MakeSpec(1, 1), "mine").As<v1::SubmitJobResponse>().job().job_id();
  h.Cancel(id);
  // 46 jobs a second for a minute.
  h.record = false;
  for (int i = 0; i < 2760; ++i) h.Cancel(h.Submit(MakeSpec(1, 1)));
  h.Advance(seconds(60));
  const auto retried = [&] {
    return h.TrySubmit(MakeSpec(1, 1), "mine").As<v1::SubmitJobResponse>().job().job_id();
  };
  EXPECT_EQ(retried(), id);
  h.Advance(std::chrono::minutes(9) - milliseconds(1));
  EXPECT_EQ(retried(), id);
  h.Advance(seconds(1));
  EXPECT_EQ(h.machine().jobs().size(), 1000u);
}

TEST_F(JobsTest, ARetryFindsItsJobAfterALongOutageOfTheCoordinator) {
  h.retention.set_ended_jobs(3);
  h.StartCoordinator();
  const std::string id =
      h.TrySubmit(MakeSpec(1, 1), "mine").As<v1::SubmitJobResponse>().job().job_id();
  h.Cancel(id);
  for (int i = 0; i < 5; ++i) h.Cancel(h.Submit(MakeSpec(1, 1)));
  h.clock.Advance(std::chrono::hours(1));  // it is down
  h.StartCoordinator();
  h.Advance(std::chrono::minutes(10) - milliseconds(1));
  EXPECT_EQ(h.TrySubmit(MakeSpec(1, 1), "mine").As<v1::SubmitJobResponse>().job().job_id(), id);
  h.Advance(milliseconds(1));
  EXPECT_EQ(h.machine().jobs().size(), 3u);
}

TEST_F(JobsTest, JobsAreForgottenByTheTimeAtWhichTheyEnded) {
  h.retention.set_ended_jobs(3);
  h.retention.mutable_ended_job_least_age();
  h.StartCoordinator();
  FakeWorker& worker = h.AddWorker("node1");
  const std::string week_long = h.Submit(MakeSpec(1, 1));
  for (int i = 0; i < 5; ++i) h.Cancel(h.Submit(MakeSpec(1, 1)));
  EXPECT_EQ(h.machine().jobs().size(), 4u);
  h.Advance(seconds(1));
  h.Say(worker, worker.ExitAll(week_long, 0));
  EXPECT_EQ(h.state(week_long), v1::JOB_STATE_SUCCEEDED) << "it ended last";
  EXPECT_EQ(h.machine().jobs().size(), 3u);
}

TEST_F(JobsTest, AnEndedJobGoesAtItsAgeAndARunningOneNever) {
  *h.retention.mutable_ended_job_age() = ToProtoDuration(seconds(60));
  h.StartCoordinator();
  h.AddWorker("node1");
  const std::string running = h.Submit(MakeSpec(1, 1));
  h.Cancel(h.Submit(MakeSpec(1, 1)));
  h.Advance(seconds(59));
  EXPECT_EQ(h.machine().jobs().size(), 2u);
  h.Advance(seconds(1));
  EXPECT_EQ(h.machine().jobs().size(), 1u);
  EXPECT_EQ(h.state(running), v1::JOB_STATE_RUNNING);
}

TEST_F(JobsTest, ASecondCancelWithoutGraceShortensTheDeadlineOfTheFirst) {
  FakeWorker& worker = h.AddWorker("node1");
  v1::JobSpec spec = MakeSpec(1, 1);
  *spec.mutable_kill_grace() = ToProtoDuration(std::chrono::minutes(10));
  const std::string id = h.Submit(spec);
  worker.stubborn = true;
  h.Cancel(id);
  h.Advance(seconds(60));
  ASSERT_EQ(h.state(id), v1::JOB_STATE_QUIESCING);
  h.Cancel(id, /*now=*/true);
  h.Advance(seconds(30));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_CANCELLED);
}

}  // namespace
}  // namespace meshrun::coordinator::testing
