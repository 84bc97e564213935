#include "client/render/rank_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "core/text.h"

namespace meshrun::client {
namespace {

// On a terminal.
constexpr size_t kMostShown = size_t{64} << 10;

// The C library's buffer of a pipe.
constexpr uint64_t kBlock = 4096;

// The last form without the blanks that cover a longer one.
std::string_view ShownForm(std::string_view line) {
  line = LastForm(line);
  while (line.ends_with(' ')) line.remove_suffix(1);
  return line;
}

bool IsBlank(std::string_view line) {
  return Visible(line).find_first_not_of(' ') == std::string::npos;
}

}  // namespace

std::string_view LastForm(std::string_view line) {
  while (line.ends_with('\r')) line.remove_suffix(1);
  if (const size_t redraw = line.rfind('\r'); redraw != std::string_view::npos) {
    line.remove_prefix(redraw + 1);
  }
  return line;
}

void LineAssembler::Emit(int rank, bool is_stderr, std::string_view line) {
  const bool kept = redraws_[is_stderr] == Redraws::kKept;
  sink_(RankLine{{rank}, is_stderr, std::string(kept ? line : LastForm(line))});
}

void LineAssembler::End(int rank, bool is_stderr, Partial& partial) {
  open_bytes_ -= partial.text.size();
  const std::string line = std::exchange(partial.text, {});
  const std::optional<std::string> shown = std::exchange(partial.shown, std::nullopt);
  if (!shown) return Emit(rank, is_stderr, line);
  const std::string_view form = partial.redrawn ? ShownForm(line) : std::string_view(line);
  if (form != *shown && !IsBlank(form)) Emit(rank, is_stderr, form);
}

void LineAssembler::Append(int rank, bool is_stderr, std::string_view data,
                           std::chrono::nanoseconds now) {
  Partial& partial = partial_[{rank, is_stderr}];
  partial.position += data.size();
  while (true) {
    const size_t end = data.find('\n');
    if (end == std::string_view::npos) break;
    const std::string_view line = data.substr(0, end);
    if (partial.text.empty() && !partial.shown) {
      Emit(rank, is_stderr, line);
    } else {
      partial.redrawn |= line.find('\r') != std::string_view::npos;
      partial.text += line;
      open_bytes_ += line.size();
      End(rank, is_stderr, partial);
    }
    data.remove_prefix(end + 1);
  }
  if (data.empty()) return;
  if (partial.text.empty() && !partial.shown) {
    partial.since = now;
    partial.redrawn = false;
  }
  partial.redrawn |= data.find('\r') != std::string_view::npos;
  partial.text += data;
  open_bytes_ += data.size();
  Bound(rank, is_stderr, partial);
}

void LineAssembler::Bound(int rank, bool is_stderr, Partial& partial) {
  const bool kept = redraws_[is_stderr] == Redraws::kKept && !(partial.shown && partial.redrawn);
  if (!kept) {
    // What is drawn over is gone.
    const std::string_view last = LastForm(partial.text);
    const auto begin = static_cast<size_t>(last.data() - partial.text.data());
    partial.text.erase(0, begin);
    open_bytes_ -= begin;
  }
  const size_t most = kept ? kMostLine : kMostShown;
  while (partial.text.size() >= most) {
    Emit(rank, is_stderr, std::string_view(partial.text).substr(0, most));
    partial.text.erase(0, most);
    open_bytes_ -= most;
  }
  if (open_bytes_ <= kMostOpen) return;
  const auto longest = std::max_element(
      partial_.begin(), partial_.end(),
      [](const auto& a, const auto& b) { return a.second.text.size() < b.second.text.size(); });
  End(longest->first.first, longest->first.second, longest->second);
}

void LineAssembler::Flush() {
  for (auto& [key, partial] : partial_) {
    if (!partial.text.empty()) End(key.first, key.second, partial);
  }
}

void LineAssembler::Flush(int rank, bool is_stderr) {
  Partial& partial = partial_[{rank, is_stderr}];
  if (!partial.text.empty()) End(rank, is_stderr, partial);
}

void LineAssembler::Drop(int rank, bool is_stderr) {
  Partial& partial = partial_[{rank, is_stderr}];
  open_bytes_ -= partial.text.size();
  partial.text.clear();
  partial.shown.reset();
}

void LineAssembler::ShowUnfinished(std::array<bool, 2> which, std::chrono::nanoseconds now) {
  for (auto& [key, partial] : partial_) {
    if (!which[key.second] || partial.text.empty() ||
        now - (partial.shown ? partial.shown_at : partial.since) < kUnfinished) {
      continue;
    }
    if (!partial.redrawn && partial.position % kBlock == 0) continue;
    const std::string_view form =
        partial.redrawn ? ShownForm(partial.text) : std::string_view(partial.text);
    if (form.size() > kMostUnfinished || partial.shown == form || IsBlank(form)) continue;
    partial.shown = std::string(form);
    partial.shown_at = now;
    Emit(key.first, key.second, form);
  }
}

std::vector<LineAssembler::OpenLine> LineAssembler::OpenLines() const {
  std::vector<OpenLine> lines;
  for (const auto& [key, partial] : partial_) {
    if (partial.text.empty() || redraws_[key.second] == Redraws::kKept) continue;
    lines.push_back(
        {key.first, key.second, LastForm(partial.text), partial.since, partial.redrawn});
  }
  return lines;
}

void LineMerger::PopFront() {
  RankLine line = std::move(pending_.front().line);
  pending_.pop_front();
  std::sort(line.ranks.begin(), line.ranks.end());
  sink_(line);
}

void LineMerger::Add(const RankLine& line, std::chrono::nanoseconds now) {
  if (windows_[line.is_stderr].count() == 0 || world_size_ < 2) {
    sink_(line);
    return;
  }
  const int rank = line.ranks.front();
  const auto has_rank = [&](const Pending& p) {
    return std::find(p.line.ranks.begin(), p.line.ranks.end(), rank) != p.line.ranks.end();
  };
  // Only after this rank's latest line: its own order must stay.
  auto from = pending_.end();
  while (from != pending_.begin() && !has_rank(*std::prev(from))) --from;
  const auto equal = std::find_if(from, pending_.end(), [&](const Pending& p) {
    return p.line.is_stderr == line.is_stderr && p.line.text == line.text;
  });
  if (equal != pending_.end()) {
    equal->line.ranks.push_back(rank);
  } else {
    pending_.push_back({line, now});
  }
  if (pending_.size() > kMaxPending) PopFront();
  Release(now);
}

void LineMerger::Release(std::chrono::nanoseconds now) {
  while (!pending_.empty() &&
         (now - pending_.front().since >= windows_[pending_.front().line.is_stderr] ||
          static_cast<int>(pending_.front().line.ranks.size()) >= world_size_)) {
    PopFront();
  }
}

void LineMerger::ReleaseAll() {
  while (!pending_.empty()) PopFront();
}

std::string LinePrefix::Of(int rank, int local_rank) const {
  const std::pair<std::string_view, std::string> values[] = {
      {"${rank}", std::to_string(rank)},
      {"${local_rank}", std::to_string(local_rank)},
      {"${role_name}", role},
      {"${hostname}", host}};
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const auto found = std::find_if(std::begin(values), std::end(values), [&](const auto& value) {
      return std::string_view(text).substr(at).starts_with(value.first);
    });
    if (found == std::end(values)) {
      out += text[at++];
    } else {
      out += found->second;
      at += found->first.size();
    }
  }
  return out;
}

