// Standard output and error together: what ranks write, lines of our own, and below them, on a
// terminal, rows that are redrawn: lines of ranks that have no end yet, and the job's progress bar.
// Each stream is judged by itself: only a terminal gets merged lines, rows and a bar. Not
// thread-safe.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "client/cli/output_stream.h"
#include "client/render/progress.h"
#include "client/render/rank_output.h"

namespace meshrun::client {

class Screen {
 public:
  // `input_echoes`: a person types on this terminal to a rank, whose lines end where the terminal
  // echoes Enter. `output_fd`: what stands for standard output, which may be standard error.
  explicit Screen(bool input_echoes = false, int output_fd = 1);
  ~Screen();

  // Is this stream a terminal?
  bool terminal(bool is_stderr) const;
  // A terminal whose last rows we may redraw. False where the other stream is a pipe, whose reader
  // may write to the same terminal: `meshrun run | tee log`.
  bool redraws(bool is_stderr) const;

  // A rank's line: its stdout to ours, its stderr to ours.
  void Show(const RankLine& line, std::string_view prefix);
  // Bytes of the only rank, as they are.
  void ShowBytes(bool is_stderr, std::string_view bytes);
  // "meshrun: text" on standard error.
  void Say(std::string_view text);
  // Several lines on standard error, as they are.
  void Write(std::string_view text);

  // Below the lines, from the next Draw on: one row for each line without an end.
  void SetRows(std::vector<std::string> rows) { rows_ = std::move(rows); }
  size_t most_rows() const;
  // Where a rank waits for input: the cursor stays behind it, and there are no rows.
  void SetPrompt(std::string prompt) {
    prompt_ = std::move(prompt);
    prompt_drawn_ = false;
  }
  // The bar. Without a terminal that can be redrawn: a line when one is due.
  void ShowProgress(const std::string& name, ProgressMeter& meter, std::chrono::nanoseconds now);
  void RemoveRows();
  // Draws what has changed; at most ten times a second, unless lines were shown since.
  void Draw(std::chrono::nanoseconds now);
  // Says once when standard output cannot be written.
  void Flush();

  // False once the reader of standard output is gone.
  bool alive() const { return !out_.reader_gone(); }
  // Output that could not be written.
  uint64_t lost() const { return out_.lost() + error_.lost(); }
  const Style& error_style() const { return error_style_; }
  const Style& style(bool is_stderr) const { return is_stderr ? error_style_ : output_style_; }
  // Style of the rows.
  Style row_style() const;
  bool draws_bar() const { return live_ == &error_; }
  // Rows may change with time.
  bool ticking() const { return live_ != nullptr; }

 private:
  OutputStream& StreamOf(bool is_stderr) { return is_stderr ? error_ : out_; }
  // Prepares a terminal for whole lines: removes our rows, and begins a new line if the cursor
  // stands in a line that is not ours.
  void Begin(bool is_stderr);

  const int output_fd_;
  const Style output_style_;
  Style error_style_;
  const bool input_echoes_;
  OutputStream out_;
  OutputStream error_;
  // Where rows are drawn; null: nowhere.
  OutputStream* live_ = nullptr;
  std::vector<std::string> rows_;
  std::string bar_;
  std::string prompt_;
  std::vector<std::string> drawn_;
  std::chrono::nanoseconds drawn_at_{0};
  // The cursor stands in a line that is not ours.
  bool line_open_ = false;
  bool prompt_drawn_ = false;
  char last_byte_ = '\n';
  bool said_lost_ = false;
};

}  // namespace meshrun::client
