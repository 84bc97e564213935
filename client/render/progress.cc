#include "client/render/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/text.h"

namespace meshrun::client {
namespace {

using std::chrono::nanoseconds;

constexpr std::chrono::seconds kRateWindow(15);
// The page has the same (coordinator/page/model/rate.js).
constexpr int kIdleIntervals = 5;
constexpr std::chrono::seconds kLineInterval(10);
constexpr std::chrono::seconds kLeastInterval(1);
constexpr double kLineFraction = 0.1;
constexpr size_t kBarColumns = 24;
constexpr size_t kLeastBarColumns = 8;
constexpr size_t kLeastName = 12;

std::string BarGlyphs(double fraction, int columns, const Style& style) {
  const int halves = static_cast<int>(fraction * columns * 2);
  std::string done;
  std::string left;
  for (int i = 0; i < columns; ++i) {
    if (2 * i + 1 < halves) {
      done += style.utf8 ? "━" : "#";
    } else if (2 * i < halves) {
      done += style.utf8 ? "╸" : "#";
    } else {
      left += style.utf8 ? "━" : "-";
    }
  }
  // Without colour the part ahead would look like the part done.
  if (!style.colour && style.utf8) left = std::string(DisplayWidth(left), ' ');
  return Paint(style, Colour::kGreen, done) + Paint(style, Colour::kGrey, left);
}

// Three digits, and all before the point. The page has the same (coordinator/page/model/format.js).
std::string SpeedText(double steps_per_second) {
  const bool is_quick = steps_per_second >= 1;
  const double value = is_quick ? steps_per_second : 1 / steps_per_second;
  const std::string digits =
      value >= 100 ? fmt::format("{:.0f}", value) : fmt::format("{:.3g}", value);
  return digits + (is_quick ? " step/s" : " s/step");
}

}  // namespace

std::optional<double> FractionOf(const v1::Progress& progress) {
  if (!progress.has_step() || progress.total_steps() <= 0) return std::nullopt;
  const double part =
      static_cast<double>(progress.step()) / static_cast<double>(progress.total_steps());
  return std::clamp(part, 0.0, 1.0);
}

// 29 of 100 steps are 29 %, although 0.29 * 100 is a little less in binary.
int WholePercent(double fraction) { return static_cast<int>(std::floor(fraction * 100 + 1e-9)); }

bool ProgressMeter::Take(const v1::Progress& progress) {
  if (!progress.has_step() && !progress.has_loss() && progress.note().empty()) return false;
  has_any_ = true;
  last_ = progress;
  return true;
}

void ProgressMeter::Look(const v1::Progress& progress) {
  if (!Take(progress) || !progress.has_step()) return;
  if (step_ && progress.step() < *step_) samples_.clear();
  step_ = progress.step();
}

void ProgressMeter::Update(const v1::Progress& progress, nanoseconds now) {
  if (!Take(progress) || !progress.has_step() || step_ == progress.step()) return;
  // A time without steps is not in the rate of those after it; and a clock may be set back.
  const bool is_earlier = !samples_.empty() && now < samples_.back().at;
  if ((step_ && progress.step() < *step_) || is_earlier || IsIdle(now)) samples_.clear();
  step_ = progress.step();
  samples_.push_back({now, progress.step()});
  while (samples_.size() > 2 && now - samples_.front().at > kRateWindow) samples_.pop_front();
}

void ProgressMeter::TakeState(const v1::Job& job) {
  // The page has the same (coordinator/page/model/rate.js).
  const bool makes_steps =
      job.state() == v1::JOB_STATE_RUNNING && job.hang().empty() && !job.has_paused_since();
  const bool is_restarted = generation_ && *generation_ != job.generation();
  if (is_restarted || (makes_steps && !makes_steps_)) samples_.clear();
  generation_ = job.generation();
  makes_steps_ = makes_steps;
}

void ProgressMeter::Update(const v1::Job& job, nanoseconds now) {
  TakeState(job);
  Update(job.progress(), now);
}

void ProgressMeter::Look(const v1::Job& job) {
  TakeState(job);
  Look(job.progress());
}

bool ProgressMeter::IsIdle(nanoseconds now) const {
  if (samples_.size() < 2) return false;
  nanoseconds longest(0);
  for (size_t i = 1; i < samples_.size(); ++i) {
    longest = std::max(longest, samples_[i].at - samples_[i - 1].at);
  }
  return now - samples_.back().at > std::max<nanoseconds>(kRateWindow, kIdleIntervals * longest);
}

std::optional<double> ProgressMeter::Rate(nanoseconds now) const {
  if (samples_.size() < 2 || !makes_steps_ || IsIdle(now)) return std::nullopt;
  const double seconds =
      std::chrono::duration<double>(samples_.back().at - samples_.front().at).count();
  if (seconds <= 0) return std::nullopt;
  return static_cast<double>(samples_.back().step - samples_.front().step) / seconds;
}

std::optional<std::chrono::seconds> ProgressMeter::Remaining(nanoseconds now) const {
  const auto rate = Rate(now);
  if (!rate || *rate <= 0 || !last_.has_step() || !last_.has_total_steps()) return std::nullopt;
  if (last_.step() >= last_.total_steps()) return std::nullopt;
  const double left = static_cast<double>(last_.total_steps() - last_.step());
  return std::chrono::seconds(static_cast<int64_t>(std::min(std::ceil(left / *rate), 1e9)));
}

std::vector<std::string> ProgressMeter::Facts(nanoseconds now) const {
  std::vector<std::string> facts;
  if (last_.has_loss()) facts.push_back("loss " + ShortNumber(last_.loss()));
  if (const auto rate = Rate(now); rate && *rate > 0) facts.push_back(SpeedText(*rate));
  if (const auto left = Remaining(now)) facts.push_back(FormatDuration(*left) + " left");
  if (std::string note = OneLine(last_.note(), kNoteWidth); !note.empty())
    facts.push_back(std::move(note));
  return facts;
}

std::string ProgressMeter::Bar(const std::string& name, const Style& style, nanoseconds now) const {
  // The last column stays free: some terminals wrap there.
  const size_t room = static_cast<size_t>(std::max(style.width - 1, 1));
  std::string head = name;
  std::string bar;
  // With the blank before it.
  size_t bar_columns = 0;
  std::string rest;
  if (const auto fraction = FractionOf(last_)) {
    const std::string percent = fmt::format(" {:3}%", WholePercent(*fraction));
    std::string counts = fmt::format("  {}/{}", last_.step(), last_.total_steps());
    // The percentage stays, whatever is left out for it.
    const auto left = [&] {
      const size_t used = DisplayWidth(head) + 1 + percent.size() + counts.size();
      return room - std::min(room, used);
    };
    if (left() < kLeastBarColumns) counts.clear();
    if (left() < kLeastBarColumns) {
      const size_t without =
          DisplayWidth(head) - std::min(DisplayWidth(head), kLeastBarColumns - left());
      head = Shorten(head, std::max(kLeastName, without));
    }
    if (left() < kLeastBarColumns) {
      head = FirstColumns(head, room - std::min(room, percent.size() + counts.size()));
    } else {
      const size_t columns = std::min(kBarColumns, left());
      bar = " " + BarGlyphs(*fraction, static_cast<int>(columns), style);
      bar_columns = 1 + columns;
    }
    rest = std::string(bar_columns, ' ') + percent + counts;
  } else if (last_.has_step()) {
    rest = fmt::format("  step {}", last_.step());
  }
  std::string line = head + rest;
  for (const std::string& fact : Facts(now)) {
    // The bar stays one line, whatever is left out.
    if (DisplayWidth(line) + 2 + DisplayWidth(fact) > room) break;
    line += "  " + fact;
  }
  if (!bar.empty()) line.replace(head.size(), bar_columns, bar);
  return line;
}

std::string ProgressMeter::Line(nanoseconds now) const {
  std::vector<std::string> parts;
  if (const auto fraction = FractionOf(last_)) {
    parts.push_back(fmt::format("step {}/{} ({}%)", last_.step(), last_.total_steps(),
                                WholePercent(*fraction)));
  } else if (last_.has_step()) {
    parts.push_back(fmt::format("step {}", last_.step()));
  }
  for (std::string& fact : Facts(now)) parts.push_back(std::move(fact));
  return fmt::format("{}", fmt::join(parts, ", "));
}

bool ProgressMeter::LineDue(std::chrono::nanoseconds now) {
  if (!has_any_ || !last_.has_step() || shown_step_ == last_.step()) return false;
  const double fraction = FractionOf(last_).value_or(0);
  const nanoseconds silent = now - shown_at_;
  const bool due = !shown_step_ || silent >= kLineInterval || fraction >= 1 ||
                   (fraction - shown_fraction_ >= kLineFraction && silent >= kLeastInterval);
  if (!due) return false;
  shown_step_ = last_.step();
  shown_at_ = now;
  shown_fraction_ = fraction;
  return true;
}

}  // namespace meshrun::client
