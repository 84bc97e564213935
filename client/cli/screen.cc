#include "client/cli/screen.h"

#include <fmt/format.h>

#include <cstdio>

#include "client/cli/context.h"

namespace meshrun::client {

Screen::Screen() : output_style_(StyleOf(1)), error_style_(StyleOf(2)) {}

Screen::~Screen() {
  EraseBar();
  Flush();
}

void Screen::EraseBar() {
  if (bar_.empty()) return;
  std::fflush(stdout);
  std::fputs("\r\x1b[K", stderr);
  bar_.clear();
}

void Screen::Show(const RankLine& line, int world_size) {
  EraseBar();
  const std::string text =
      RankPrefix(line.ranks, world_size, line.is_stderr ? error_style_ : output_style_) +
      line.text + "\n";
  std::FILE* const file = line.is_stderr ? stderr : stdout;
  if (file == stderr) std::fflush(stdout);
  if (std::fwrite(text.data(), 1, text.size(), file) != text.size() && file == stdout)
    alive_ = false;
}

void Screen::Say(std::string_view text) { Write(fmt::format("meshrun: {}\n", text)); }

void Screen::Write(std::string_view text) {
  EraseBar();
  std::fflush(stdout);
  std::fwrite(text.data(), 1, text.size(), stderr);
}

void Screen::ShowProgress(const std::string& name, ProgressMeter& meter,
                          std::chrono::nanoseconds now) {
  if (meter.empty()) return;
  if (!error_style_.terminal) {
    if (meter.LineDue(now)) Say(fmt::format("{}: {}", name, meter.Line()));
    return;
  }
  error_style_.width = StyleOf(2).width;
  const std::string bar = meter.Bar(name, error_style_);
  if (bar == bar_) return;
  std::fflush(stdout);
  // Autowrap off while it is drawn: a narrow terminal must not scroll.
  fmt::print(stderr, "\r\x1b[?7l{}\x1b[K\x1b[?7h", bar);
  bar_ = bar;
}

void Screen::Flush() {
  if (std::fflush(stdout) != 0) alive_ = false;
  std::fflush(stderr);
}

}  // namespace meshrun::client
