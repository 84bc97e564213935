// The places where a job's curves can be read have the same points, whatever its ranks report.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/client/command_fixture.h"
#include "third_party/tensorboard/event.pb.h"

namespace meshrun::client {
namespace {

using nlohmann::json;

// "step: value" of each point of a name, in the order of the reports.
using Curves = std::map<std::string, std::vector<std::string>>;

// Event files have numbers of single precision.
std::string PointText(int64_t step, double value) {
  return fmt::format("{}: {:.6g}", step, static_cast<double>(static_cast<float>(value)));
}

// What comes together is one report for the coordinator: each of these waits until the job shows
// the one before, which its samples tell. A step or a number that is refused is never passed on.
constexpr int kCountOfReports = 12;
constexpr const char* kOddReports = R"(
import os, socket, sys, time
reports = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
texts = [
    '{"step": 1, "loss": 0.5, "b": 1}',
    '{"step": 2, "loss": NaN, "b": 2}',
    '{"step": 3, "loss": null, "b": 3}',
    '{"step": 4}',
    '{"step": 99999999999999999999, "loss": 0.41}\n{"step": -5, "loss": 0.42}\n{"step": 5, "loss": 0.3}',
    '{"step": 5, "loss": 0.3}',
    '{"step": 5, "loss": 0.25}',
    '{"loss": 0.24, "a": 8}',
    '{"step": 3, "loss": 0.2}',
    '{"step": 8, "loss": 0.8, ' + ', '.join(f'"m{i:02}": {i}' for i in range(10)) + '}',
    '{"step": 9, "late": 7}',
    '{"step": 10, "loss": 1e999}\n{"step": 11, "loss": Infinity, "a": -Infinity}',
]
for number, text in enumerate(texts, 1):
    for line in text.splitlines():
        reports.sendto(f'{line[:-1]}, "samples": {number}}}'.encode(), os.environ["MESHRUN_REPORT"])
    while not os.path.exists(f"{sys.argv[1]}/seen-{number}"):
        time.sleep(0.01)
)";

Curves OfEventFiles(const std::string& directory) {
  Curves out;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    if (!entry.is_regular_file()) continue;
    std::string bytes = os::ReadFile(entry.path()).value_or("");
    for (std::string_view rest = bytes; rest.size() >= 16;) {
      uint64_t length = 0;
      std::memcpy(&length, rest.data(), sizeof(length));
      tensorboard::Event event;
      EXPECT_TRUE(event.ParseFromArray(rest.data() + 12, static_cast<int>(length)));
      for (const auto& value : event.summary().value()) {
        if (value.tag().starts_with("meshrun/")) continue;
        out[value.tag()].push_back(PointText(event.step(), value.simple_value()));
      }
      rest.remove_prefix(16 + length);
    }
  }
  return out;
}

double NumberOf(const json& value) {
  return value.is_string() ? std::stod(value.get<std::string>()) : value.get<double>();
}

Curves OfJson(const std::string& text) {
  Curves out;
  const json answer = json::parse(text);
  for (const json& point : answer.at("curve")) {
    const auto step = static_cast<int64_t>(NumberOf(point.at("step")));
    if (point.contains("loss")) out["loss"].push_back(PointText(step, NumberOf(point["loss"])));
    const json metrics = point.value("metrics", json::object());
    for (const auto& [name, value] : metrics.items()) {
      out[name].push_back(PointText(step, NumberOf(value)));
    }
  }
  return out;
}

Curves OfCsv(const std::string& text) {
  Curves out;
  std::vector<std::string> names;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::vector<std::string> cells;
    std::istringstream fields(line + ",");
    for (std::string cell; std::getline(fields, cell, ',');) cells.push_back(cell);
    if (names.empty()) {
      names = cells;
      continue;
    }
    EXPECT_EQ(cells.size(), names.size()) << line;
    for (size_t i = 2; i < cells.size(); ++i) {
      if (cells[i].empty()) continue;
      out[names[i]].push_back(PointText(std::stoll(cells[1]), std::stod(cells[i])));
    }
  }
  return out;
}

