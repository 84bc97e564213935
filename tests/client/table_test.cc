#include "client/render/table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "client/render/style.h"

namespace meshrun::client {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

size_t Widest(const std::string& text) {
  std::istringstream lines(text);
  size_t widest = 0;
  for (std::string line; std::getline(lines, line);) widest = std::max(widest, DisplayWidth(line));
  return widest;
}

Table Events() {
  Table table({">NUMBER", "~WHEN", "EVENT", "~JOB", "WHAT"});
  table.Add({"1", "5m ago", "job-failed", "train-k3x9w2",
             "rank 1 of 4 on n2 ended with exit code 3, and its last line says why that is so"});
  return table;
}

TEST(TableTest, FitsAnyTerminal) {
  for (int width = 20; width <= 200; ++width) {
    EXPECT_LE(Widest(Events().Render(2, width)), static_cast<size_t>(width));
  }
}

TEST(TableTest, TheLastColumnIsWrappedAndKeepsItsWords) {
  EXPECT_EQ(Events().Render(0, 70),
            "NUMBER  WHEN    EVENT       JOB           WHAT\n"
            "     1  5m ago  job-failed  train-k3x9w2  rank 1 of 4 on n2 ended with\n"
            "                                          exit code 3, and its last\n"
            "                                          line says why that is so\n");
}

TEST(TableTest, ColumnsThatMayGoFirstGoFirst) {
  const std::string narrow = Events().Render(0, 42);
  EXPECT_THAT(narrow, Not(HasSubstr("JOB")));
  EXPECT_THAT(narrow, Not(HasSubstr("WHEN")));
  EXPECT_THAT(narrow, HasSubstr("WHAT"));
  // Then from the right.
  EXPECT_EQ(Events().Render(0, 20), "NUMBER  EVENT\n     1  job-failed\n");
}

TEST(TableTest, AmongThemThoseWithTwoSignsGoBefore) {
  const auto render = [](int width) {
    Table table({"~WHEN", "~~PID", "EVENT", "~~~NODE", "WHAT"});
    table.Add({"yesterday", "4711", "job-failed", "n2", "it ended with exit code 3"});
    const std::string text = table.Render(0, width);
    return text.substr(0, text.find('\n'));
  };
  EXPECT_EQ(render(80), "WHEN       PID   EVENT       NODE  WHAT");
  EXPECT_EQ(render(50), "WHEN       PID   EVENT       WHAT");
  EXPECT_EQ(render(42), "WHEN       EVENT       WHAT");
  // The first one too.
  EXPECT_EQ(render(30), "EVENT       WHAT");
}

TEST(TableTest, TheFirstColumnStaysWhole) {
  Table table({"JOB", "STATE"});
  table.Add({"a-name-that-is-long-k3x9w2", "RUNNING"});
  EXPECT_EQ(table.Render(0, 10), "JOB\na-name-that-is-long-k3x9w2\n");
}

TEST(TableTest, WhatNobodyReadsOnATerminalIsAsWideAsItIs) {
  EXPECT_GT(Widest(Events().Render()), 100u);
  EXPECT_EQ(TableWidth(Style()), 0);
}

}  // namespace
}  // namespace meshrun::client
