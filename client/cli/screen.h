// Standard output and error together: lines of ranks, lines of our own, and a bar below them that
// is redrawn. Not thread-safe.
#pragma once

#include <chrono>
#include <string>

#include "client/render/progress.h"
#include "client/render/rank_output.h"

namespace meshrun::client {

class Screen {
 public:
  Screen();
  ~Screen();

  // A rank's line: its stdout to ours, its stderr to ours.
  void Show(const RankLine& line, int world_size);
  // "meshrun: text" on standard error.
  void Say(std::string_view text);
  // Several lines on standard error, as they are.
  void Write(std::string_view text);
  // Draws the bar. Without a terminal: prints a line when one is due.
  void ShowProgress(const std::string& name, ProgressMeter& meter, std::chrono::nanoseconds now);
  void EraseBar();
  void Flush();
  // False once the reader of standard output is gone.
  bool alive() const { return alive_; }
  const Style& error_style() const { return error_style_; }
  bool terminal() const { return error_style_.terminal; }

 private:
  const Style output_style_;
  Style error_style_;
  std::string bar_;
  bool alive_ = true;
};

}  // namespace meshrun::client
