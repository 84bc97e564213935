// What is said of ranks' output that was gone before it could be shown.
#include "client/cli/output_pipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace meshrun::client {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

v1::ReadLogsResponse Chunk(int rank, v1::LogStream stream, uint64_t dropped,
                           const std::string& data) {
  v1::ReadLogsResponse chunk;
  chunk.set_rank(rank);
  chunk.set_stream(stream);
  chunk.set_dropped(dropped);
  chunk.set_data(data);
  return chunk;
}

struct Shown {
  std::string out;
  std::string err;
  uint64_t lost = 0;
};

Shown Show(int world_size, const std::vector<v1::ReadLogsResponse>& chunks) {
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  Shown shown;
  {
    Screen screen;
    OutputView view;
    view.why_lost = "the disk is full";
    OutputPipe pipe(screen, world_size, view);
    for (const v1::ReadLogsResponse& chunk : chunks) pipe.Append(chunk);
    pipe.Finish();
    // A second end says nothing more.
    pipe.Finish();
    screen.Flush();
    shown.lost = pipe.lost();
  }
  shown.out = ::testing::internal::GetCapturedStdout();
  shown.err = ::testing::internal::GetCapturedStderr();
  return shown;
}

TEST(OutputPipeTest, TheFirstLossOfAStreamIsSaidAtOnceAndTheRestAtTheEnd) {
  const auto out = v1::LOG_STREAM_STDOUT;
  const auto err = v1::LOG_STREAM_STDERR;
  const Shown shown =
      Show(2, {Chunk(0, out, 0, "begins\n"), Chunk(0, out, 100, "a\n"), Chunk(0, out, 20, "b\n"),
               Chunk(0, err, 7, ""), Chunk(1, out, 2048, "c\n"), Chunk(1, out, 3, "d\n")});
  EXPECT_EQ(shown.lost, 100u + 20 + 7 + 2048 + 3);
  EXPECT_EQ(shown.out, "0: begins\n0: a\n0: b\n1: c\n1: d\n");
  EXPECT_EQ(shown.err,
            "meshrun: 100 B of rank 0's stdout are no longer kept: the disk is full\n"
            "meshrun: 7 B of rank 0's stderr are no longer kept: the disk is full\n"
            "meshrun: 2.0 KiB of rank 1's stdout are no longer kept: the disk is full\n"
            "meshrun: 23 B more of the ranks' output are no longer kept\n");
}

TEST(OutputPipeTest, ALineWhoseEndIsGoneIsNotJoinedToALaterOne) {
  const Shown shown = Show(2, {Chunk(1, v1::LOG_STREAM_STDOUT, 0, "first ha"),
                               Chunk(1, v1::LOG_STREAM_STDOUT, 50, "lf of another\n")});
  EXPECT_EQ(shown.out, "1: first ha\n1: lf of another\n");
  EXPECT_THAT(shown.err, Not(HasSubstr("more")));
}

TEST(OutputPipeTest, NothingLostIsNothingSaid) {
  const Shown shown = Show(1, {Chunk(0, v1::LOG_STREAM_STDOUT, 0, "no end")});
  EXPECT_EQ(shown.lost, 0u);
  EXPECT_EQ(shown.out, "no end");
  EXPECT_EQ(shown.err, "");
}

}  // namespace
}  // namespace meshrun::client