std::string RankPrefix(const std::vector<int>& ranks, int world_size, const Style& style) {
  if (world_size < 2) return "";
  const size_t width = fmt::formatted_size("{}", world_size - 1);
  const std::string text = fmt::format("{:>{}}:", FormatRanks(ranks), width);
  return Paint(style, ranks.size() == 1 ? RankColour(ranks[0]) : Colour::kBold, text) + " ";
}

std::vector<std::string> LiveRows(const std::vector<LineAssembler::OpenLine>& lines, int world_size,
                                  std::chrono::nanoseconds until, size_t most, const Style& style) {
  struct Row {
    std::vector<int> ranks;
    std::string text;
  };
  std::vector<Row> rows;
  for (const LineAssembler::OpenLine& line : lines) {
    std::string text = Visible(line.text);
    if (line.since > until || text.empty()) continue;
    const auto equal =
        std::find_if(rows.begin(), rows.end(), [&](const Row& row) { return row.text == text; });
    if (equal == rows.end()) {
      rows.push_back({{line.rank}, std::move(text)});
    } else if (equal->ranks.back() != line.rank) {
      equal->ranks.push_back(line.rank);
    }
  }
  std::vector<std::string> out;
  for (const Row& row : rows) {
    if (rows.size() > most && out.size() + 1 >= most) {
      out.push_back(
          Shorten(fmt::format("and {} more lines that have no end yet", rows.size() - out.size()),
                  static_cast<size_t>(style.width)));
      break;
    }
    const size_t prefix = DisplayWidth(RankPrefix(row.ranks, world_size, Style()));
    const size_t room = static_cast<size_t>(style.width) - std::min<size_t>(style.width, prefix);
    out.push_back(RankPrefix(row.ranks, world_size, style) +
                  std::string(FirstColumns(row.text, room)));
  }
  return out;
}

bool LooksLikePrompt(std::string_view text) {
  const std::string shown = Visible(text);
  const size_t end = shown.find_last_not_of(' ');
  if (end == std::string::npos) return false;
  return std::string_view(">:?)]$").find(shown[end]) != std::string_view::npos;
}

}  // namespace meshrun::client
