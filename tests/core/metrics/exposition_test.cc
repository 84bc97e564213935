#include "core/metrics/exposition.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace meshrun::metrics {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(ExpositionTest, TheTextHasHelpTypeLabelsAndValues) {
  Exposition out;
  out.Gauge("meshrun_nodes", "Nodes by state.").Add(3, {{"state", "healthy"}});
  out.Counter("meshrun_events_total", "Events.").Add(7, {{"kind", "a \"quoted\"\nkind"}});
  out.Gauge("meshrun_empty", "No series.");
  const std::string text = out.Text();
  EXPECT_THAT(text, HasSubstr("# HELP meshrun_nodes Nodes by state.\n"
                              "# TYPE meshrun_nodes gauge\n"
                              "meshrun_nodes{state=\"healthy\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("meshrun_events_total{kind=\"a \\\"quoted\\\"\\nkind\"} 7\n"));
  EXPECT_THAT(text, Not(HasSubstr("meshrun_empty")));
}

TEST(ExpositionTest, AHistogramCountsWhatIsBelowEachBound) {
  Buckets buckets(kShortSeconds);
  buckets.Observe(0.001);
  buckets.Observe(0.3, 2);
  buckets.Observe(99);
  Exposition out;
  out.Histogram("meshrun_x_seconds", "X.").Add(buckets);
  const std::string text = out.Text();
  EXPECT_THAT(text, HasSubstr("meshrun_x_seconds_bucket{le=\"0.001\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("meshrun_x_seconds_bucket{le=\"0.25\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("meshrun_x_seconds_bucket{le=\"0.5\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("meshrun_x_seconds_bucket{le=\"10\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("meshrun_x_seconds_bucket{le=\"+Inf\"} 4\n"));
  EXPECT_THAT(text, HasSubstr("meshrun_x_seconds_count 4\n"));
}

}  // namespace
}  // namespace meshrun::metrics
