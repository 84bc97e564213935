// The meshrun command on a terminal: real daemons, real ranks, and what a person sees.
#include "tests/client/support/terminal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include "core/os/files.h"

namespace meshrun::client {
namespace {

using meshrun::testing::Terminal;
using meshrun::testing::TerminalScreen;
using ::testing::HasSubstr;
using ::testing::Not;

class TerminalTest : public ::testing::Test {
 protected:
  TerminalTest() : directory_(fmt::format("{}/terminal.{}", ::testing::TempDir(), ::getpid())) {
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
    ::unsetenv("MESHRUN_COORDINATOR");
    ::unsetenv("NO_COLOR");
    ::setenv("XDG_STATE_HOME", directory_.c_str(), 1);
  }
  ~TerminalTest() override { std::filesystem::remove_all(directory_); }

  static std::vector<std::string> Meshrun(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), std::filesystem::absolute("client/meshrun"));
    return arguments;
  }
  // A rank reads a line from it to go on, once: a second reader may meet the writer that let the
  // first pass.
  std::string Gate(const std::string& name) {
    const std::string path = directory_ + "/" + name;
    EXPECT_EQ(::mkfifo(path.c_str(), 0600), 0);
    return path;
  }
  static void Open(const std::string& gate) { std::ofstream(gate) << "go\n"; }

  const std::string directory_;
};

TEST_F(TerminalTest, TheScreenOfTheTestsIsATerminals) {
  TerminalScreen screen(10);
  screen.Write("0123456789ab\r\n50%\r100%\r\n\x1b[?7l0123456789ab\x1b[?7h");
  EXPECT_EQ(screen.Text(), "0123456789\nab\n100%\n012345678b\n");
  screen.Write("\x1b[2A\r\x1b[J\xe2\x96\x88");
  EXPECT_EQ(screen.Text(), "0123456789\n\xe2\x96\x88\n");
}

TEST_F(TerminalTest, OneRanksBytesAreShownAsTheyAreWritten) {
  // One each: a second reader of a gate can meet the end of what was written to the first.
  const std::vector<std::string> gates = {Gate("1"), Gate("2"), Gate("3")};
  Terminal terminal;
  terminal.Start(Meshrun({"run", "--", "sh", "-c",
                          "for i in 1 2 3; do printf '\\r%d0%%|##' $i >&2; read x < " + directory_ +
                              "/$i; done; printf '\\rdone   \\n' >&2; printf 'no end'"}));
  for (size_t i = 0; i < gates.size(); ++i) {
    ASSERT_TRUE(terminal.AwaitText(std::to_string(i + 1) + "0%|##"));
    Open(gates[i]);
  }
  EXPECT_EQ(terminal.AwaitEnd(), 0);
  EXPECT_THAT(terminal.bytes(), HasSubstr("\r10%|##\r20%|##\r30%|##\rdone   \r\n"));
  const auto rows = terminal.screen().Rows();
  ASSERT_GE(rows.size(), 3u);
  EXPECT_EQ(rows[0], "done");
  EXPECT_EQ(rows[1], "no end");
  EXPECT_THAT(rows[2], HasSubstr("succeeded"));
}

TEST_F(TerminalTest, WhatIsPrintedAfterABarStandsBelowIt) {
  // The worker reads the two streams apart, in any order. The client holds what comes too early for
  // a moment: on a busy machine the bar's end may come later than that.
  constexpr std::chrono::milliseconds kHold(250);
  for (int round = 0; round < 6; ++round) {
    const std::string gate = Gate(std::to_string(round));
    Terminal terminal;
    terminal.Start(Meshrun({"run", "--", "sh", "-c",
                            "printf '\\r 50%%|#' >&2; read x < " + gate +
                                "; printf '\\r100%%|##\\n' >&2; echo the loss"}));
    ASSERT_TRUE(terminal.AwaitText(" 50%|#"));
    const auto opened = std::chrono::steady_clock::now();
    Open(gate);
    ASSERT_TRUE(terminal.AwaitText("the loss"));
    const bool was_held = std::chrono::steady_clock::now() - opened >= kHold;
    EXPECT_EQ(terminal.AwaitEnd(), 0);
    const std::string text = terminal.screen().Text();
    if (was_held && !text.starts_with("100%")) continue;
    EXPECT_THAT(text, ::testing::StartsWith("100%|##\nthe loss\nmeshrun: "));
  }
}

TEST_F(TerminalTest, WhatIsPrintedBesideAnOpenLineIsHeldForAMomentAlone) {
  const std::string gate = Gate("gate");
  Terminal terminal;
  terminal.Start(
      Meshrun({"run", "--", "sh", "-c", "printf ' 50%%|#' >&2; echo beside it; read x < " + gate}));
  ASSERT_TRUE(terminal.AwaitText("beside it\n"));
  Open(gate);
  EXPECT_EQ(terminal.AwaitEnd(), 0);
}