TEST_F(CommandTest, CsvJsonAndEventFilesHaveTheSamePointsWhateverIsReported) {
  DevUp(1);
  const std::string files = directory_ + "/curves";
  const Result run = Run({"submit", "--name", "odd", "--tensorboard", files, "--", "python3", "-c",
                          kOddReports, directory_});
  ASSERT_EQ(run.code, 0) << run.err;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  for (int seen = 0; seen < kCountOfReports;) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "after report " << seen;
    const json job = json::parse(Run({"describe", "odd", "-o", "json"}).out);
    const json progress = job.at("job").value("progress", json::object());
    if (progress.value("samples", 0.0) <= seen) continue;
    std::ofstream(fmt::format("{}/seen-{}", directory_, ++seen));
  }
  ASSERT_EQ(Run({"wait", "odd"}).code, 0);
  const Result csv = Run({"metrics", "odd", "--csv"});
  ASSERT_EQ(csv.code, 0) << csv.err;
  EXPECT_THAT(csv.err, ::testing::HasSubstr("5 metrics are not in the curve")) << csv.err;
  const Curves points = OfCsv(csv.out);
  EXPECT_THAT(points.at("loss"), ::testing::ElementsAre("1: 0.5", "2: nan", "5: 0.3", "5: 0.25",
                                                        "5: 0.24", "3: 0.2", "8: 0.8", "11: inf"))
      << csv.out;
  EXPECT_THAT(points.at("a"), ::testing::ElementsAre("5: 8", "11: -inf"));
  EXPECT_THAT(points.at("b"), ::testing::ElementsAre("1: 1", "2: 2", "3: 3"));
  EXPECT_EQ(points.size(), 9u) << "the loss, a, b, and m00 to m05";
  EXPECT_FALSE(points.contains("late"));
  EXPECT_EQ(OfJson(Run({"metrics", "odd", "-o", "json"}).out), points);
  Curves in_files = OfEventFiles(files);
  EXPECT_EQ(in_files.size(), 14u) << "with m06 to m09, and late";
  std::erase_if(in_files, [&](const auto& curve) { return !points.contains(curve.first); });
  EXPECT_EQ(in_files, points);
}

// What its ranks have kept is asked for again and again, until the job has ended.
TEST_F(CommandTest, ATraceOfAJobThatEndsBeforeHasTheStepsUntilThen) {
  DevUp(1);
  const std::string script =
      "import os, socket, time\n"
      "reports = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
      "for step in range(1, 26):\n"
      "  reports.sendto(b'{\"step\": %d}' % step, os.environ['MESHRUN_REPORT'])\n"
      "  time.sleep(0.1)\n"
      "time.sleep(6)\n";
  ASSERT_EQ(Run({"submit", "--name", "short", "--", "python3", "-c", script}).code, 0);
  const std::string file = directory_ + "/short.json";
  const Result trace = Run({"trace", "short", "--steps", "50", "--wait", "60s", "--to", file});
  EXPECT_EQ(trace.code, 0) << trace.err;
  EXPECT_THAT(trace.err, ::testing::ContainsRegex("job short-.* ended after 24 of 50 steps"));
  EXPECT_EQ(trace.err.find("flight record"), std::string::npos) << trace.err;
  EXPECT_THAT(trace.out, ::testing::HasSubstr("steps 2 to 25 of 1 rank"));
  const json written = json::parse(os::ReadFile(file).value_or(""));
  EXPECT_GE(written.at("traceEvents").size(), 24u);
  // Asked for after its end there is nothing.
  const Result late = Run({"trace", "short", "--to", directory_ + "/late.json"});
  EXPECT_EQ(late.code, 2);
  EXPECT_THAT(late.err, ::testing::HasSubstr("is SUCCEEDED, so that there is nothing to trace"));
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/late.json"));
}

}  // namespace
}  // namespace meshrun::client
