#include "worker/supervisor/output_copier.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <thread>

#include "core/os/files.h"
#include "tests/worker/support/processes.h"
#include "worker/logs/log_file.h"

namespace meshrun::worker {
namespace {

class OutputCopierTest : public ::testing::Test {
 protected:
  OutputCopierTest() {
    auto copier = OutputCopier::Start();
    EXPECT_TRUE(copier.ok()) << copier.status();
    copier_ = *std::move(copier);
  }
  os::UniqueFd Add(uint32_t number, const std::string& path, uint64_t limit = 0) {
    auto end = copier_->Add(
        number, os::UniqueFd(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600)), limit);
    EXPECT_TRUE(end.ok()) << end.status();
    return *std::move(end);
  }
  // The errors on the way to the answer.
  std::vector<int> Drain(uint32_t number) {
    copier_->Drain(number);
    std::vector<int> errors;
    while (true) {
      pollfd waiting{copier_->fd(), POLLIN, 0};
      if (::poll(&waiting, 1, 60'000) != 1) {
        ADD_FAILURE() << "no answer";
        return errors;
      }
      for (const OutputCopier::Event& event : copier_->TakeEvents()) {
        if (event.error == 0 && event.stream == number) return errors;
        errors.push_back(event.error);
      }
    }
  }
  static void Write(const os::UniqueFd& end, const std::string& text) {
    size_t written = 0;
    while (written < text.size()) {
      const ssize_t n = ::write(end.get(), text.data() + written, text.size() - written);
      ASSERT_GT(n, 0);
      written += static_cast<size_t>(n);
    }
  }
  static std::string Numbers(int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text += std::to_string(i) + "\n";
    return text;
  }

  testing::TemporaryDirectory directory_;
  std::unique_ptr<OutputCopier> copier_;
};

TEST_F(OutputCopierTest, EveryByteReachesItsFileBeforeDrainAnswers) {
  const std::string first = directory_ / "0";
  const std::string second = directory_ / "1";
  const os::UniqueFd ends[] = {Add(0, first), Add(1, second)};
  const std::string text = Numbers(200'000);
  Write(ends[0], text);
  Write(ends[1], "no end");
  EXPECT_TRUE(Drain(0).empty());
  EXPECT_TRUE(Drain(1).empty());
  EXPECT_EQ(os::ReadFile(first).value_or(""), text);
  EXPECT_EQ(os::ReadFile(second).value_or(""), "no end");
  // What others write later comes, too.
  Write(ends[1], ", yet");
  EXPECT_TRUE(Drain(1).empty());
  EXPECT_EQ(os::ReadFile(second).value_or(""), "no end, yet");
}

TEST_F(OutputCopierTest, ATerminalPassesBytesOnAsTheyAre) {
  const std::string path = directory_ / "0";
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  auto end = copier_->Add(0, os::UniqueFd(file), 0, TerminalSize{100, 30});
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(::isatty(end->get()), 1);
  winsize window = {};
  ASSERT_EQ(::ioctl(end->get(), TIOCGWINSZ, &window), 0);
  EXPECT_EQ(window.ws_col, 100);
  EXPECT_EQ(window.ws_row, 30);
  std::string text = Numbers(100'000) + "\r10%\r20%\t\x03\x04\x1a\x7f";
  for (int c = 1; c < 256; ++c) text += static_cast<char>(c);
  Write(*end, text);
  EXPECT_TRUE(Drain(0).empty());
  EXPECT_EQ(os::ReadFile(path).value_or(""), text);
  // Its last writer goes with bytes on their way.
  Write(*end, "the end");
  end->reset();
  EXPECT_TRUE(
      testing::Eventually([&] { return os::ReadFile(path).value_or("") == text + "the end"; }));
  EXPECT_TRUE(Drain(0).empty()) << "the stream is gone, and its answer comes";
}

TEST(TerminalSizeTest, IsColumnsAndRows) {
  EXPECT_EQ(FormatTerminalSize(*ParseTerminalSize("132x43")), "132x43");
  for (const char* wrong :
       {"", "80", "x24", "80x", "0x24", "80x0", "80x24x", "-1x24", "70000x24"}) {
    EXPECT_FALSE(ParseTerminalSize(wrong)) << wrong;
  }
}

TEST_F(OutputCopierTest, AFileIsGoneOnWithAtItsEnd) {
  const std::string path = directory_ / "0";
  ASSERT_TRUE(os::WriteFileAtomically(path, "earlier\n").ok());
  const os::UniqueFd end = Add(0, path);
  Write(end, "later\n");
  Drain(0);
  EXPECT_EQ(os::ReadFile(path).value_or(""), "earlier\nlater\n");
}

TEST_F(OutputCopierTest, AFullDiskIsSaidOnceAndHoldsNobodyUp) {
  const os::UniqueFd end = Add(0, "/dev/full");
  for (int i = 0; i < 40; ++i) Write(end, Numbers(10'000));
  EXPECT_EQ(Drain(0), std::vector<int>{ENOSPC});
  Write(end, "more");
  EXPECT_TRUE(Drain(0).empty());
}

TEST_F(OutputCopierTest, BeyondItsLimitTheOldestBytesGo) {
  constexpr uint64_t kLimit = 64 << 10;
  const std::string path = directory_ / "0";
  const os::UniqueFd end = Add(0, path, kLimit);
  const std::string text = Numbers(100'000);
  Write(end, text);
  EXPECT_TRUE(Drain(0).empty());
  struct stat info = {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_size, static_cast<off_t>(text.size()));
  EXPECT_LE(static_cast<uint64_t>(info.st_blocks) * 512, 2 * kLimit);
  auto log = LogFile::Open(path);
  ASSERT_TRUE(log.ok()) << log.status();
  uint64_t offset = 0;
  const auto kept = log->Read(&offset, text.size());
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_GE(kept->size(), kLimit / 2);
  EXPECT_EQ(*kept, text.substr(offset));
}

TEST_F(OutputCopierTest, WhatIsWrittenWhileAReaderLooksForTheEndIsNotTakenForLost) {
  constexpr int kBytes = 200'000;
  const std::string path = directory_ / "0";
  const os::UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  auto log = LogFile::Open(path);
  ASSERT_TRUE(log.ok()) << log.status();
  std::thread writer([&] {
    for (int i = 0; i < kBytes; ++i) EXPECT_EQ(::write(file.get(), "x", 1), 1);
  });
  uint64_t offset = 0;
  uint64_t passed_over = 0;
  while (offset < kBytes) {
    const uint64_t before = offset;
    const auto data = log->Read(&offset, 1 << 16);
    passed_over += offset - before;
    if (!data.ok()) break;
    offset += data->size();
  }
  writer.join();
  EXPECT_EQ(passed_over, 0u);
  EXPECT_EQ(offset, static_cast<uint64_t>(kBytes));
}

TEST_F(OutputCopierTest, ReadersPassOverBytesThatTheDiskHadNoRoomFor) {
  const std::string path = directory_ / "0";
  const os::UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  const std::string first(4096, 'a');
  ASSERT_EQ(::pwrite(file.get(), first.data(), first.size(), 0), 4096);
  ASSERT_EQ(::pwrite(file.get(), "after\n", 6, 12288), 6);
  ASSERT_EQ(::ftruncate(file.get(), 20480), 0);
  auto log = LogFile::Open(path);
  ASSERT_TRUE(log.ok()) << log.status();
  uint64_t offset = 0;
  EXPECT_EQ(log->Read(&offset, 100'000).value_or(""), first);
  offset = 4096;
  const std::string rest = log->Read(&offset, 100'000).value_or("");
  EXPECT_EQ(offset, 12288u);
  EXPECT_EQ(rest.substr(0, 6), "after\n");
  offset = 16384;
  EXPECT_EQ(log->Read(&offset, 100'000).value_or("?"), "");
  EXPECT_EQ(offset, 20480u);
}

}  // namespace
}  // namespace meshrun::worker
