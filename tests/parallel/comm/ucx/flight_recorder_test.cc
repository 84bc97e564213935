#include "parallel/comm/ucx/engine/execution/flight_recorder.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace meshrun::ucx {
namespace {

FlightRecord record(uint64_t sequence) {
  FlightRecord r;
  r.sequence = sequence;
  r.kind = OperationKind::kAllGather;
  r.dtype = DType::kFloat32;
  r.ndim = 2;
  r.shape = {3, 4};
  r.size_count = 3;
  r.sizes = {3, 2, 3};
  r.bytes = 48;
  return r;
}

TEST(FlightRecorderTest, KeepsTheLastRecordsOldestFirst) {
  FlightRecorder recorder("world");
  for (uint64_t i = 1; i <= FlightRecorder::kRecords + 10; ++i) recorder.put(record(i));
  const auto records = recorder.records(FlightRecorder::kRecords);
  ASSERT_EQ(records.size(), static_cast<size_t>(FlightRecorder::kRecords));
  EXPECT_EQ(records.front().sequence, 11u);
  EXPECT_EQ(records.back().sequence, FlightRecorder::kRecords + 10u);
}

TEST(FlightRecorderTest, AdvancingAnOverwrittenRecordTouchesNoOther) {
  FlightRecorder recorder("world");
  const uint64_t first = recorder.put(record(1));
  for (int i = 2; i <= FlightRecorder::kRecords; ++i) recorder.put(record(i));
  recorder.advance(first, OperationState::kDone, SteadyNanos(5));
  EXPECT_EQ(recorder.records(FlightRecorder::kRecords).front().state, OperationState::kDone);
  recorder.put(record(1000));
  recorder.advance(first, OperationState::kFailed, SteadyNanos(5));
  for (const FlightRecord& r : recorder.records(FlightRecorder::kRecords))
    EXPECT_EQ(r.state, OperationState::kQueued);
}

TEST(FlightRecorderTest, ItsJsonSaysWhatARankWasDoing) {
  FlightRecorder recorder("data \"parallel\"");
  const uint64_t ticket = recorder.put(record(17));
  recorder.advance(ticket, OperationState::kMoving, std::chrono::milliseconds(2));
  const auto json = nlohmann::json::parse(recorder.to_json());
  EXPECT_EQ(json["group"], "data \"parallel\"");
  const auto& operation = json["operations"][0];
  EXPECT_EQ(operation["sequence"], 17);
  EXPECT_EQ(operation["operation"], "all_gather");
  EXPECT_EQ(operation["state"], "moving");
  EXPECT_EQ(operation["shape"], (std::vector{3, 4}));
  EXPECT_EQ(operation["sizes"], (std::vector{3, 2, 3}));
  EXPECT_EQ(operation["checked_ms"], 2.0);
  EXPECT_FALSE(operation.contains("finished_ms"));
}

TEST(FlightRecorderTest, NamesTheFunctionThatTheProgramHasCalled) {
  FlightRecord r = record(1);
  EXPECT_EQ(called(r), "all_gather");
  r.scope = "new_group";
  EXPECT_EQ(called(r), "new_group (all_gather)");
  r.scope = "all_gather";
  EXPECT_EQ(called(r), "all_gather");
  r.scope = "fused_all_reduce";
  r.kind = OperationKind::kCoalesced;
  EXPECT_EQ(nlohmann::json::parse(to_json("world", {r}))["operations"][0]["operation"],
            "fused_all_reduce (coalesced operations)");
}

TEST(FlightRecorderTest, DescribesAnOperationInWords) {
  EXPECT_EQ(describe(record(1)), "float32 [3, 4], sizes [3, 2, 3], 48 bytes");
  FlightRecord many = record(1);
  many.size_count = 100;
  EXPECT_EQ(describe(many), "float32 [3, 4], sizes [3, 2, 3, 0, 0, 0, 0, 0, ...], 48 bytes");
  EXPECT_EQ(describe(FlightRecord{}), "uint8 [], 0 bytes");
}

}  // namespace
}  // namespace meshrun::ucx
