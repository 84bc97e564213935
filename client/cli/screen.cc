#include "client/cli/screen.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>

#include "client/cli/context.h"

namespace meshrun::client {
namespace {

constexpr std::chrono::milliseconds kRedraw(100);
constexpr size_t kMostRows = 16;

bool IsPipe(int fd) {
  struct stat info = {};
  return ::fstat(fd, &info) == 0 && (S_ISFIFO(info.st_mode) || S_ISSOCK(info.st_mode));
}

}  // namespace

Screen::Screen(bool input_echoes, int output_fd)
    : output_fd_(output_fd),
      output_style_(StyleOf(output_fd)),
      error_style_(StyleOf(2)),
      input_echoes_(input_echoes),
      out_(output_fd),
      error_(2) {
  // A write then fails with EPIPE.
  ::signal(SIGPIPE, SIG_IGN);
  if (error_style_.terminal) {
    if (!IsPipe(output_fd)) live_ = &error_;
  } else if (output_style_.terminal && !IsPipe(2)) {
    live_ = &out_;
  }
}

Screen::~Screen() {
  RemoveRows();
  Flush();
}

bool Screen::terminal(bool is_stderr) const {
  return (is_stderr ? error_style_ : output_style_).terminal;
}

bool Screen::redraws(bool is_stderr) const { return live_ != nullptr && terminal(is_stderr); }

Style Screen::row_style() const { return StyleOf(live_ == &error_ ? 2 : output_fd_); }

size_t Screen::most_rows() const {
  const int height = live_ == nullptr ? 0 : row_style().height;
  return std::clamp<size_t>(static_cast<size_t>(std::max(height / 2 - 1, 1)), 1, kMostRows);
}

void Screen::RemoveRows() {
  if (drawn_.empty()) return;
  out_.Flush();
  if (drawn_.size() > 1) live_->Write(fmt::format("\x1b[{}A", drawn_.size() - 1));
  live_->Write("\r\x1b[J");
  live_->Flush();
  drawn_.clear();
}

void Screen::Begin(bool is_stderr) {
  if (!terminal(is_stderr)) return;
  RemoveRows();
  if (!line_open_) return;
  OutputStream& stream = StreamOf(is_stderr);
  StreamOf(!is_stderr).Flush();
  if (input_echoes_ && last_byte_ != '\r') {
    // Enter may have moved the cursor to a new line, and we are not told. Blanks up to the width
    // end in the next row where the cursor was not in the first column.
    const int width = StyleOf(is_stderr ? 2 : output_fd_).width;
    stream.Write(std::string(static_cast<size_t>(std::max(width - 1, 0)), ' ') + "\r\x1b[K");
  } else {
    stream.Write("\n");
  }
  line_open_ = prompt_drawn_ = false;
  last_byte_ = '\n';
}

void Screen::Show(const RankLine& line, std::string_view prefix) {
  Begin(line.is_stderr);
  OutputStream& stream = StreamOf(line.is_stderr);
  // Both may be one terminal, or one file.
  StreamOf(!line.is_stderr).Flush();
  stream.Write(prefix);
  stream.Write(line.text);
  stream.Write("\n");
}

void Screen::ShowBytes(bool is_stderr, std::string_view bytes) {
  if (bytes.empty()) return;
  if (terminal(is_stderr)) {
    RemoveRows();
    last_byte_ = bytes.back();
    line_open_ = last_byte_ != '\n';
  }
  StreamOf(!is_stderr).Flush();
  StreamOf(is_stderr).Write(bytes);
}

void Screen::Say(std::string_view text) { Write(fmt::format("meshrun: {}\n", Sentence(text))); }

void Screen::Write(std::string_view text) {
  Begin(/*is_stderr=*/true);
  out_.Flush();
  error_.Write(text);
}

void Screen::ShowProgress(const std::string& name, ProgressMeter& meter,
                          std::chrono::nanoseconds now) {
  if (meter.empty()) return;
  if (!draws_bar()) {
    if (meter.LineDue(now)) Say(fmt::format("{}: {}", name, meter.Line(now)));
    return;
  }
  bar_ = meter.Bar(name, row_style(), now);
}

void Screen::Draw(std::chrono::nanoseconds now) {
  if (live_ == nullptr) return;
  if (!prompt_.empty()) {
    if (prompt_drawn_) return;
    Begin(live_ == &error_);
    live_->Write(prompt_);
    line_open_ = prompt_drawn_ = true;
    last_byte_ = ' ';
    return;
  }
  // A line that a rank has begun is its own.
  if (line_open_) return;
  std::vector<std::string> wanted = rows_;
  if (!bar_.empty()) wanted.push_back(bar_);
  if (wanted == drawn_) return;
  if (!drawn_.empty() && now - drawn_at_ < kRedraw) return;
  drawn_at_ = now;
  if (wanted.empty()) return RemoveRows();
  out_.Flush();
  if (drawn_.size() > 1) live_->Write(fmt::format("\x1b[{}A", drawn_.size() - 1));
  // Autowrap off while they are drawn: a narrow terminal must not scroll.
  live_->Write(fmt::format("\r\x1b[?7l{}\x1b[K\x1b[?7h", fmt::join(wanted, "\x1b[K\n")));
  if (wanted.size() < drawn_.size()) live_->Write("\x1b[J");
  drawn_ = std::move(wanted);
}

void Screen::Flush() {
  out_.Flush();
  if (out_.error() != 0 && !said_lost_) {
    said_lost_ = true;
    Say(fmt::format("standard output cannot be written: {}; the job goes on",
                    std::strerror(out_.error())));
  }
  error_.Flush();
}

}  // namespace meshrun::client
