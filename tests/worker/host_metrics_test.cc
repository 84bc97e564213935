#include "worker/metrics/host_metrics.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/metrics/documented.h"

namespace meshrun::worker {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

RunningRank RankOf(const std::string& job, int rank) {
  RunningRank out{
      .job_id = job, .process = {1, rank}, .rank = rank, .user = "ada", .step_seconds = 0.25};
  out.progress.set_step(12);
  out.progress.set_loss(0.5);
  out.progress.set_samples(640);
  out.progress.set_waited_seconds(1.5);
  out.progress.set_data_seconds(0.5);
  out.progress.set_collective_bytes(4096);
  return out;
}

std::string TextOf(HostMetrics& metrics, const HostMeasures& measures) {
  metrics::Exposition out;
  metrics.Collect(&measures, std::nullopt, nullptr, &out);
  return out.Text();
}

TEST(HostMetricsTest, ThePageHasWhatIsExported) {
  GpuWatch::State gpus;
  gpus.readings.push_back({.index = 0,
                           .uuid = "GPU-1",
                           .busy = 0.5,
                           .memory_busy = 0.25,
                           .memory_used_bytes = 1,
                           .memory_bytes = 2,
                           .celsius = 60,
                           .uncorrected_errors = 0});
  gpus.read_at = std::chrono::steady_clock::now();
  const HostMeasures measures{.slots = 8, .ranks = {RankOf("job", 0)}};
  HostMetrics metrics(/*with_job=*/false);
  metrics::Exposition out;
  metrics.Collect(&measures, LogSpace{1, 2, 3}, &gpus, &out);
  std::set<std::string> exported;
  for (const auto& family : out.families()) {
    if (!family.metric.empty()) exported.insert(family.name);
  }
  EXPECT_EQ(exported, meshrun::testing::DocumentedBelow("The workers' metrics"));
}

TEST(HostMetricsTest, APlaceIsKeptWhileItsRankRunsAndGivenToTheNext) {
  HostMetrics metrics(/*with_job=*/false);
  HostMeasures measures{.slots = 2, .ranks = {RankOf("first", 6), RankOf("first", 7)}};
  std::string text = TextOf(metrics, measures);
  EXPECT_THAT(text, HasSubstr("meshrun_rank_step{place=\"0\",user=\"ada\",rank=\"6\"} 12"));
  EXPECT_THAT(text, HasSubstr("meshrun_rank_step{place=\"1\",user=\"ada\",rank=\"7\"} 12"));
  measures.ranks = {RankOf("another", 0), RankOf("first", 7)};
  text = TextOf(metrics, measures);
  EXPECT_THAT(text, HasSubstr("meshrun_rank_step{place=\"0\",user=\"ada\",rank=\"0\"} 12"));
  EXPECT_THAT(text, HasSubstr("meshrun_rank_step{place=\"1\",user=\"ada\",rank=\"7\"} 12"));
  EXPECT_THAT(text,
              HasSubstr("meshrun_rank_step_seconds{place=\"1\",user=\"ada\",rank=\"7\"} 0.25"));
}

// The host before this one is lost: the processes of ranks 3 to 6 live on as ranks 2 to 5.
TEST(HostMetricsTest, SeriesOfARankThatIsNumberedAnewHaveTheTotalsOfItsProcess) {
  HostMetrics metrics(/*with_job=*/false);
  HostMeasures measures{.slots = 8, .ranks = {RankOf("other", 3)}};
  for (const int rank : {3, 4, 5, 6}) {
    measures.ranks.push_back(RankOf("job", rank));
    measures.ranks.back().progress.set_waited_seconds(1000 * rank);
  }
  const auto is_told = [](const std::string& text, int place, int rank, int seconds) {
    return text.find(fmt::format("meshrun_rank_collective_wait_seconds_total{{place=\"{}\","
                                 "user=\"ada\",rank=\"{}\"}} {}\n",
                                 place, rank, seconds)) != std::string::npos;
  };
  std::string text = TextOf(metrics, measures);
  for (const int rank : {3, 4, 5, 6}) {
    EXPECT_TRUE(is_told(text, rank - 2, rank, 1000 * rank)) << text;
  }
  for (size_t i = 1; i < measures.ranks.size(); ++i) --measures.ranks[i].rank;
  // A new process takes a number that another one had, and no place that is taken.
  measures.ranks.push_back(RankOf("job", 6));
  measures.ranks.back().process = {2, 6};
  measures.ranks.back().progress.set_waited_seconds(1);
  text = TextOf(metrics, measures);
  for (const int rank : {3, 4, 5, 6}) {
    EXPECT_TRUE(is_told(text, rank - 2, rank - 1, 1000 * rank)) << text;
  }
  EXPECT_TRUE(is_told(text, 5, 6, 1)) << text;
}

TEST(HostMetricsTest, AJobIsNamedOnlyWhereTheOperatorAsksForIt) {
  const HostMeasures measures{.slots = 2, .ranks = {RankOf("geoid-k3x9", 0)}};
  HostMetrics without(/*with_job=*/false);
  EXPECT_THAT(TextOf(without, measures), Not(HasSubstr("geoid")));
  HostMetrics with(/*with_job=*/true);
  EXPECT_THAT(TextOf(with, measures), HasSubstr("rank=\"0\",job=\"geoid-k3x9\"}"));
}

TEST(HostMetricsTest, WhatARankHasNotSaidIsNotTold) {
  HostMetrics metrics(/*with_job=*/false);
  const HostMeasures measures{.slots = 1, .ranks = {{.job_id = "job", .user = "ada"}}};
  const std::string text = TextOf(metrics, measures);
  EXPECT_THAT(text, HasSubstr("meshrun_worker_ranks 1"));
  EXPECT_THAT(text, Not(HasSubstr("meshrun_rank_")));
}

}  // namespace
}  // namespace meshrun::worker
