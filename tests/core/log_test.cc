// Logging to a pipe that nobody reads.
#include "core/log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <csignal>
#include <string>

#include "core/line_queue.h"
#include "core/os/fd.h"

namespace meshrun {
namespace {

using ::testing::HasSubstr;

struct Pipe {
  Pipe() {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    read.reset(ends[0]);
    write.reset(ends[1]);
  }
  // Reads until `text` has come; all that was read.
  std::string ReadUntil(const std::string& text) const {
    std::string out;
    char buffer[1 << 16];
    while (out.find(text) == std::string::npos) {
      pollfd ready = {read.get(), POLLIN, 0};
      if (::poll(&ready, 1, 20'000) != 1) break;
      const ssize_t n = ::read(read.get(), buffer, sizeof(buffer));
      if (n <= 0) break;
      out.append(buffer, n);
    }
    return out;
  }

  os::UniqueFd read, write;
};

TEST(LineQueueTest, NobodyWaitsForAPipeThatIsFull) {
  const Pipe pipe;
  LineQueue queue(pipe.write.get(), 100'000);
  const std::string line(999, 'x');
  int kept = 0;
  while (queue.TryPush(line + "\n") && kept < 10'000) ++kept;
  // What waits has a bound; the pipe itself holds 64 KiB.
  EXPECT_GE(kept, 99);
  EXPECT_LT(kept, 300);
  EXPECT_FALSE(queue.Flush(std::chrono::milliseconds(0)));
  // Nothing of what was taken is lost when the pipe is read again.
  std::string all;
  while (all.size() < static_cast<size_t>(kept) * 1000) {
    const std::string more = pipe.ReadUntil("\n");
    ASSERT_FALSE(more.empty());
    all += more;
  }
  EXPECT_EQ(all.size(), static_cast<size_t>(kept) * 1000);
  EXPECT_TRUE(queue.Flush(std::chrono::seconds(20)));
}

// One test: Configure is called once in a process.
TEST(LogTest, LosesLinesInsteadOfWaitingAndCountsThem) {
  // The writer may be at work when the pipe goes.
  std::signal(SIGPIPE, SIG_IGN);
  const Pipe pipe;
  const os::UniqueFd stderr_before(::dup(STDERR_FILENO));
  ::dup2(pipe.write.get(), STDERR_FILENO);
  log::Configure("test", log::Format::kText, log::Level::kInfo);
  for (int i = 0; i < 30'000; ++i) log::Info("a line of a flood", {{"number", i}});
  const std::string flood = pipe.ReadUntil("number=5000\n");
  EXPECT_THAT(flood, HasSubstr("info test: a line of a flood number=0\n"));
  // There is room again: the next line says how many are missing.
  std::string rest;
  while (rest.find("lines were lost") == std::string::npos) {
    log::Info("after");
    const std::string more = pipe.ReadUntil("\n");
    ASSERT_FALSE(more.empty());
    rest += more;
  }
  EXPECT_THAT(rest, HasSubstr("warning test: lines were lost: stderr did not take them lines="));
  ::dup2(stderr_before.get(), STDERR_FILENO);
}

}  // namespace
}  // namespace meshrun
