#include "client/cli/output_pipe.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "core/clock.h"
#include "core/text.h"

namespace meshrun::client {
namespace {

using std::chrono::nanoseconds;

// On a terminal equal lines of several ranks become one; a file or a pipe gets every line.
constexpr std::chrono::milliseconds kMergeWindow(60);

// The worker looks at each file 20 times a second.
constexpr std::chrono::milliseconds kHold(250);
constexpr size_t kMostHeld = size_t{1} << 20;

nanoseconds Now() { return Clock::Real().SteadyNow(); }

std::array<nanoseconds, 2> Windows(const Screen& screen, const OutputView& view) {
  const auto of = [&](bool is_stderr) {
    return screen.terminal(is_stderr) && !view.prefix ? nanoseconds(kMergeWindow) : nanoseconds(0);
  };
  return {of(false), of(true)};
}

std::array<Redraws, 2> RedrawsOf(const Screen& screen) {
  const auto of = [&](bool is_stderr) {
    return screen.terminal(is_stderr) ? Redraws::kLastForm : Redraws::kKept;
  };
  return {of(false), of(true)};
}

}  // namespace

OutputView OfNode(const OutputView& view, const std::map<int, int>& here) {
  OutputView out = view;
  if (out.shown_ranks == 0) out.shown_ranks = static_cast<int>(here.size());
  if (view.prefix) {
    out.prefix = [here, prefix = view.prefix](int rank, int) {
      const auto found = here.find(rank);
      return prefix(rank, found == here.end() ? rank : found->second);
    };
  }
  out.shows = [here, shows = view.shows](int rank, bool is_stderr) {
    const auto found = here.find(rank);
    return found != here.end() && (!shows || shows(found->second, is_stderr));
  };
  return out;
}

OutputPipe::OutputPipe(Screen& screen, int world_size, const OutputView& view)
    : screen_(screen),
      view_(view),
      world_size_(view.prefix             ? std::max(world_size, 2)
                  : view.shown_ranks == 1 ? 1
                                          : world_size),
      merger_(world_size_, Windows(screen, view), [this](const RankLine& line) { ShowLine(line); }),
      assembler_(RedrawsOf(screen), [this](const RankLine& line) { merger_.Add(line, Now()); }) {}

void OutputPipe::SayLost(const v1::ReadLogsResponse& chunk) {
  const bool is_stderr = chunk.stream() == v1::LOG_STREAM_STDERR;
  lost_ += chunk.dropped();
  ShowHeld();
  // A line whose beginning was read does not go on here.
  assembler_.Flush(chunk.rank(), is_stderr);
  if (std::exchange(said_lost_[{chunk.rank(), is_stderr}], true)) {
    lost_unsaid_ += chunk.dropped();
    return;
  }
  screen_.Say(fmt::format("{} of rank {}'s {} are no longer kept: {}", FormatBytes(chunk.dropped()),
                          chunk.rank(), is_stderr ? "stderr" : "stdout", view_.why_lost));
}

void OutputPipe::Append(const v1::ReadLogsResponse& chunk) {
  const bool is_stderr = chunk.stream() == v1::LOG_STREAM_STDERR;
  if (view_.shows && !view_.shows(chunk.rank(), is_stderr)) return;
  if (chunk.dropped() > 0) SayLost(chunk);
  if (world_size_ < 2) {
    AppendBytes(is_stderr, chunk.data());
    return;
  }
  if (prompted_ && chunk.rank() == view_.input_rank && !is_stderr && !chunk.data().empty()) {
    // The prompt stands on the screen, and so does what was typed after it.
    assembler_.Drop(chunk.rank(), is_stderr);
    screen_.SetPrompt("");
    prompted_ = false;
  }
  assembler_.Append(chunk.rank(), is_stderr, chunk.data(), Now());
}

void OutputPipe::AppendBytes(bool is_stderr, const std::string& data) {
  const bool waits = screen_.terminal(false) && screen_.terminal(true) && open_is_stderr_ &&
                     *open_is_stderr_ != is_stderr;
  if (!waits) {
    ShowBytes(is_stderr, data);
    if (!open_is_stderr_) ShowHeld();
    return;
  }
  if (held_.empty()) held_since_ = Now();
  held_is_stderr_ = is_stderr;
  held_ += data;
  if (held_.size() > kMostHeld) ShowHeld();
}

void OutputPipe::ShowBytes(bool is_stderr, std::string_view data) {
  screen_.ShowBytes(is_stderr, data);
  if (data.empty()) return;
  open_is_stderr_ = data.back() == '\n' ? std::nullopt : std::optional(is_stderr);
}

void OutputPipe::ShowLine(const RankLine& line) {
  screen_.Show(line, PrefixOf(line, screen_.style(line.is_stderr)));
}

std::string OutputPipe::PrefixOf(const RankLine& line, const Style& style) const {
  if (!view_.prefix) return RankPrefix(line.ranks, world_size_, style);
  return Visible(view_.prefix(line.ranks.front(), line.ranks.front()));
}

void OutputPipe::ShowHeld() {
  if (held_.empty()) return;
  ShowBytes(held_is_stderr_, std::exchange(held_, {}));
}

void OutputPipe::Release(std::vector<std::string>* rows) {
  const nanoseconds now = Now();
  if (now - held_since_ >= kHold) ShowHeld();
  if (world_size_ > 1) {
    assembler_.ShowUnfinished({!screen_.redraws(false), !screen_.redraws(true)}, now);
  }
  merger_.Release(now);
  if (world_size_ < 2) return;
  std::vector<LineAssembler::OpenLine> lines = assembler_.OpenLines();
  std::erase_if(lines, [&](const auto& line) {
    return !screen_.redraws(line.is_stderr) || line.since > now - kMergeWindow;
  });
  ShowPrompt(lines);
  if (prompted_) return;
  for (std::string& row :
       LiveRows(lines, world_size_, now, screen_.most_rows(), screen_.row_style())) {
    rows->push_back(std::move(row));
  }
}

void OutputPipe::ShowPrompt(const std::vector<LineAssembler::OpenLine>& lines) {
  if (prompted_) return;
  const auto line = std::find_if(lines.begin(), lines.end(), [&](const auto& candidate) {
    return candidate.rank == view_.input_rank && !candidate.is_stderr && !candidate.redrawn &&
           LooksLikePrompt(candidate.text);
  });
  if (line == lines.end()) return;
  merger_.ReleaseAll();
  screen_.SetPrompt(RankPrefix({line->rank}, world_size_, screen_.row_style()) +
                    Visible(line->text));
  prompted_ = true;
}

void OutputPipe::Finish() {
  if (prompted_) {
    assembler_.Drop(view_.input_rank, false);
    screen_.SetPrompt("");
    prompted_ = false;
  }
  ShowHeld();
  assembler_.Flush();
  merger_.ReleaseAll();
  if (const uint64_t more = std::exchange(lost_unsaid_, 0); more > 0) {
    screen_.Say(fmt::format("{} more of the ranks' output are no longer kept", FormatBytes(more)));
  }
}

}  // namespace meshrun::client
