#include "client/render/report.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cmath>
#include <limits>

#include "client/client.h"
#include "client/render/cluster_report.h"
#include "client/render/limits_report.h"
#include "client/render/table.h"
#include "core/proto_time.h"

namespace meshrun::client {
namespace {

using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr seconds kNow(1'700'000'000);

// units_speed.js has the page's: theSlowestRankIsTheOneThatDoesNotWait.
TEST(ReportTest, TheSlowestOfTheSlowRanksComesFirst) {
  v1::Job job;
  for (const auto& [rank, computes] : {std::pair(2, 1.0), {5, 3.0}, {7, 2.0}, {1, 1.5}, {0, 4.0}}) {
    v1::Straggler& slow = *job.add_stragglers();
    slow.set_rank(rank);
    slow.set_node_name("n");
    slow.set_computes_seconds(computes);
    slow.set_median_seconds(0.5);
  }
  EXPECT_THAT(
      SlowRanks(job),
      AllOf(StartsWith("rank 0 on n computes 4 s of each step, the median 0.5 s; rank 5"),
            EndsWith("; rank 1 on n computes 1.5 s of each step, the median 0.5 s; and 1 more")));
}

v1::Job BaseJob(v1::JobState state) {
  v1::Job job;
  job.set_job_id("geoid-k3x9w2");
  job.set_state(state);
  job.set_world_size(3);
  job.mutable_spec()->set_shipped_job("geoid");
  *job.mutable_submitted_at() = ToProtoTimestamp(kNow - seconds(200));
  *job.mutable_started_at() = ToProtoTimestamp(kNow - seconds(120));
  *job.mutable_run_time() = ToProtoDuration(seconds(40));
  if (state == v1::JOB_STATE_RUNNING)
    *job.mutable_running_since() = ToProtoTimestamp(kNow - seconds(60));
  return job;
}

// Rank 1 was killed, rank 0 told to stop, rank 2 aborted when its peer went away.
v1::Job FailedJob() {
  v1::Job job = BaseJob(v1::JOB_STATE_FAILED);
  *job.mutable_finished_at() = ToProtoTimestamp(kNow - seconds(88));
  *job.mutable_run_time() = ToProtoDuration(seconds(12));
  for (int rank = 0; rank < 3; ++rank) {
    v1::RankStatus* status = job.add_ranks();
    status->mutable_assignment()->set_rank(rank);
    status->set_state(v1::RANK_STATE_EXITED);
    status->set_node_name(rank == 1 ? "n2" : "n1");
    status->mutable_exit()->set_rank(rank);
  }
  job.mutable_ranks(0)->mutable_exit()->set_signal(SIGTERM);
  job.mutable_ranks(0)->set_end("killed by signal 15 (SIGTERM)");
  job.mutable_ranks(0)->mutable_exit()->set_teardown(true);
  job.mutable_ranks(1)->mutable_exit()->set_signal(SIGKILL);
  job.mutable_ranks(1)->set_end("killed by signal 9 (SIGKILL)");
  job.mutable_ranks(2)->mutable_exit()->set_exit_code(1);
  job.mutable_ranks(2)->set_end("ended with exit code 1");
  v1::Failure* failure = job.mutable_failure();
  failure->set_cause(v1::FAILURE_CAUSE_RANK_SIGNALED);
  failure->set_rank(1);
  failure->set_node_name("n2");
  failure->set_message("rank 1 on n2 was killed by signal 9 (SIGKILL)");
  *failure->mutable_exit() = job.ranks(1).exit();
  failure->mutable_exit()->add_last_lines("step 12");
  failure->mutable_exit()->add_last_lines("about to fail");
  return job;
}

TEST(ReportTest, AFailureNamesTheFirstRankItsSignalItsLinesAndTheConsequences) {
  EXPECT_EQ(
      Verdict(FailedJob(), true, Style()),
      "meshrun: geoid-k3x9w2 failed after 12s: rank 1 on n2 was killed by signal 9 (SIGKILL)\n"
      "  last failure   rank 1 on n2 was killed by signal 9 (SIGKILL)\n"
      "                 killed from outside; without enough memory the system does that\n"
      "  its last lines\n"
      "    | step 12\n"
      "    | about to fail\n"
      "  others         2 other ranks ended as a consequence: rank 2 ended with exit code 1, rank "
      "0 killed by signal 15 (SIGTERM)\n"
      "  more           meshrun logs geoid-k3x9w2 --ranks 1; meshrun describe geoid-k3x9w2\n");
  EXPECT_EQ(ExitCodeOf(FailedJob()), 1);
}

// Rank 1 failed in generation 1; generation 2 was cancelled.
TEST(ReportTest, ConsequencesAreOfTheGenerationThatFailed) {
  v1::GetJobResponse response;
  v1::Job& job = *response.mutable_job();
  job = FailedJob();
  job.set_generation(1);
  job.mutable_failure()->set_generation(1);
  EXPECT_THAT(DescribeJob(response, kNow, Style()), HasSubstr("2 other ranks ended as a"));
  job.set_generation(2);
  job.set_state(v1::JOB_STATE_CANCELLED);
  for (v1::RankStatus& rank : *job.mutable_ranks()) {
    rank.mutable_exit()->set_signal(SIGTERM);
    rank.mutable_exit()->set_teardown(true);
    rank.set_end("killed by signal 15 (SIGTERM)");
  }
  const std::string text = DescribeJob(response, kNow, Style());
  EXPECT_THAT(text, HasSubstr("  last failure   rank 1 on n2 was killed by signal 9 (SIGKILL)\n"));
  EXPECT_THAT(text, Not(HasSubstr("ended as a consequence")));
  EXPECT_EQ(Consequences(job), "");
  EXPECT_EQ(FailureReport(job, Style()).find("others"), std::string::npos);
}

TEST(ReportTest, AnExitCodeAndItsErrorFileAreShown) {
  v1::Job job = FailedJob();
  job.mutable_failure()->set_cause(v1::FAILURE_CAUSE_RANK_EXITED);
  job.mutable_failure()->mutable_exit()->set_signal(0);
  job.mutable_failure()->mutable_exit()->set_exit_code(3);
  job.mutable_failure()->mutable_exit()->set_error_message("ValueError: no data\nin shard 7");
  job.mutable_failure()->set_message("rank 1 on n2 ended with exit code 3: ValueError: no data");
  const std::string text = Verdict(job, false, Style());
  EXPECT_THAT(text, HasSubstr("rank 1 on n2 ended with exit code 3: ValueError: no data\n"));
  EXPECT_THAT(text, HasSubstr("error          ValueError: no data\nin shard 7\n"));
  EXPECT_THAT(text, Not(HasSubstr("meshrun logs")));
}

TEST(ReportTest, AFailureWithoutARankIsOneSentence) {
  v1::Job job = BaseJob(v1::JOB_STATE_FAILED);
  job.clear_started_at();
  job.set_world_size(0);
  job.mutable_failure()->set_cause(v1::FAILURE_CAUSE_QUEUE_TIMEOUT);
  job.mutable_failure()->set_rank(-1);
  job.mutable_failure()->set_message("needs 4096 slots and 8 are there; gave up after 1s");
  EXPECT_EQ(Verdict(job, true, Style()),
            "meshrun: geoid-k3x9w2 failed: needs 4096 slots and 8 are there; gave up after 1s\n");
  EXPECT_EQ(ExitCodeOf(job), 75);
  job.mutable_failure()->set_cause(v1::FAILURE_CAUSE_BAD_COMMAND);
  EXPECT_EQ(ExitCodeOf(job), 2);
}

TEST(ReportTest, ARankThatMustNotBeRequeuedSaysSoToTheShell) {
  v1::Job job = FailedJob();
  job.mutable_failure()->set_cause(v1::FAILURE_CAUSE_RANK_EXITED);
  job.mutable_failure()->mutable_exit()->set_signal(0);
  job.mutable_failure()->mutable_exit()->set_exit_code(93);
  EXPECT_EQ(ExitCodeOf(job), 93);
  job.mutable_failure()->mutable_exit()->set_exit_code(94);
  EXPECT_EQ(ExitCodeOf(job), 1);
}

TEST(ReportTest, DescribeListsTheGenerations) {
  v1::GetJobResponse response;
  *response.mutable_job() = FailedJob();
  // The first one's events are older than what the coordinator keeps.
  response.mutable_job()->set_generation(3);
  const auto add = [&](int age, const char* kind, const char* message) {
    v1::ClusterEvent* event = response.add_events();
    *event->mutable_at() = ToProtoTimestamp(kNow - seconds(age));
    event->set_kind(kind);
    event->set_message(message);
  };
  add(110, "JobRestarting", "restart 1 of 2");
  add(100, "JobAdmitted", "");
  add(99, "GenerationStarted", "");
  add(95, "RankFailed", "rank 1 on n2 ended with exit code 3");
  add(94, "JobRestarting", "restart 2 of 2");
  add(93, "JobAdmitted", "");
  add(92, "GenerationStarted", "");
  EXPECT_THAT(
      DescribeJob(response, kNow, Style()),
      HasSubstr("  GENERATION  BEGAN                 RUNTIME  ENDED\n"
                "           2  2023-11-14 22:11:40Z  5s       rank 1 on n2 ended with exit code 3\n"
                "           3  2023-11-14 22:11:47Z  1m32s\n"));
  EXPECT_THAT(DescribeJob(response, kNow, Style()), HasSubstr("  generation    3\n"));
  add(90, "RankFailed", "rank 0 on n1 was killed");
  add(89, "JobFailed", "rank 0 on n1 was killed");
  EXPECT_THAT(DescribeJob(response, kNow, Style()),
              HasSubstr("           3  2023-11-14 22:11:47Z  3s       rank 0 on n1 was killed\n"));
}

TEST(ReportTest, AGenerationThatIsFollowedByAnotherHasEnded) {
  v1::GetJobResponse response;
  *response.mutable_job() = BaseJob(v1::JOB_STATE_RUNNING);
  response.mutable_job()->set_generation(5);
  const auto add = [&](int age, const char* kind, const char* message) {
    v1::ClusterEvent* event = response.add_events();
    *event->mutable_at() = ToProtoTimestamp(kNow - seconds(age));
    event->set_kind(kind);
    event->set_message(message);
  };
  add(100, "JobAdmitted", "");
  add(99, "GenerationStarted", "");
  add(86, "QuiesceAsked", "grows from 1 to 2 ranks");
  add(86, "GoesOnInProcess", "1 of 2 ranks lives on in generation 2; grows from 1 to 2 ranks");
  add(86, "JobAdmitted", "");
  add(85, "GenerationStarted", "");
  add(81, "RankFailed", "rank 1 on n2 was killed");
  add(81, "GoesOnInProcess", "1 of 1 ranks lives on in generation 3; restart 1 of 3");
  add(81, "JobAdmitted", "");
  add(80, "GenerationStarted", "");
  add(78, "JobMoved", "moved away from n1");
  add(75, "JobRequeued", "moved away from n1");
  // Its nodes were lost, or the coordinator was, before it started.
  add(50, "JobAdmitted", "");
  add(40, "JobAdmitted", "");
  add(39, "GenerationStarted", "");
  const std::string text = DescribeJob(response, kNow, Style());
  EXPECT_THAT(text, HasSubstr("Z  13s      1 of 2 ranks lives on in generation 2; grows from"));
  EXPECT_THAT(text, HasSubstr("Z  4s       rank 1 on n2 was killed\n"));
  EXPECT_THAT(text, HasSubstr("Z  5s       moved away from n1\n"));
  EXPECT_THAT(text, HasSubstr("Z  -        given up before its start\n"));
  EXPECT_THAT(text, HasSubstr("Z  39s\n"));
  EXPECT_THAT(DescribeJob(response, kNow + seconds(1000), Style()),
              HasSubstr("Z  4s       rank 1 on n2 was killed\n"));
}

TEST(ReportTest, TheRuntimeIsThatOfTheRanks) {
  v1::Job job = BaseJob(v1::JOB_STATE_WAITING);
  EXPECT_THAT(JobTable({job}, kNow), HasSubstr("3m ago     40s\n"));
  v1::GetJobResponse response;
  *response.mutable_job() = job;
  EXPECT_THAT(DescribeJob(response, kNow, Style()), HasSubstr("  runtime       40s\n"));
  EXPECT_THAT(DescribeJob(response, kNow + seconds(9), Style()), HasSubstr("  runtime       40s\n"))
      << "a pause before a restart is none";
  job.set_state(v1::JOB_STATE_RUNNING);
  *job.mutable_running_since() = ToProtoTimestamp(kNow - seconds(2));
  EXPECT_THAT(JobTable({job}, kNow), HasSubstr("3m ago     42s\n"));
}

TEST(ReportTest, AnEndThatWasPlannedIsNoFailure) {
  v1::Job job = FailedJob();
  EXPECT_THAT(FailureReport(job, Style()), HasSubstr("  last failure   rank 1 on n2"));
  job.mutable_failure()->set_planned(true);
  EXPECT_THAT(FailureReport(job, Style()), HasSubstr("  last stop      rank 1 on n2"));
}

// What a rank writes must not break the tables in which it stands.
TEST(ReportTest, OfANoteTheFirstLineIsShown) {
  v1::Job job = BaseJob(v1::JOB_STATE_RUNNING);
  job.mutable_progress()->set_step(5);
  job.mutable_progress()->set_note("reading\tdata\nshard 1\nshard 2");
  job.set_reason("one\ntwo");
  EXPECT_EQ(JobTable({job}, kNow),
            "JOB           STATE    RANKS  SUBMITTED  RUNTIME  PROGRESS             REASON\n"
            "geoid-k3x9w2  RUNNING      3  3m ago     1m40s    step 5 reading data  one\n");
  *job.add_ranks()->mutable_progress() = job.progress();
  v1::GetJobResponse response;
  *response.mutable_job() = job;
  response.add_events()->set_message("cancelled: first\nsecond");
  EXPECT_THAT(DescribeJob(response, kNow, Style()), Not(HasSubstr("shard")));
  EXPECT_THAT(DescribeJob(response, kNow, Style()), Not(HasSubstr("second")));
}

TEST(ReportTest, ALossThatIsNotFiniteIsShown) {
  v1::Job job = BaseJob(v1::JOB_STATE_RUNNING);
  job.mutable_progress()->set_step(5);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const auto& [loss, shown] : {std::pair(nan, "nan"),
                                    {std::copysign(nan, -1), "nan"},
                                    {std::numeric_limits<double>::infinity(), "inf"},
                                    {-std::numeric_limits<double>::infinity(), "-inf"}}) {
    job.mutable_progress()->set_loss(loss);
    EXPECT_THAT(JobTable({job}, kNow), HasSubstr(fmt::format("step 5 loss {}\n", shown)));
    v1::GetJobResponse response;
    *response.mutable_job() = job;
    EXPECT_THAT(DescribeJob(response, kNow, Style()),
                HasSubstr(fmt::format("progress      step 5 loss {}\n", shown)));
  }
}

TEST(ReportTest, SuccessAndCancellationAreOneLine) {
  v1::Job job = BaseJob(v1::JOB_STATE_SUCCEEDED);
  *job.mutable_finished_at() = ToProtoTimestamp(kNow - seconds(53));
  *job.mutable_run_time() = ToProtoDuration(seconds(47));
  EXPECT_EQ(Verdict(job, true, Style()), "meshrun: geoid-k3x9w2 succeeded after 47s (3 ranks)\n");
  EXPECT_EQ(ExitCodeOf(job), 0);
  job.set_state(v1::JOB_STATE_CANCELLED);
  job.set_reason("cancelled: by Ctrl-C");
  EXPECT_EQ(Verdict(job, true, Style()),
            "meshrun: geoid-k3x9w2 was cancelled after 47s: by Ctrl-C\n");
  EXPECT_EQ(ExitCodeOf(job), 1);
}

TEST(ReportTest, DescribeTellsRanksConsequencesAndEvents) {
  v1::GetJobResponse response;
  *response.mutable_job() = FailedJob();
  response.mutable_job()->mutable_spec()->add_command("--title");
  response.mutable_job()->mutable_spec()->add_command("it's two words");
  v1::ClusterEvent* event = response.add_events();
  event->set_kind("RankExited");
  event->set_message("rank 1: SIGKILL");
  *event->mutable_at() = ToProtoTimestamp(kNow - seconds(88));
  const std::string text = DescribeJob(response, kNow, Style());
  EXPECT_THAT(text, HasSubstr("geoid-k3x9w2  FAILED\n"));
  EXPECT_THAT(text, HasSubstr("command       --job geoid --title 'it'\\''s two words'\n"));
  EXPECT_THAT(text, HasSubstr("killed by signal 15 (SIGTERM), as a consequence"));
  EXPECT_THAT(text, HasSubstr("about to fail"));
  EXPECT_THAT(text, HasSubstr("finished      2023-11-14 22:11:52Z (88s ago)\n"));
  EXPECT_THAT(text, HasSubstr("2023-11-14 22:11:52Z  RankExited  rank 1: SIGKILL"));
}

TEST(ReportTest, ANarrowTerminalKeepsHowRanksEndedAndWhatHappened) {
  v1::GetJobResponse response;
  *response.mutable_job() = FailedJob();
  for (v1::RankStatus& rank : *response.mutable_job()->mutable_ranks()) {
    rank.set_pid(4711);
    rank.mutable_assignment()->add_mesh_coordinates(0);
    rank.mutable_progress()->set_step(7);
  }
  v1::ClusterEvent* event = response.add_events();
  event->set_kind("GenerationStarted");
  event->set_message("3 ranks on n1 and n2");
  *event->mutable_at() = ToProtoTimestamp(kNow - seconds(88));
  Style style;
  style.terminal = true;
  style.width = 40;
  const std::string text = DescribeJob(response, kNow, style);
  EXPECT_THAT(text, HasSubstr("  RANK  STATE   ENDED\n"
                              "     0  EXITED  killed by signal 15\n"
                              "                (SIGTERM), as a\n"
                              "                consequence\n"));
  EXPECT_THAT(text, HasSubstr("  EVENT              WHAT\n"
                              "  GenerationStarted  3 ranks on n1 and\n"
                              "                     n2\n"));
  style.width = 100;
  const std::string wide = DescribeJob(response, kNow, style);
  EXPECT_THAT(wide, HasSubstr("PID"));
  EXPECT_THAT(wide, HasSubstr("WHEN"));
}

TEST(ReportTest, SentencesHoldNoControlCharacters) {
  v1::Job job = BaseJob(v1::JOB_STATE_CANCELLED);
  job.set_reason("cancelled: \x1b[31mred\nand a line");
  *job.mutable_finished_at() = job.started_at();
  job.clear_run_time();
  EXPECT_THAT(Verdict(job, true, Style()),
              HasSubstr("was cancelled after 0ms: \\x1b[31mred\\x0aand a line\n"));
  v1::GetJobResponse response;
  job.mutable_spec()->add_command("a\x1b[31mb");
  job.mutable_spec()->add_command("two\nlines");
  *response.mutable_job() = job;
  const std::string text = DescribeJob(response, kNow, Style());
  EXPECT_THAT(text, HasSubstr("CANCELLED: cancelled: \\x1b[31mred\\x0aand a line\n"));
  EXPECT_THAT(text, HasSubstr("$'a\\x1b[31mb' 'two\nlines'\n"));
}

TEST(ReportTest, JobsAndNodesAreAlignedTables) {
  v1::Job running = BaseJob(v1::JOB_STATE_RUNNING);
  running.mutable_progress()->set_step(5);
  running.mutable_progress()->set_total_steps(10);
  v1::Job queued = BaseJob(v1::JOB_STATE_QUEUED);
  queued.set_job_id("a-1");
  queued.clear_started_at();
  queued.set_world_size(0);
  queued.set_reason("needs 4 slots");
  EXPECT_EQ(JobTable({running, queued}, kNow),
            "JOB           STATE    RANKS  SUBMITTED  RUNTIME  PROGRESS  REASON\n"
            "geoid-k3x9w2  RUNNING      3  3m ago     1m40s    5/10\n"
            "a-1           QUEUED       -  3m ago     -                  needs 4 slots\n");
  std::vector<v1::Node> nodes(2);
  nodes[0].set_name("node10");
  nodes[1].set_name("node9");
  for (v1::Node& node : nodes) {
    node.set_state(v1::NODE_STATE_HEALTHY);
    node.set_slots_used(2);
    node.mutable_resources()->set_slots(8);
    node.mutable_resources()->set_cores(2);
    for (const char* address : {"10.0.0.7", "fd00::7"}) node.add_addresses(address);
  }
  const std::string table = NodeTable(nodes, kNow);
  EXPECT_LT(table.find("node9 "), table.find("node10"));
  EXPECT_THAT(table, HasSubstr("HEALTHY    2/8"));
  EXPECT_THAT(table, Not(HasSubstr("GPUS")));
  EXPECT_THAT(table, AllOf(HasSubstr("10.0.0.7 "), Not(HasSubstr("fd00::7"))));
  nodes[0].set_drained(true);
  EXPECT_EQ(NodeStateText(nodes[0]), "DRAINING");
  nodes[0].set_quarantined(true);
  EXPECT_EQ(NodeStateText(nodes[0]), "QUARANTINED");
  EXPECT_THAT(DescribeNode(nodes[0], kNow), HasSubstr("addresses     10.0.0.7, fd00::7\n"));
}

TEST(ReportTest, WaitingIsSaidWithItsReason) {
  v1::Job job = BaseJob(v1::JOB_STATE_QUEUED);
  EXPECT_EQ(WaitingLine(job), "");
  job.set_reason("needs 4 slots; 2 are free");
  EXPECT_EQ(WaitingLine(job), "geoid-k3x9w2 is queued: needs 4 slots; 2 are free");
  job.set_state(v1::JOB_STATE_RUNNING);
  EXPECT_EQ(WaitingLine(job), "");
}

TEST(StyleTest, OneLineIsTheFirstWithoutControlCharacters) {
  EXPECT_EQ(OneLine("\n\n a\x1b[2Jb \r\nc", 80), "a [2Jb");
  EXPECT_EQ(OneLine("a\xc2\x9b"
                    "2Jb \xe2\x9b\xb5\x9b",
                    80),
            "a 2Jb \xe2\x9b\xb5");
  EXPECT_EQ(OneLine("0123456789", 8), "01234...");
  EXPECT_EQ(OneLine("\n \n", 8), "");
  EXPECT_EQ(OneLine("größe", 8), "größe");
}

TEST(StyleTest, AgesAreCoarse) {
  EXPECT_EQ(Ago(kNow, kNow - seconds(1)), "just now");
  EXPECT_EQ(Ago(kNow, kNow - seconds(59)), "59s ago");
  EXPECT_EQ(Ago(kNow, kNow - seconds(180)), "3m ago");
  EXPECT_EQ(Ago(kNow, kNow - std::chrono::hours(3)), "3h ago");
  EXPECT_EQ(Ago(kNow, kNow - std::chrono::hours(72)), "3d ago");
  EXPECT_EQ(Ago(kNow, seconds(0)), "-");
  // Another host's clock may be ahead.
  EXPECT_EQ(Ago(kNow, kNow + seconds(60)), "just now");
}

TEST(TableTest, WidthsCountCharactersAndEmptyColumnsGo) {
  Table table({"NAME", "NONE", ">N"});
  table.Add({"größe", "", "1"});
  table.Add({"x", "", "100"});
  EXPECT_EQ(table.Render(2),
            "  NAME     N\n"
            "  größe    1\n"
            "  x      100\n");
}

TEST(ClusterReportTest, OnANarrowTerminalEventsKeepWhatTheySay) {
  v1::DescribeClusterResponse cluster;
  v1::ClusterEvent& event = *cluster.add_events();
  event.set_kind("CoordinatorStarted");
  event.set_message("a new term began");
  *event.mutable_at() = ToProtoTimestamp(kNow);
  const std::string text = DescribeCluster(cluster, "unix:/c.sock", kNow, 40);
  EXPECT_THAT(text, HasSubstr("a new term began"));
  EXPECT_THAT(DescribeCluster(cluster, "unix:/c.sock", kNow, 80), HasSubstr("CoordinatorStarted"));
}

TEST(ClusterReportTest, TheCoordinatorsAreNamedWithTheOneThatLeads) {
  v1::DescribeClusterResponse cluster;
  cluster.set_state_engine("etcd");
  for (const char* name : {"a", "b", "c"}) {
    v1::Coordinator& coordinator = *cluster.add_coordinators();
    coordinator.set_name(name);
    coordinator.set_address(std::string(name) + ":7480");
    coordinator.set_leads(*name == 'b');
  }
  EXPECT_THAT(
      DescribeCluster(cluster, "a:7480,b:7480", kNow, 80),
      HasSubstr("\n  b leads at b:7480, standbys: a at a:7480, c at c:7480; state in etcd\n"));
  cluster.clear_coordinators();
  EXPECT_THAT(DescribeCluster(cluster, "a:7480", kNow, 80), Not(HasSubstr("state in")));
}

TEST(LimitsReportTest, ShowsWhatIsUsedAndWhatAJobMayAskFor) {
  v1::DescribeLimitsResponse limits;
  v1::LimitScope& ada = *limits.add_scopes();
  ada.set_kind(v1::LimitScope::KIND_USER);
  ada.set_name("ada");
  ada.set_running_jobs(3);
  ada.mutable_limits()->set_running_jobs(10);
  ada.mutable_limits()->mutable_kill_grace()->set_seconds(3600);
  v1::LimitScope& gpu = *limits.add_scopes();
  gpu.set_kind(v1::LimitScope::KIND_PARTITION);
  gpu.set_name("gpu");
  gpu.set_running_gpus(7);
  gpu.mutable_limits()->mutable_time_limit()->set_seconds(43200);
  limits.set_default_partition("cpu");
  EXPECT_EQ(LimitsReport(limits, 0),
            "OF             QUEUED  RUNNING  RANKS  GPUS\n"
            "user ada            0  3 of 10      0     0\n"
            "partition gpu       0        0      0     7\n"
            "\n"
            "A JOB OF       RANKS  TIME  GRACE  RESTARTS  LOGS\n"
            "user ada           -     -     1h         -     -\n"
            "partition gpu      -   12h      -         -     -\n"
            "\n"
            "a job that names no partition is of cpu\n");
}

TEST(HangLineTest, SaysEachThingOnce) {
  v1::Job job;
  job.set_job_id("geoid-1");
  EXPECT_EQ(HangLine("", job), "");
  job.set_hang("no step for 3s");
  EXPECT_EQ(HangLine("", job), "geoid-1 hangs: no step for 3s");
  EXPECT_EQ(HangLine("no step for 3s", job), "");
  job.set_hang("no step for 3s; rank 1 is in step (train.py:12)");
  EXPECT_EQ(HangLine("no step for 3s", job), "geoid-1 hangs: rank 1 is in step (train.py:12)");
}

}  // namespace
}  // namespace meshrun::client
