#include "client/render/curve_report.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/proto_time.h"

namespace meshrun::client {
namespace {

v1::ProgressPoint& Add(CurvePoints* curve, int64_t step) {
  v1::ProgressPoint& point = *curve->Add();
  *point.mutable_at() = ToProtoTimestamp(std::chrono::seconds(1'700'000'000 + step));
  point.set_step(step);
  return point;
}

TEST(CurveReportTest, CsvHasAColumnForEachMetricAndEmptyFieldsWhereThereIsNoValue) {
  CurvePoints curve;
  Add(&curve, 1).set_loss(0.1);
  (*Add(&curve, 2).mutable_metrics())["a, \"b\""] = 1e-17;
  EXPECT_EQ(CurveCsv(curve),
            "time,step,loss,\"a, \"\"b\"\"\"\n"
            "2023-11-14T22:13:21Z,1,0.1,\n"
            "2023-11-14T22:13:22Z,2,,1e-17\n");
}

TEST(CurveReportTest, CsvKeepsWhatIsNotANumber) {
  CurvePoints curve;
  Add(&curve, 1).set_loss(std::numeric_limits<double>::quiet_NaN());
  Add(&curve, 2).set_loss(-std::numeric_limits<double>::infinity());
  // What 0.0 / 0.0 is on x86.
  Add(&curve, 3).set_loss(std::copysign(std::numeric_limits<double>::quiet_NaN(), -1));
  EXPECT_EQ(CurveCsv(curve),
            "time,step,loss\n2023-11-14T22:13:21Z,1,nan\n2023-11-14T22:13:22Z,2,-inf\n"
            "2023-11-14T22:13:23Z,3,nan\n");
  EXPECT_EQ(CurveTable(curve, 0),
            "TIME                  STEP  LOSS\n2023-11-14T22:13:21Z     1   nan\n"
            "2023-11-14T22:13:22Z     2  -inf\n2023-11-14T22:13:23Z     3   nan\n");
}

TEST(CurveReportTest, CsvOfNoPointHasItsHeadAlone) { EXPECT_EQ(CurveCsv({}), "time,step,loss\n"); }

TEST(CurveReportTest, PointsThatAnEarlierCoordinatorHadAreSaidToBeMissing) {
  v1::Job job;
  job.set_job_id("geoid-a");
  *job.mutable_started_at() = ToProtoTimestamp(std::chrono::seconds(1'700'000'000));
  CurvePoints curve;
  EXPECT_EQ(MissingPoints(job, curve, std::chrono::seconds(1'699'999'999)),
            "geoid-a has reported no step");
  const auto later = std::chrono::seconds(1'700'000'060);
  const std::string lost = MissingPoints(job, curve, later);
  EXPECT_NE(lost.find("began at 2023-11-14T22:14:20Z, and has no points of geoid-a from before"),
            std::string::npos)
      << lost;
  Add(&curve, 70);
  EXPECT_EQ(MissingPoints(job, curve, later), lost);
  EXPECT_EQ(MissingPoints(job, curve, std::chrono::seconds(1'699'999'999)), "");
}

TEST(CurveReportTest, MetricsBeyondTheFirstEightAreNamed) {
  v1::Job job;
  CurvePoints curve;
  v1::ProgressPoint& point = Add(&curve, 1);
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(MetricsLeftOut(job, curve), "") << "the curve may be older than the report";
    (*job.mutable_progress()->mutable_metrics())["m" + std::to_string(i)] = i;
    (*point.mutable_metrics())["m" + std::to_string(i)] = i;
  }
  EXPECT_EQ(MetricsLeftOut(job, curve), "");
  (*job.mutable_progress()->mutable_metrics())["late\n"] = 1;
  EXPECT_EQ(MetricsLeftOut(job, curve),
            "1 metric is not in the curve, which has the first 8 that were reported since this "
            "coordinator leads: late\\x0a (files with more of them: --tensorboard)");
  for (int i = 10; i < 20; ++i) {
    (*job.mutable_progress()->mutable_metrics())["m" + std::to_string(i)] = i;
  }
  const std::string many = MetricsLeftOut(job, curve);
  EXPECT_EQ(many.find("11 metrics are not in the curve"), 0u) << many;
  EXPECT_NE(many.find("m16 and more (files"), std::string::npos) << many;
}

TEST(CurveReportTest, TheTableLeavesOutWhatNoPointHas) {
  CurvePoints curve;
  Add(&curve, 7).set_loss(1.0 / 3);
  EXPECT_EQ(CurveTable(curve, 0),
            "TIME                  STEP      LOSS\n2023-11-14T22:13:27Z     7  0.333333\n");
}

}  // namespace
}  // namespace meshrun::client
