#include "coordinator/api/flight_sentence.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace meshrun::coordinator {
namespace {

v1::FlightRecord Record(int rank, const std::string& group, const std::string& operations) {
  v1::FlightRecord out;
  out.set_rank(rank);
  out.set_json(fmt::format(R"({{"now_ms": 1, "groups": [{{"group": "{}", "operations": [{}]}}]}})",
                           group, operations));
  return out;
}

std::string Operation(int number, const std::string& name, const std::string& state) {
  return fmt::format(R"({{"sequence": {}, "operation": "{}", "state": "{}"}})", number, name,
                     state);
}

TEST(FlightSentenceTest, NamesTheRankThatHasNotCalled) {
  const std::string called =
      Operation(16, "all_gather", "done") + "," + Operation(17, "all_reduce", "running");
  EXPECT_EQ(FlightSentence({Record(0, "world", called), Record(1, "world", called),
                            Record(2, "world", Operation(16, "all_gather", "done"))}),
            "In group \"world\" ranks 0-1 wait in all_reduce number 17, which rank 2 has not "
            "called.");
}

TEST(FlightSentenceTest, NamesThoseThatCallAnother) {
  EXPECT_EQ(FlightSentence({Record(0, "world", Operation(3, "all_reduce", "running")),
                            Record(1, "world", Operation(3, "broadcast", "running"))}),
            "In group \"world\" rank 0 waits in all_reduce number 3, and rank 1 waits in broadcast "
            "number 3: they do not call the same.");
}

TEST(FlightSentenceTest, AGroupThatIsStuckComesBeforeOneThatWorks) {
  EXPECT_EQ(
      FlightSentence({Record(0, "a", Operation(3, "all_reduce", "running")),
                      Record(1, "a", Operation(3, "all_reduce", "running")),
                      Record(0, "b", Operation(9, "barrier", "submitted")), Record(2, "b", "")}),
      "In group \"b\" rank 0 waits in barrier number 9, which rank 2 has not called.");
}

TEST(FlightSentenceTest, SaysWhatIsUnderWayWhereNobodyIsMissing) {
  EXPECT_EQ(FlightSentence({Record(0, "world", Operation(3, "all_reduce", "running")),
                            Record(1, "world", Operation(3, "all_reduce", "running"))}),
            "In group \"world\" ranks 0-1 wait in all_reduce number 3, which all have called.");
  EXPECT_EQ(FlightSentence({Record(0, "world", Operation(3, "all_reduce", "done"))}),
            "No collective is under way.");
}

TEST(FlightSentenceTest, WhatCannotBeReadIsLeftOut) {
  v1::FlightRecord broken;
  for (const char* json : {"", "{", "[]", "{\"groups\": 7}", "{\"groups\": [7]}",
                           "{\"groups\": [{\"operations\": [null, {\"sequence\": \"x\"}]}]}"}) {
    broken.set_json(json);
    EXPECT_EQ(FlightSentence({broken}), "No collective is under way.") << json;
  }
  // The deepest that a record has room for.
  const std::string deep = std::string(500'000, '[') + std::string(500'000, ']');
  broken.set_json("{\"groups\": [{\"operations\": [{\"shape\": " + deep + "}]}]}");
  EXPECT_EQ(FlightSentence({broken}), "No collective is under way.");
}

}  // namespace
}  // namespace meshrun::coordinator
