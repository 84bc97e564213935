#include "coordinator/metrics/coordinator_metrics.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "tests/coordinator/support/harness.h"
#include "tests/core/metrics/documented.h"

namespace meshrun::coordinator::testing {
namespace {

using ::testing::HasSubstr;

// Everything that a coordinator can tell.
void CollectAll(const CoordinatorMetrics& metrics, const Measures& measures,
                metrics::Exposition* out) {
  CoordinatorMetrics::Sources sources;
  sources.measures = std::make_shared<const Measures>(measures);
  sources.leads = true;
  sources.term = 3;
  sources.grpc.emplace();
  sources.store_bytes = 4096;
  sources.store_quota_bytes = 1 << 20;
  metrics.Collect(sources, out);
  out->Gauge("meshrun_certificate_expiry_timestamp_seconds", "Stands for the files'.")
      .Add(1, {{"file", "cert"}});
}

TEST(CoordinatorMetricsTest, ThePageHasWhatIsExported) {
  Harness h;
  h.AddWorker("node1");
  h.Submit(MakeSpec(1, 1));
  CoordinatorMetrics metrics;
  metrics.OnCall("SubmitJob", absl::StatusCode::kOk, milliseconds(3));
  metrics.OnCommit({.took = milliseconds(2), .events = 3, .rows = 9, .generations = 1});
  metrics::Exposition all;
  CollectAll(metrics, h.machine().Measure(), &all);
  // Families without series are not told.
  std::set<std::string> names;
  for (const auto& family : all.families()) {
    if (!family.metric.empty()) names.insert(family.name);
  }
  std::set<std::string> documented = meshrun::testing::DocumentedBelow("The coordinator's metrics");
  EXPECT_GT(documented.size(), 25u);
  documented.merge(meshrun::testing::DocumentedBelow("Metrics of both"));
  EXPECT_EQ(names, documented);
}

TEST(CoordinatorMetricsTest, SeriesOfABusyCoordinatorHaveABound) {
  Harness h;
  h.record = false;
  std::vector<FakeWorker*> workers;
  std::set<std::string> unbounded;
  for (int i = 0; i < 40; ++i) {
    workers.push_back(&h.AddWorker(fmt::format("node{}", i), 4));
    unbounded.insert(workers.back()->name());
    unbounded.insert(workers.back()->node_id());
  }
  for (int i = 0; i < 400; ++i) {
    v1::JobSpec spec = MakeSpec(1, 1 + i % 4);
    spec.set_max_restarts(3);
    unbounded.insert(h.SubmitAs(fmt::format("user{}", i % 120), spec));
  }
  for (int round = 0; round < 20; ++round) {
    for (size_t i = 0; i < workers.size(); ++i) {
      for (const std::string& job : unbounded) {
        if (!workers[i]->Carries(job) || workers[i]->Running(job).empty()) continue;
        h.Say(*workers[i], round % 3 == 0 ? workers[i]->ExitAll(job, 0)
                                          : workers[i]->Exit(job, *workers[i]->Running(job).begin(),
                                                             round % 3, 9 * (round % 2)));
        break;
      }
    }
    h.Advance(seconds(20));
  }
  CoordinatorMetrics metrics;
  for (int i = 0; i < 5000; ++i) {
    metrics.OnCall(fmt::format("Method{}", i % 60), static_cast<absl::StatusCode>(i % 17),
                   milliseconds(i % 100));
  }
  metrics::Exposition out;
  CollectAll(metrics, h.machine().Measure(), &out);
  const std::map<std::string, size_t> kMost = {{"state", 16},  {"user", Tallies::kMostUsers + 1},
                                               {"reason", 16}, {"kind", 128},
                                               {"phase", 3},   {"method", 64},
                                               {"code", 17},   {"port", 2},
                                               {"file", 2},    {"version", 1},
                                               {"program", 1}};
  std::map<std::string, std::set<std::string>> values;
  size_t series = 0;
  for (const auto& family : out.families()) {
    EXPECT_THAT(family.name, ::testing::AnyOf(::testing::StartsWith("meshrun_"),
                                              ::testing::StartsWith("process_")));
    for (const auto& metric : family.metric) {
      ++series;
      for (const auto& label : metric.label) {
        values[label.name].insert(label.value);
        EXPECT_FALSE(unbounded.contains(label.value)) << family.name << " names " << label.value;
      }
    }
  }
  for (const auto& [label, seen] : values) {
    ASSERT_TRUE(kMost.contains(label)) << "the label " << label << " has no known bound";
    EXPECT_LE(seen.size(), kMost.at(label)) << label;
  }
  EXPECT_LT(series, 2000u);
  EXPECT_GT(values["user"].size(), 10u);
}

TEST(CoordinatorMetricsTest, ACoordinatorThatStandsByTellsOfItselfAlone) {
  CoordinatorMetrics metrics;
  metrics::Exposition out;
  metrics.Collect({}, &out);
  const std::string text = out.Text();
  EXPECT_THAT(text, HasSubstr("meshrun_coordinator_leader 0\n"));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("meshrun_jobs")));
}

TEST(CoordinatorMetricsTest, AScrapeOfTenThousandRanksLooksAtNodesAlone) {
  Harness h;
  h.record = false;
  h.heartbeats = false;
  for (int i = 0; i < 1250; ++i) h.AddWorker(fmt::format("node{}", i));
  h.Submit(MakeSpec(1250, 8));
  constexpr int kScrapes = 50;
  const auto began = std::chrono::steady_clock::now();
  size_t nodes = 0;
  for (int i = 0; i < kScrapes; ++i) nodes += h.machine().Measure().nodes.at("healthy");
  const auto took = std::chrono::steady_clock::now() - began;
  fmt::print("  a scrape holds the loop with 1,250 hosts and 10,000 ranks for {:.3f} ms\n",
             std::chrono::duration<double, std::milli>(took).count() / kScrapes);
  EXPECT_EQ(nodes, size_t{kScrapes} * 1250);
}

}  // namespace
}  // namespace meshrun::coordinator::testing
