#include "client/render/flight_records.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace meshrun::client {
namespace {

using ::testing::HasSubstr;

v1::FlightRecord Record(int rank, const std::string& json) {
  v1::FlightRecord record;
  record.set_rank(rank);
  record.set_json(json);
  return record;
}
v1::FlightRecord Error(int rank, const std::string& error) {
  v1::FlightRecord record;
  record.set_rank(rank);
  record.set_error(error);
  return record;
}

constexpr char kRunning[] =
    R"({"now_ms":5500.0,"groups":[{"group":"world","operations":[)"
    R"({"sequence":1,"operation":"all_reduce","state":"done","dtype":"float32","shape":[3,4],)"
    R"("bytes":48,"submitted_ms":100.0,"finished_ms":100.25},)"
    R"({"sequence":2,"operation":"barrier","state":"checking","dtype":"uint8","shape":[],)"
    R"("bytes":0,"submitted_ms":1000.0}]}]})";

TEST(FlightRecordsTest, ShowsEachRanksGroupsInOrderAndWhoDidNotAnswer) {
  EXPECT_EQ(DescribeFlightRecords({Error(1, "it has ended"), Record(0, kRunning)}),
            "rank 0\n"
            "  group \"world\": 2 operations, 1 not ended\n"
            "    number  operation   state     dtype    shape  bytes      took\n"
            "         1  all_reduce  done      float32  [3,4]     48  0.250 ms\n"
            "         2  barrier     checking  uint8    []         0     4.5 s\n"
            "rank 1: it has ended\n");
}

TEST(FlightRecordsTest, ShowsTheLastOfManyAndAllThatHaveNotEnded) {
  std::string operations;
  for (int i = 1; i <= 100; ++i) {
    operations += std::string(i > 1 ? "," : "") + R"({"sequence":)" + std::to_string(i) +
                  R"(,"operation":"barrier","state":")" + (i == 7 ? "moving" : "done") + "\"}";
  }
  const std::string text = DescribeFlightRecords(
      {Record(0, R"({"groups":[{"group":"g","operations":[)" + operations + "]}]}")});
  EXPECT_THAT(text, HasSubstr("100 operations, 1 not ended"));
  EXPECT_THAT(text, HasSubstr("     7  barrier    moving\n"));
  EXPECT_THAT(text, HasSubstr("    85  barrier    done\n"));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("    84  barrier    done\n")));
}

TEST(FlightRecordsTest, WhatIsNotUnderstoodIsSaidSo) {
  for (const char* json : {"", "[", "{}", "[1]", R"({"groups":{"a":1}})"}) {
    EXPECT_THAT(DescribeFlightRecords({Record(0, json)}), HasSubstr("cannot be read")) << json;
  }
  EXPECT_EQ(DescribeFlightRecords({Record(0, R"({"groups":[]})")}),
            "rank 0\n  no process group on ucx\n");
  EXPECT_THAT(DescribeFlightRecords({Record(0, R"({"groups":[7,{"operations":[8]}]})")}),
              HasSubstr("1 operation"));
}

TEST(FlightRecordsTest, TheJsonHasAnEntryForEachRank) {
  EXPECT_EQ(FlightRecordsJson({Error(1, "it has ended"), Record(0, R"({"groups":[]})")}),
            "[{\"rank\":0,\"groups\":[]},{\"rank\":1,\"error\":\"it has ended\"}]\n");
}

}  // namespace
}  // namespace meshrun::client