TEST_F(TerminalTest, LinesWithoutEndOfSeveralRanksAreRows) {
  const std::string gates[] = {Gate("0"), Gate("1"), Gate("2")};
  const std::string last_gates[] = {Gate("last0"), Gate("last1"), Gate("last2")};
  Terminal terminal;
  terminal.Start(Meshrun({"run", "--nproc", "3", "--", "sh", "-c",
                          "printf '\\r10%%|#' >&2; read x < " + directory_ +
                              "/$RANK; printf '\\r20%%|#' >&2; echo a line; read x < " +
                              directory_ + "/last$RANK; printf '\\r100%%|\\n' >&2"}));
  ASSERT_TRUE(terminal.AwaitText("0-2: 10%|#\n"));
  Open(gates[1]);
  ASSERT_TRUE(terminal.AwaitText("0,2: 10%|#\n1: 20%|#\n"));
  ASSERT_TRUE(terminal.AwaitText("1: a line\n0,2: 10%|#\n1: 20%|#\n"));
  for (const int rank : {0, 2}) Open(gates[rank]);
  ASSERT_TRUE(terminal.AwaitText("0-2: 20%|#\n"));
  for (const std::string& gate : last_gates) Open(gate);
  EXPECT_EQ(terminal.AwaitEnd(), 0);
  const std::string text = terminal.screen().Text();
  // The line belongs to one or to several ranks: how many are merged depends on timing.
  EXPECT_THAT(text, HasSubstr(": 100%|\n"));
  EXPECT_THAT(text, Not(HasSubstr("10%|#")));
  EXPECT_THAT(text, Not(HasSubstr("20%|#")));
}

TEST_F(TerminalTest, APipeGetsWholeLinesWhateverTheOtherStreamIs) {
  int pipe[2];
  ASSERT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
  const os::UniqueFd read_end(pipe[0]);
  os::UniqueFd write_end(pipe[1]);
  Terminal terminal;
  terminal.Start(
      Meshrun(
          {"run", "--nproc", "2", "--", "sh", "-c",
           "echo equal; echo aside >&2; echo '{\"step\": 1, \"total_steps\": 2}' | "
           "python3 -c 'import os, socket, sys; socket.socket(socket.AF_UNIX, "
           "socket.SOCK_DGRAM).sendto(sys.stdin.buffer.read(), os.environ[\"MESHRUN_REPORT\"])'"}),
      write_end.get());
  write_end.reset();
  EXPECT_EQ(terminal.AwaitEnd(), 0);
  char buffer[4096];
  const ssize_t n = ::read(read_end.get(), buffer, sizeof(buffer));
  ASSERT_GT(n, 0);
  const std::string piped(buffer, static_cast<size_t>(n));
  EXPECT_TRUE(piped == "0: equal\n1: equal\n" || piped == "1: equal\n0: equal\n") << piped;
  // No bar on the terminal: it would meet what `tee` writes there.
  EXPECT_THAT(terminal.screen().Text(), HasSubstr(": aside\n"));
  EXPECT_THAT(terminal.bytes(), Not(HasSubstr("\x1b[?7l")));
  EXPECT_THAT(terminal.screen().Text(), HasSubstr("step 1/2 (50%)"));
}

TEST_F(TerminalTest, ARankIsDebuggedFromTheTerminal) {
  const std::string script = directory_ + "/debug.py";
  std::ofstream(script) << "import os\n"
                           "answer = 41\n"
                           "if os.environ['RANK'] == '0':\n"
                           "    breakpoint()\n"
                           "print('the answer is', answer)\n";
  for (const int ranks : {1, 2}) {
    const std::string prefix = ranks == 1 ? "" : "0: ";
    Terminal terminal;
    terminal.Start(Meshrun({"run", "--nproc", std::to_string(ranks), script}));
    ASSERT_TRUE(terminal.AwaitText(prefix + "(Pdb)"));
    terminal.Type("p answer + 1\n");
    ASSERT_TRUE(
        terminal.AwaitText(prefix + "(Pdb) p answer + 1\n" + prefix + "42\n" + prefix + "(Pdb)"));
    // Line editing is the terminal's.
    terminal.Type(
        "answer = 4\x7f"
        "42\n");
    ASSERT_TRUE(terminal.AwaitText(prefix + "(Pdb) answer = 42\n" + prefix + "(Pdb)"));
    terminal.Type("c\n");
    EXPECT_EQ(terminal.AwaitEnd(), 0) << terminal.screen().Text();
    EXPECT_THAT(terminal.screen().Text(), HasSubstr(prefix + "the answer is 42\n"));
  }
}

TEST_F(TerminalTest, ANarrowTerminalKeepsThePercentageOfTheBar) {
  const std::string gate = Gate("gate");
  Terminal terminal(40);
  terminal.Start(
      Meshrun({"run", "--name", "a-name-of-twenty-six-letters", "--", "python3", "-c",
               "import os, socket; socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto("
               "b'{\"step\": 1200, \"total_steps\": 3000}', os.environ['MESHRUN_REPORT']); "
               "open('" +
                   gate + "').read()"}));
  ASSERT_TRUE(terminal.AwaitText(" 40%"));
  Open(gate);
  EXPECT_EQ(terminal.AwaitEnd(), 0);
}

}  // namespace
}  // namespace meshrun::client
