#include "core/flight_record/flight_record.h"

#include <gtest/gtest.h>

#include <string>

namespace meshrun {
namespace {

TEST(FlightRecordTest, HasGroupsAndTheirOperations) {
  const auto record = ReadFlightGroups(
      R"({"now_ms": 5500.5, "groups": [{"group": "world", "operations": [)"
      R"({"sequence": 1, "operation": "all_reduce", "state": "done", "shape": [3, 4],)"
      R"("submitted_ms": 100, "checked_ms": 100.25, "finished_ms": 101}, )"
      R"({"sequence": 2, "operation": "barrier", "state": "checking"}]}, {"group": "rows"}]})");
  ASSERT_TRUE(record);
  EXPECT_EQ(record->now_ms, 5500.5);
  ASSERT_EQ(record->groups.size(), 2u);
  EXPECT_EQ(record->groups[0].name, "world");
  ASSERT_EQ(record->groups[0].operations.size(), 2u);
  const FlightOperation& first = record->groups[0].operations[0];
  EXPECT_EQ(first.number, 1);
  EXPECT_EQ(first.name, "all_reduce");
  EXPECT_TRUE(first.HasEnded());
  EXPECT_EQ(first.submitted_ms, 100);
  EXPECT_EQ(first.checked_ms, 100.25);
  EXPECT_EQ(first.finished_ms, 101);
  EXPECT_EQ(first.fields["shape"].dump(), "[3,4]");
  const FlightOperation& second = record->groups[0].operations[1];
  EXPECT_FALSE(second.HasEnded());
  EXPECT_FALSE(second.submitted_ms);
  EXPECT_EQ(record->groups[1].name, "rows");
  EXPECT_TRUE(record->groups[1].operations.empty());
}

TEST(FlightRecordTest, WhatIsNoRecordIsAbsent) {
  for (const char* json :
       {"", "{", "[]", "7", "{}", R"({"groups": 7})", R"({"groups": {"a": 1}})"}) {
    EXPECT_FALSE(ReadFlightGroups(json)) << json;
  }
}

// A rank may be of another version, or hostile.
TEST(FlightRecordTest, FieldsOfAnotherTypeAreMissing) {
  const auto record = ReadFlightGroups(
      R"({"now_ms": "x", "groups": [7, {"group": 7, "operations": 7}, )"
      R"({"operations": [8, {"sequence": 1.5, "operation": [], "state": {}, "submitted_ms": "x"}]}]})");
  ASSERT_TRUE(record);
  EXPECT_FALSE(record->now_ms);
  ASSERT_EQ(record->groups.size(), 3u);
  EXPECT_EQ(record->groups[1].name, "");
  ASSERT_EQ(record->groups[2].operations.size(), 2u);
  for (const FlightOperation& operation : record->groups[2].operations) {
    EXPECT_FALSE(operation.number || operation.submitted_ms);
    EXPECT_EQ(operation.name + operation.state, "");
    EXPECT_TRUE(operation.fields.is_object());
  }
}

TEST(FlightRecordTest, DepthCostsNoStack) {
  const std::string deep = std::string(500'000, '[') + std::string(500'000, ']');
  const auto record =
      ReadFlightGroups(R"({"groups": [{"operations": [{"shape": )" + deep + "}]}]}");
  ASSERT_TRUE(record);
  EXPECT_EQ(record->groups[0].operations.size(), 1u);
}

}  // namespace
}  // namespace meshrun
