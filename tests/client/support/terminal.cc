#include "tests/client/support/terminal.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace meshrun::testing {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::minutes kPatience(1);

size_t LengthOfCharacter(unsigned char first) {
  return first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : first >= 0xC0 ? 2 : 1;
}

}  // namespace

std::vector<std::string>& TerminalScreen::Row() {
  if (rows_.size() <= row_) rows_.resize(row_ + 1);
  return rows_[row_];
}

void TerminalScreen::Put(std::string character) {
  if (column_ >= columns_) {
    if (wraps_) {
      ++row_;
      column_ = 0;
    } else {
      column_ = columns_ - 1;
    }
  }
  std::vector<std::string>& row = Row();
  if (row.size() <= column_) row.resize(column_ + 1, " ");
  row[column_++] = std::move(character);
}

void TerminalScreen::Control(char final, const std::string& parameters) {
  const size_t count = std::max(std::atoi(parameters.c_str()), 1);
  if (final == 'A') {
    row_ -= std::min(row_, count);
  } else if (final == 'K' || final == 'J') {
    std::vector<std::string>& row = Row();
    if (row.size() > column_) row.resize(column_);
    if (final == 'J') rows_.resize(row_ + 1);
  } else if (parameters == "?7") {
    wraps_ = final == 'h';
  }
}

void TerminalScreen::Write(std::string_view bytes) {
  const std::string text = std::exchange(unfinished_, {}).append(bytes);
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (c == '\x1b') {
      size_t end = i + 2;
      while (end < text.size() && (text[end] < 0x40 || text[end] > 0x7E)) ++end;
      if (end >= text.size()) {
        unfinished_ = text.substr(i);
        return;
      }
      Control(text[end], text.substr(i + 2, end - i - 2));
      i = end + 1;
      continue;
    }
    const size_t length = LengthOfCharacter(static_cast<unsigned char>(c));
    if (i + length > text.size()) {
      unfinished_ = text.substr(i);
      return;
    }
    if (c == '\r') {
      column_ = 0;
    } else if (c == '\n') {
      ++row_;
      Row();
    } else if (c == '\b') {
      column_ -= std::min<size_t>(column_, 1);
    } else if (static_cast<unsigned char>(c) >= 0x20) {
      Put(text.substr(i, length));
    }
    i += length;
  }
}

std::vector<std::string> TerminalScreen::Rows() const {
  std::vector<std::string> rows;
  for (const std::vector<std::string>& row : rows_) {
    std::string text;
    for (const std::string& character : row) text += character;
    text.erase(text.find_last_not_of(' ') + 1);
    rows.push_back(std::move(text));
  }
  while (!rows.empty() && rows.back().empty()) rows.pop_back();
  return rows;
}

std::string TerminalScreen::Text() const {
  std::string text;
  for (const std::string& row : Rows()) text += row + "\n";
  return text;
}

Terminal::Terminal(int columns, int rows) : screen_(static_cast<size_t>(columns)) {
  const winsize size = {.ws_row = static_cast<unsigned short>(rows),
                        .ws_col = static_cast<unsigned short>(columns),
                        .ws_xpixel = 0,
                        .ws_ypixel = 0};
  int master = -1;
  int slave = -1;
  EXPECT_EQ(::openpty(&master, &slave, nullptr, nullptr, &size), 0);
  master_.reset(master);
  slave_.reset(slave);
  ::fcntl(master, F_SETFD, FD_CLOEXEC);
  ::fcntl(slave, F_SETFD, FD_CLOEXEC);
}

Terminal::~Terminal() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void Terminal::Start(const std::vector<std::string>& argv, int stdout_fd, int stderr_fd) {
  std::vector<char*> words;
  for (const std::string& word : argv) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  pid_ = ::fork();
  ASSERT_GE(pid_, 0);
  if (pid_ == 0) {
    ::setsid();
    ::ioctl(slave_.get(), TIOCSCTTY, 0);
    ::setenv("TERM", "xterm", 1);
    ::dup2(slave_.get(), 0);
    ::dup2(stdout_fd >= 0 ? stdout_fd : slave_.get(), 1);
    ::dup2(stderr_fd >= 0 ? stderr_fd : slave_.get(), 2);
    ::execv(words[0], words.data());
    ::_exit(127);
  }
  slave_.reset();
}

void Terminal::Type(std::string_view text) {
  EXPECT_EQ(::write(master_.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
}

bool Terminal::Read(steady_clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - steady_clock::now());
  pollfd waiting{master_.get(), POLLIN, 0};
  if (left.count() <= 0 || ::poll(&waiting, 1, static_cast<int>(left.count())) != 1) return false;
  char buffer[4096];
  // EIO: nobody has the terminal open any more.
  const ssize_t n = ::read(master_.get(), buffer, sizeof(buffer));
  if (n <= 0) return false;
  bytes_.append(buffer, static_cast<size_t>(n));
  screen_.Write({buffer, static_cast<size_t>(n)});
  if (on_change) on_change(screen_);
  return true;
}

bool Terminal::Await(const std::function<bool(const TerminalScreen&)>& condition) {
  const auto deadline = steady_clock::now() + kPatience;
  while (!condition(screen_)) {
    if (!Read(deadline)) {
      ADD_FAILURE() << "the screen ends as:\n" << screen_.Text();
      return false;
    }
  }
  return true;
}

bool Terminal::AwaitText(const std::string& text) {
  return Await(
      [&](const TerminalScreen& screen) { return screen.Text().find(text) != std::string::npos; });
}

int Terminal::AwaitEnd() {
  const auto deadline = steady_clock::now() + kPatience;
  while (Read(deadline)) {
  }
  int status = 0;
  if (::waitpid(pid_, &status, 0) != pid_) return -1;
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

}  // namespace meshrun::testing
