// What `meshrun top` draws, and the keys that it reads.
#include "client/render/top.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "client/cli/full_screen.h"

namespace meshrun::client {
namespace {

using nlohmann::json;
using std::chrono::seconds;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const json kCluster = {{"version", "0.2.0"}, {"readOnlyReason", ""}};

json Node(const std::string& name, const std::string& state, int used) {
  return {{"name", name},
          {"state", "NODE_STATE_" + state},
          {"resources", {{"slots", 8}, {"gpus", json::array()}}},
          {"slotsUsed", used},
          {"gpusUsed", json::array()},
          {"drained", false}};
}

json Job(const std::string& id, const std::string& state) {
  return {{"jobId", id},   {"submitter", "ada"}, {"state", "JOB_STATE_" + state},
          {"reason", ""},  {"generation", 2},    {"worldSize", 4},
          {"restarts", 0}, {"hang", ""},         {"ranks", json::array()}};
}

json Rank(int rank, int64_t step) {
  return {{"assignment", {{"rank", rank}}},
          {"state", "RANK_STATE_RUNNING"},
          {"nodeName", "node-a"},
          {"progress", {{"step", step}}}};
}

TopModel Model() {
  TopModel model;
  model.address = "unix:/run/meshrun/c.http";
  ReadCluster(kCluster, &model);
  json lost = Node("node-b", "LOST", 0);
  json drained = Node("node-c", "HEALTHY", 0);
  drained["drained"] = true;
  drained["drainedBecause"] = "new memory";
  ReadNodes({{"nodes", {Node("node-a", "HEALTHY", 4), lost, drained}}}, &model);
  json running = Job("geoid-k3x9w2", "RUNNING");
  running["progress"] = {{"step", 50}, {"totalSteps", 1000}, {"loss", 0.25}};
  json failed = Job("train-aaaaaa", "FAILED");
  failed["failure"] = {{"message", "rank 2 on node-a was killed by signal 9 (SIGKILL)"},
                       {"exit", {{"lastLines", {"loading", "\x1b[31mout of memory\x1b[0m"}}}}};
  for (const auto& [step, at] : {std::pair(50, 993), {100, 1000}, {150, 1010}}) {
    running["progress"]["step"] = step;
    const json jobs = {{"jobs", {running, Job("wait-bbbbbb", "QUEUED"), failed}},
                       {"nextPageToken", ""}};
    ReadJobs(jobs, seconds(at), &model);
  }
  return model;
}

Style Plain(int width, int height) { return {.terminal = true, .width = width, .height = height}; }

TEST(TopTest, NothingThatIsToldReachesTheTerminalAsAControlCharacter) {
  TopModel model = Model();
  const std::string evil =
      "a\x1b[2Jb\xc2\x9b"
      "2Jc\td\x07";
  model.problem = evil;
  model.version = evil;
  json job = Job("geoid-k3x9w2", "RUNNING");
  job["submitter"] = evil;
  job["reason"] = evil;
  ReadJobs({{"jobs", {job}}}, seconds(1020), &model);
  for (const auto kind : {TopView::Kind::kCluster, TopView::Kind::kJob}) {
    for (const int width : {15, 80}) {
      const TopView view{.kind = kind, .job = "geoid-k3x9w2", .message = evil};
      for (const std::string& row : DrawTop(model, view, Plain(width, 30))) {
        EXPECT_EQ(row.find_first_of("\x1b\x07\t"), std::string::npos) << row;
        EXPECT_EQ(row.find("\xc2\x9b"), std::string::npos) << row;
      }
    }
  }
}

TEST(TopTest, ShowsNodesAndJobsOnATerminalOf80Columns) {
  EXPECT_THAT(
      DrawTop(Model(), {.job = "geoid-k3x9w2"}, Plain(80, 14)),
      ElementsAre(
          "meshrun 0.2.0  1 of 3 nodes healthy  4/16 slots  unix:/run/meshrun/c.http", "",
          "NODE    STATE    SLOTS  NOTE", "node-a  HEALTHY    4/8", "node-b  LOST       0/8",
          "node-c  DRAINED    0/8  new memory", "",
          " JOB           USER  STATE    RANKS  DONE   LEFT  LOSS  NOTE",
          ">geoid-k3x9w2  ada   RUNNING      4   15%  2m50s  0.25",
          " wait-bbbbbb   ada   QUEUED       4",
          StartsWith(" train-aaaaaa  ada   FAILED       4                     rank 2 on node-a"),
          "", "", "arrows: mark  Enter: job  l: logs  s: stacks  c: cancel  q: quit"));
}

// The job's own view and `meshrun run` have the same percentage. A total may be wrong.
TEST(TopTest, AJobBeyondItsLastStepIsDone) {
  TopModel model;
  for (const int64_t step : {int64_t{150}, int64_t{1} << 62}) {
    json job = Job("geoid-k3x9w2", "RUNNING");
    job["progress"] = {{"step", step}, {"totalSteps", step == 150 ? 100 : step}};
    ReadJobs({{"jobs", {job}}}, seconds(1020), &model);
    for (const auto kind : {TopView::Kind::kCluster, TopView::Kind::kJob}) {
      EXPECT_THAT(DrawTop(model, {.kind = kind, .job = "geoid-k3x9w2"}, Plain(120, 14)),
                  Contains(HasSubstr(" 100%")))
          << step;
    }
  }
}

// It may have something to do after them.
TEST(TopTest, AJobWithoutStepsLeftHasNoTimeLeft) {
  TopModel model = Model();
  json job = Job("geoid-k3x9w2", "RUNNING");
  job["progress"] = {{"step", 1000}, {"totalSteps", 1000}};
  ReadJobs({{"jobs", {job}}}, seconds(1011), &model);
  EXPECT_EQ(model.meters.at("geoid-k3x9w2").Remaining(model.now), std::nullopt);
  EXPECT_THAT(DrawTop(model, {.job = "geoid-k3x9w2"}, Plain(80, 14)),
              Contains(StartsWith(">geoid-k3x9w2  ada   RUNNING      4  100%")));
  EXPECT_THAT(DrawTop(model, {.job = "geoid-k3x9w2"}, Plain(80, 14)),
              ::testing::Not(Contains(HasSubstr("0ms"))));
}

// JSON has no such numbers: the API has words for them.
TEST(TopTest, ALossThatIsNotFiniteIsShown) {
  TopModel model = Model();
  json job = Job("geoid-k3x9w2", "RUNNING");
  for (const auto& [said, shown] :
       {std::pair("NaN", "nan"), {"Infinity", "inf"}, {"-Infinity", "-inf"}}) {
    job["progress"] = {{"step", 150}, {"totalSteps", 1000}, {"loss", said}};
    ReadJobs({{"jobs", {job}}}, seconds(1010), &model);
    const auto rows = DrawTop(model, {.job = "geoid-k3x9w2"}, Plain(80, 14));
    EXPECT_THAT(rows, Contains(HasSubstr(fmt::format("  {:>4}", shown)))) << said;
    const auto one =
        DrawTop(model, {.kind = TopView::Kind::kJob, .job = "geoid-k3x9w2"}, Plain(80, 14));
    EXPECT_THAT(one, Contains(HasSubstr(fmt::format("  loss {}", shown)))) << said;
  }
}

TEST(TopTest, FillsTheTerminalAndNeverMore) {
  TopModel model = Model();
  for (int i = 0; i < 300; ++i) {
    ReadNodes({{"nodes", json::array({Node("a-node-with-a-very-long-name", "HEALTHY", 1)})}},
              &model);
  }
  for (const TopView::Kind kind : {TopView::Kind::kCluster, TopView::Kind::kJob}) {
    for (const auto& [width, height] :
         {std::pair{80, 24}, {120, 40}, {40, 12}, {20, 5}, {10, 3}, {300, 100}}) {
      for (const bool colour : {false, true}) {
        Style style = Plain(width, height);
        style.colour = colour;
        const auto rows = DrawTop(model, {.kind = kind, .job = "geoid-k3x9w2"}, style);
        EXPECT_EQ(rows.size(), static_cast<size_t>(height));
        for (const std::string& row : rows) {
          EXPECT_LE(DisplayWidth(Visible(row)), static_cast<size_t>(width)) << row;
        }
      }
    }
  }
}

TEST(TopTest, WithoutColourThereIsNoEscapeSequence) {
  for (const TopView::Kind kind : {TopView::Kind::kCluster, TopView::Kind::kJob}) {
    for (const std::string& row :
         DrawTop(Model(), {.kind = kind, .job = "train-aaaaaa"}, Plain(120, 40))) {
      EXPECT_EQ(row.find('\x1b'), std::string::npos) << row;
    }
  }
}

TEST(TopTest, ANodeThatIsLostHasNoSlotsAndNoGpus) {
  TopModel model;
  model.address = "a";
  ReadCluster(kCluster, &model);
  json here = Node("node-a", "HEALTHY", 8);
  json lost = Node("node-b", "LOST", 3);
  for (json* node : {&here, &lost}) {
    (*node)["resources"]["gpus"] = json::array({{{"index", 0}}, {{"index", 1}}});
    (*node)["gpusUsed"] = json::array({0});
  }
  // Whatever else is said of it.
  for (const char* more : {"", "drained", "quarantined"}) {
    if (*more != '\0') lost[more] = true;
    ReadNodes({{"nodes", {here, lost}}}, &model);
    const auto rows = DrawTop(model, {}, Plain(100, 14));
    EXPECT_THAT(rows[0], StartsWith("meshrun 0.2.0  1 of 2 nodes healthy  8/8 slots  1/2 GPUs  a"));
    EXPECT_THAT(rows, Contains(StartsWith("node-b  LOST")));
  }
}

TEST(TopTest, TheMarkedJobStaysOnTheScreen) {
  TopModel model = Model();
  json jobs = json::array();
  for (int i = 0; i < 50; ++i) jobs.push_back(Job(fmt::format("job-{:02}", i), "QUEUED"));
  ReadJobs({{"jobs", jobs}}, seconds(1020), &model);
  const auto rows = DrawTop(model, {.job = "job-49"}, Plain(80, 24));
  EXPECT_THAT(rows, Contains(StartsWith(">job-49")));
  EXPECT_THAT(rows[0], StartsWith("meshrun 0.2.0"));
}

TEST(TopTest, OfAFailedJobTheFirstFailureAndItsLastLines) {
  const auto rows = DrawTop(Model(), {.job = "train-aaaaaa"}, Plain(120, 40));
  EXPECT_THAT(rows, Contains("last failure: rank 2 on node-a was killed by signal 9 (SIGKILL)"));
  EXPECT_THAT(rows, Contains("  | out of memory"));
}

TEST(TopTest, AJobsRanksAreAGridByTheirLag) {
  TopModel model = Model();
  json job = Job("geoid-k3x9w2", "RUNNING");
  job["progress"] = {{"step", 150}, {"totalSteps", 1000}};
  for (int i = 0; i < 10; ++i) job["ranks"].push_back(Rank(i, i == 3 ? 148 : i == 4 ? 90 : 150));
  // Ended by meshrun, because of rank 7.
  job["ranks"][6]["state"] = "RANK_STATE_EXITED";
  job["ranks"][6]["exit"] = {{"signal", 15}, {"teardown", true}};
  job["ranks"][7]["state"] = "RANK_STATE_EXITED";
  job["ranks"][7]["exit"] = {{"signal", 9}};
  job["ranks"][8]["state"] = "RANK_STATE_EXITED";
  job["ranks"][8]["exit"] = {{"signal", 0}, {"exitCode", 0}};
  job["ranks"][9]["state"] = "RANK_STATE_LOST";
  job["stragglers"] = json::array(
      {{{"rank", 3}, {"nodeName", "node-a"}, {"computesSeconds", 0.52}, {"medianSeconds", 0.31}}});
  ReadJob({{"job", job},
           {"events", json::array({{{"at", "2026-11-23T07:15:00Z"}, {"message", "started"}}})}},
          seconds(1020), &model);
  const auto rows =
      DrawTop(model, {.kind = TopView::Kind::kJob, .job = "geoid-k3x9w2"}, Plain(80, 24));
  EXPECT_THAT(rows, Contains("     0  ...2+.=x=L"));
  EXPECT_THAT(rows,
              Contains("slowest: rank 3 on node-a computes 0.52 s a step, the others 0.31 s"));
  EXPECT_THAT(rows, Contains("geoid-k3x9w2  RUNNING  generation 2  4 ranks  of ada"));
  EXPECT_THAT(rows, Contains("  2026-11-23 07:15:00Z  started"));
  EXPECT_THAT(rows, Contains(HasSubstr("150/1000")));
}

TEST(TopTest, TheRankThatIsFurthestBehindIsNamedWhereverItIsInTheGrid) {
  TopModel model;
  json job = Job("geoid-k3x9w2", "RUNNING");
  job["progress"] = {{"step", 5000}};
  for (int i = 0; i < 3000; ++i) job["ranks"].push_back(Rank(i, i == 2500 ? 4500 : 5000));
  ReadJob({{"job", job}}, seconds(1020), &model);
  const TopView view{.kind = TopView::Kind::kJob, .job = "geoid-k3x9w2"};
  const auto rows = DrawTop(model, view, Plain(80, 24));
  EXPECT_THAT(rows, Contains("slowest: rank 2500 on node-a is 500 steps behind"));
  EXPECT_EQ(rows[22], "32 more rows: a taller terminal, or meshrun top --once geoid-k3x9w2");
  const auto once = DrawTopOnce(model, view, Plain(80, 24));
  EXPECT_THAT(once, Contains("  2496  ....+" + std::string(59, '.')));
  EXPECT_THAT(once, ::testing::Not(Contains(HasSubstr("more rows"))));
  // The coordinator knows better.
  job["stragglers"] = json::array(
      {{{"rank", 3}, {"nodeName", "node-a"}, {"computesSeconds", 0.52}, {"medianSeconds", 0.31}}});
  ReadJob({{"job", job}}, seconds(1021), &model);
  EXPECT_THAT(DrawTop(model, view, Plain(80, 24)),
              Contains("slowest: rank 3 on node-a computes 0.52 s a step, the others 0.31 s"));
}

// A report comes once a second: at 100 steps a second all ranks differ.
TEST(TopTest, NobodyIsSlowWhoIsWithinTwoReports) {
  TopModel model;
  json job = Job("geoid-k3x9w2", "RUNNING");
  const TopView view{.kind = TopView::Kind::kJob, .job = "geoid-k3x9w2"};
  for (const auto& [step, at] : {std::pair(1000, 1020), {1100, 1021}, {1200, 1022}}) {
    job["progress"] = {{"step", step}};
    job["ranks"] = {Rank(0, step), Rank(1, step - 200)};
    ReadJob({{"job", job}}, seconds(at), &model);
  }
  // The grid's colour says the same: yellow, then red.
  Style colours = Plain(80, 24);
  colours.colour = true;
  EXPECT_THAT(DrawTop(model, view, Plain(80, 24)), ::testing::Not(Contains(StartsWith("slowest"))));
  EXPECT_THAT(DrawTop(model, view, colours), Contains(HasSubstr("\x1b[33m+\x1b[0m")));
  job["ranks"] = {Rank(0, 1201), Rank(1, 1000)};
  ReadJob({{"job", job}}, seconds(1022), &model);
  EXPECT_THAT(DrawTop(model, view, Plain(80, 24)),
              Contains("slowest: rank 1 on node-a is 201 steps behind"));
  EXPECT_THAT(DrawTop(model, view, colours), Contains(HasSubstr("\x1b[31m+\x1b[0m")));
}

TEST(TopTest, TheCurveTellsTheTimeLeftAtOnce) {
  TopModel model;
  json job = Job("geoid-k3x9w2", "RUNNING");
  job["progress"] = {{"step", 200}, {"totalSteps", 1000}};
  json curve = json::array();
  for (int i = 0; i <= 10; ++i) {
    curve.push_back(
        {{"at", fmt::format("1970-01-01T00:16:{:02}Z", 30 + i)}, {"step", 100 + i * 10}});
  }
  ReadJob({{"job", job}, {"curve", curve}}, seconds(1000), &model);
  const auto left = model.meters.at("geoid-k3x9w2").Remaining(model.now);
  ASSERT_TRUE(left.has_value());
  EXPECT_EQ(left->count(), 80);
}

// The page's rule: units.js has onlyAJobThatMakesStepsHasASpeedAndATimeLeft.
TEST(TopTest, OnlyAJobThatMakesStepsHasASpeedAndATimeLeft) {
  // Model() makes 5 steps a second until 1010 s.
  const auto speaks = [](const json& more, int at) {
    TopModel model = Model();
    json job = Job("geoid-k3x9w2", "RUNNING");
    job["progress"] = {{"step", 150}, {"totalSteps", 1000}};
    job.update(more);
    ReadJobs({{"jobs", {job}}}, seconds(at), &model);
    const auto has = [&](TopView::Kind kind, const char* text) {
      const auto rows = DrawTop(model, {.kind = kind, .job = "geoid-k3x9w2"}, Plain(120, 24));
      return std::any_of(rows.begin(), rows.end(), [&](const std::string& row) {
        return row.find(text) != std::string::npos;
      });
    };
    const bool left = has(TopView::Kind::kCluster, "2m50s");
    EXPECT_EQ(left, has(TopView::Kind::kJob, "2m50s left"));
    EXPECT_EQ(left, has(TopView::Kind::kJob, "5 step/s"));
    EXPECT_TRUE(has(TopView::Kind::kJob, "150/1000"));
    return left;
  };
  EXPECT_TRUE(speaks(json::object(), 1011));
  EXPECT_TRUE(speaks(json::object(), 1060)) << "a step that takes longer";
  EXPECT_FALSE(speaks(json::object(), 1061)) << "no step for longer than a few intervals";
  EXPECT_FALSE(speaks(json::object(), 8210)) << "no step for two hours";
  EXPECT_FALSE(speaks({{"hang", "rank 3 hangs"}}, 1011));
  EXPECT_FALSE(speaks({{"pausedSince", "2026-11-30T10:00:00Z"}}, 1011));
  for (const char* state : {"QUEUED", "RENDEZVOUS", "QUIESCING", "WAITING", "SUSPENDED",
                            "SUCCEEDED", "FAILED", "CANCELLED", "OF_A_LATER_VERSION"}) {
    EXPECT_FALSE(speaks({{"state", std::string("JOB_STATE_") + state}}, 1011)) << state;
  }
}

// `meshrun run` and `meshrun top` look at the same job, in each of its states and after it.
TEST(TopTest, ARunAndTopShowTheSameSpeed) {
  struct Case {
    std::string state;
    const char* hang = "";
    bool is_paused = false;
    int generation = 2;
    bool has_step = true;
  };
  std::vector<Case> cases = {{.state = "JOB_STATE_RUNNING", .hang = "rank 3 hangs"},
                             {.state = "JOB_STATE_RUNNING", .is_paused = true},
                             {.state = "JOB_STATE_RUNNING", .generation = 3},
                             {.state = "JOB_STATE_RENDEZVOUS", .generation = 3, .has_step = false}};
  for (int state = v1::JobState_MIN; state <= v1::JobState_MAX; ++state) {
    if (v1::JobState_IsValid(state)) cases.push_back({v1::JobState_Name(state)});
  }
  for (const Case& one : cases) {
    TopModel model;
    ProgressMeter run;
    const auto look = [&](const Case& now, int step, int at) {
      json job = Job("geoid-k3x9w2", "RUNNING");
      job["state"] = now.state;
      job["hang"] = now.hang;
      job["generation"] = now.generation;
      if (now.is_paused) job["pausedSince"] = "2026-11-30T10:00:00Z";
      job["progress"] = {{"step", step}, {"totalSteps", 1000}};
      if (!now.has_step) job["progress"] = json::object();
      ReadJobs({{"jobs", {job}}}, seconds(at), &model);
      v1::Job message;
      v1::JobState state = v1::JOB_STATE_UNSPECIFIED;
      ASSERT_TRUE(v1::JobState_Parse(now.state, &state));
      message.set_state(state);
      message.set_hang(now.hang);
      message.set_generation(static_cast<uint64_t>(now.generation));
      if (now.is_paused) message.mutable_paused_since();
      if (now.has_step) {
        message.mutable_progress()->set_step(step);
        message.mutable_progress()->set_total_steps(1000);
      }
      if (at == 1000) {
        run.Look(message);
      } else {
        run.Update(message, seconds(at));
      }
      const ProgressMeter& top = model.meters.at("geoid-k3x9w2");
      EXPECT_EQ(top.Line(seconds(at)), run.Line(seconds(at))) << now.state << " at " << at;
    };
    const Case running = {.state = "JOB_STATE_RUNNING"};
    look(running, 100, 1000);
    look(running, 105, 1001);
    look(running, 110, 1002);
    EXPECT_THAT(run.Line(seconds(1002)), HasSubstr("5 step/s")) << one.state;
    look(one, 115, 1003);
    look(one, 115, 1004);
    Case next = running;
    next.generation = one.generation;
    look(next, 120, 1009);
    look(next, 122, 1010);
  }
}

TEST(TopTest, AnotherGenerationHasASpeedOfItsOwn) {
  TopModel model = Model();
  json job = Job("geoid-k3x9w2", "RUNNING");
  job["generation"] = 3;
  // After a restart of some seconds it goes on where it was.
  for (const auto& [step, at] : {std::pair(150, 1011), {152, 1020}, {154, 1021}}) {
    job["progress"] = {{"step", step}, {"totalSteps", 1000}};
    ReadJobs({{"jobs", {job}}}, seconds(at), &model);
  }
  EXPECT_EQ(model.meters.at("geoid-k3x9w2").Rate(model.now), 2);
}

// The curve is spread, and its last point may be older than the last step.
TEST(TopTest, TheFirstLookIsNotTheMomentOfAStep) {
  TopModel model;
  json job = Job("geoid-k3x9w2", "RUNNING");
  job["progress"] = {{"step", 240}, {"totalSteps", 1000}};
  const json curve = {{{"at", "1970-01-01T00:10:00Z"}, {"step", 100}},
                      {{"at", "1970-01-01T00:12:00Z"}, {"step", 220}}};
  ReadJob({{"job", job}, {"curve", curve}}, seconds(15 * 60), &model);
  const ProgressMeter& meter = model.meters.at("geoid-k3x9w2");
  EXPECT_EQ(meter.Rate(model.now), 1);
  // Hours later there is none.
  ReadJobs({{"jobs", {job}}}, seconds(15 * 3600), &model);
  EXPECT_EQ(meter.Rate(model.now), std::nullopt);
}

TEST(TopTest, SaysWhatIsWrongWithWhatItShows) {
  TopModel model = Model();
  model.problem = "the coordinator's HTTP port does not answer";
  model.read_only_reason = "the disk is full";
  const auto rows = DrawTop(model, {}, Plain(80, 24));
  EXPECT_EQ(rows[1], "problem: the coordinator's HTTP port does not answer");
  EXPECT_EQ(rows[2], "read-only: the disk is full");
}

TEST(TopTest, AnAnswerOfAnotherVersionLeavesThingsEmpty) {
  TopModel model;
  for (const json& answer : {json(), json(7), json::array(), json::object(),
                             json{{"jobs", 7}, {"nodes", "x"}, {"job", json::array()}},
                             json{{"jobs", {{{"jobId", 7}, {"ranks", {1, "x"}}}}},
                                  {"nodes", {7, {{"resources", 1}}}},
                                  {"job", {{"jobId", "a"}, {"progress", 7}, {"failure", {}}}}}}) {
    ReadCluster(answer, &model);
    ReadNodes(answer, &model);
    ReadJobs(answer, seconds(1), &model);
    ReadJob(answer, seconds(1), &model);
    DrawTop(model, {}, Plain(80, 24));
  }
}

TEST(TopTest, OnceIsAsLongAsThereIsToSay) {
  const auto rows = DrawTopOnce(Model(), {}, Plain(200, 5));
  EXPECT_THAT(rows, Contains(StartsWith(" train-aaaaaa")));
  EXPECT_THAT(rows, ::testing::Not(Contains(HasSubstr("quit"))));
}

TEST(TopTest, ManyNodesAreAskedForLessOften) {
  EXPECT_EQ(NodesPace(0), seconds(2));
  EXPECT_EQ(NodesPace(500), seconds(6));
  EXPECT_EQ(NodesPace(100'000), seconds(10));
}

TEST(TopTest, RanksOfManyPagesAreAskedForLessOften) {
  EXPECT_EQ(RanksPace(kRanksOfPage), seconds(0));
  EXPECT_EQ(RanksPace(3000), seconds(3));
  EXPECT_EQ(RanksPace(100'000), seconds(10));
}

TEST(TopTest, TheJobThatIsShownStaysWhileTheListIsWithoutIt) {
  TopModel model = Model();
  model.followed = "geoid-k3x9w2";
  json job = Job("geoid-k3x9w2", "RUNNING");
  job["ranks"] = json::array({Rank(0, 7)});
  ReadJob({{"job", job}}, seconds(1020), &model);
  ReadJobs({{"jobs", {Job("job-1", "RUNNING")}}}, seconds(1021), &model);
  ASSERT_EQ(model.jobs.size(), 2u);
  EXPECT_EQ(model.jobs[1].ranks.size(), 1u);
  // Ranks of another generation are not its ranks.
  job["generation"] = 3;
  job["ranks"] = json::array();
  ReadJobs({{"jobs", {job}}}, seconds(1022), &model);
  EXPECT_TRUE(model.jobs[0].ranks.empty());
}

TEST(TopTest, TextIsScrolled) {
  const TopView view{.kind = TopView::Kind::kText,
                     .title = "log of geoid",
                     .lines = {"a", "b", "c", "d"},
                     .first = 2};
  EXPECT_THAT(DrawTop({}, view, Plain(40, 4)),
              ElementsAre("log of geoid", "c", "d", StartsWith("arrows")));
}

std::vector<Key> KeysOf(std::string_view bytes) {
  std::vector<Key> out;
  for (const KeyPress& press : ParseKeys(bytes)) out.push_back(press.key);
  return out;
}

TEST(ParseKeysTest, ArrowsAndPages) {
  EXPECT_THAT(KeysOf("\x1b[A\x1b[B\x1bOA\x1b[5~\x1b[6~\x1b[H\x1b[4~\r"),
              ElementsAre(Key::kUp, Key::kDown, Key::kUp, Key::kPageUp, Key::kPageDown, Key::kHome,
                          Key::kEnd, Key::kEnter));
}

TEST(ParseKeysTest, EscapeAloneAndLetters) {
  EXPECT_THAT(KeysOf("\x1b"), ElementsAre(Key::kEscape));
  const auto keys = ParseKeys("qy");
  ASSERT_EQ(keys.size(), 2u);
  EXPECT_EQ(keys[0].character, 'q');
  EXPECT_EQ(keys[1].character, 'y');
}

TEST(ParseKeysTest, AKeyThatIsNotOursIsNoLetter) {
  EXPECT_THAT(KeysOf("\x1b[15~q"), ElementsAre(Key::kCharacter));
  EXPECT_THAT(KeysOf("\x1b[1;5Cq"), ElementsAre(Key::kCharacter));
  EXPECT_THAT(KeysOf("\x1b["), ElementsAre(Key::kEscape, Key::kCharacter));
}

}  // namespace
}  // namespace meshrun::client
