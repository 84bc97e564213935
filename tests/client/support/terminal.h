// A pseudo-terminal with a program on it, and what a person would see there.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/os/fd.h"

namespace meshrun::testing {

// The rows of a terminal, as far as meshrun and the programs of the tests use one: carriage return,
// newline, wrapping, cursor up, erasing. Rows that scroll away stay.
class TerminalScreen {
 public:
  explicit TerminalScreen(size_t columns) : columns_(columns) {}
  void Write(std::string_view bytes);
  // Without blanks at the end of rows, and without empty rows at the end.
  std::vector<std::string> Rows() const;
  std::string Text() const;

 private:
  void Put(std::string character);
  void Control(char final, const std::string& parameters);
  std::vector<std::string>& Row();

  const size_t columns_;
  std::vector<std::vector<std::string>> rows_;
  size_t row_ = 0;
  size_t column_ = 0;
  bool wraps_ = true;
  // Bytes of a sequence or a character whose rest has not come.
  std::string unfinished_;
};

class Terminal {
 public:
  explicit Terminal(int columns = 80, int rows = 24);
  // Ends the program.
  ~Terminal();

  // The terminal is its input, output and error, save where another descriptor is given.
  void Start(const std::vector<std::string>& argv, int stdout_fd = -1, int stderr_fd = -1);
  void Type(std::string_view text);
  // Reads until the screen satisfies `condition`, and fails the test after a minute. `on_change`
  // sees each screen on the way.
  bool Await(const std::function<bool(const TerminalScreen&)>& condition);
  bool AwaitText(const std::string& text);
  // Reads to the program's end. The exit code; 1000 + signal.
  int AwaitEnd();

  const TerminalScreen& screen() const { return screen_; }
  // All that was written to the terminal.
  const std::string& bytes() const { return bytes_; }
  std::function<void(const TerminalScreen&)> on_change;

 private:
  // False at the end.
  bool Read(std::chrono::steady_clock::time_point deadline);

  os::UniqueFd master_;
  os::UniqueFd slave_;
  pid_t pid_ = -1;
  TerminalScreen screen_;
  std::string bytes_;
};

}  // namespace meshrun::testing
