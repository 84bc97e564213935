#include "client/render/log_lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace meshrun::client {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;

constexpr WallNanos kReadAt = std::chrono::milliseconds(1'800'000'000'250);

class LogLinesTest : public ::testing::Test {
 protected:
  static v1::ReadLogsResponse Chunk(uint64_t generation, int rank, v1::LogStream stream,
                                    const std::string& data) {
    v1::ReadLogsResponse chunk;
    chunk.set_generation(generation);
    chunk.set_rank(rank);
    chunk.set_stream(stream);
    chunk.set_data(data);
    return chunk;
  }
  void Add(uint64_t generation, int rank, const std::string& data) {
    lines_.Append(Chunk(generation, rank, v1::LOG_STREAM_STDOUT, data), kReadAt);
  }
  // Texts of the lines that came since the last call.
  std::vector<std::string> Texts() {
    std::vector<std::string> out;
    for (const json& line : std::exchange(seen_, {})) out.push_back(line.at("text"));
    return out;
  }

  std::vector<json> seen_;
  LogLines lines_{"geoid-k3x9w2", [this](std::string_view line) {
                    EXPECT_EQ(line.find('\n'), line.size() - 1);
                    seen_.push_back(json::parse(line));
                  }};
};

TEST_F(LogLinesTest, ALineIsOneObjectThatSaysWhereItIsFrom) {
  lines_.Append(Chunk(2, 3, v1::LOG_STREAM_STDERR, "caf\xe9 \xc3\xa9\t\"x\"\r50%\n"), kReadAt);
  ASSERT_EQ(seen_.size(), 1u);
  EXPECT_EQ(seen_[0], json({{"jobId", "geoid-k3x9w2"},
                            {"generation", 2},
                            {"rank", 3},
                            {"stream", "stderr"},
                            {"readAt", "2027-01-15T08:00:00.250Z"},
                            {"text", "caf\\xe9 \xc3\xa9\t\"x\"\r50%"}}));
}

TEST_F(LogLinesTest, ALineWithoutAnEndWaitsForItAndIsNotJoinedWithTheNextGeneration) {
  Add(1, 0, "step");
  Add(1, 1, "other\n");
  EXPECT_THAT(Texts(), ElementsAre("other"));
  Add(2, 0, "again\n");
  EXPECT_THAT(Texts(), ElementsAre("again"));
  Add(1, 0, " 7\n\nrest");
  EXPECT_THAT(Texts(), ElementsAre("step 7", ""));
  lines_.Finish(kReadAt);
  EXPECT_THAT(Texts(), ElementsAre("rest"));
}

TEST_F(LogLinesTest, BytesThatAreGoneAreAnObjectAndEndTheirOwnLineAlone) {
  Add(1, 0, "begun");
  Add(1, 1, "its ");
  v1::ReadLogsResponse chunk = Chunk(1, 0, v1::LOG_STREAM_STDOUT, "end\n");
  chunk.set_dropped(4096);
  lines_.Append(chunk, kReadAt);
  ASSERT_EQ(seen_.size(), 3u);
  EXPECT_EQ(seen_[0].at("text"), "begun");
  EXPECT_EQ(seen_[1].at("dropped"), 4096);
  EXPECT_FALSE(seen_[1].contains("text"));
  EXPECT_EQ(seen_[2].at("text"), "end");
  seen_.clear();
  Add(1, 1, "own\n");
  EXPECT_THAT(Texts(), ElementsAre("its own"));
}

}  // namespace
}  // namespace meshrun::client
