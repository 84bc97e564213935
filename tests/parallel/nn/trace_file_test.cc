#include "parallel/nn/trace_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

namespace meshrun::detail {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

json read(const std::string& path) {
  json parsed;
  std::ifstream(path) >> parsed;
  return parsed;
}

std::string fresh_directory(const std::string& name) {
  const std::filesystem::path path = std::filesystem::path(::testing::TempDir()) / name;
  std::filesystem::remove_all(path);
  return path;
}

TEST(TraceFileTest, AfterEveryAddItIsAnArrayOfEventsOnNamedRows) {
  TraceFile file(fresh_directory("traces") + "/below", 3);
  json events = read(file.path());
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0]["name"], "process_name");
  EXPECT_THAT(events[0]["args"]["name"], HasSubstr("rank 3 on "));

  // So many nanoseconds have more digits than a double.
  const int64_t begin = 1'790'000'000'123'456'789;
  file.add({{"training", "backward", 7, begin, begin + 2'500, std::nullopt},
            {"bucket 0", "ready", 7, begin + 1'000, std::nullopt, 64}});
  file.add({{"training", "forward", 8, begin, begin + 5, std::nullopt}});
  std::ifstream stream(file.path());
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  EXPECT_THAT(text, HasSubstr(R"("ts":1790000000123456.789,"dur":2.500)"));

  events = read(file.path());
  json spans = json::array();
  for (const json& event : events) {
    if (event["ph"] != "M") spans.push_back(event);
    EXPECT_EQ(event["pid"], 3);
  }
  ASSERT_EQ(spans.size(), 3u);
  EXPECT_EQ(spans[0]["ph"], "X");
  EXPECT_EQ(spans[0]["name"], "backward");
  EXPECT_EQ(spans[0]["args"], (json{{"step", 7}}));
  EXPECT_EQ(spans[1]["ph"], "i");
  EXPECT_EQ(spans[1]["args"], (json{{"step", 7}, {"bytes", 64}}));
  EXPECT_NE(spans[1]["tid"], spans[0]["tid"]);
  EXPECT_EQ(spans[2]["tid"], spans[0]["tid"]);
  // Each row is named once.
  int names = 0;
  for (const json& event : events) names += event["name"] == "thread_name";
  EXPECT_EQ(names, 2);
}

TEST(TraceFileTest, EveryTraceOfAProcessHasAFileOfItsOwn) {
  const std::string directory = fresh_directory("traces");
  const TraceFile first(directory, 0), second(directory, 0), third(directory, 1);
  EXPECT_NE(first.path(), second.path());
  EXPECT_THAT(second.path(), HasSubstr("-2.json"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory), {}), 3);
}

TEST(TraceFileTest, WhatCannotBeWrittenNamesTheFile) {
  const std::string directory = fresh_directory("traces");
  std::ofstream(directory) << "not a directory";
  try {
    const TraceFile file(directory, 0);
    ADD_FAILURE() << "no error";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), HasSubstr(directory + "/meshrun-trace-rank-0-"));
  }
}

TEST(TracedStepsTest, ANumberOrTheFirstAndTheLast) {
  EXPECT_EQ(parse_traced_steps("20"), (TracedSteps{1, 20}));
  EXPECT_EQ(parse_traced_steps("100-119"), (TracedSteps{100, 119}));
  EXPECT_EQ(parse_traced_steps("4-4"), (TracedSteps{4, 4}));
  for (const char* wrong : {"", "0", "-3", "3-", "5-4", "0-4", "2x", "1-2-3", "all", " 4", "+4",
                            "99999999999999999999"}) {
    EXPECT_EQ(parse_traced_steps(wrong), std::nullopt) << wrong;
  }
}

}  // namespace
}  // namespace meshrun::detail
