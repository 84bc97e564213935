#include "client/render/rank_output.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/text.h"

namespace meshrun::client {
namespace {

constexpr size_t kMaxLine = 64 << 10;

}  // namespace

void LineAssembler::Emit(int rank, bool is_stderr, std::string_view line) {
  while (line.ends_with('\r')) line.remove_suffix(1);
  if (const size_t redraw = line.rfind('\r'); redraw != std::string_view::npos) {
    line.remove_prefix(redraw + 1);
  }
  sink_(RankLine{{rank}, is_stderr, std::string(line)});
}

void LineAssembler::Append(int rank, bool is_stderr, std::string_view data) {
  std::string& partial = partial_[{rank, is_stderr}];
  while (true) {
    const size_t end = data.find('\n');
    if (end == std::string_view::npos) break;
    if (partial.empty()) {
      Emit(rank, is_stderr, data.substr(0, end));
    } else {
      partial += data.substr(0, end);
      Emit(rank, is_stderr, partial);
      partial.clear();
    }
    data.remove_prefix(end + 1);
  }
  partial += data;
  while (partial.size() >= kMaxLine) {
    Emit(rank, is_stderr, std::string_view(partial).substr(0, kMaxLine));
    partial.erase(0, kMaxLine);
  }
}

void LineAssembler::Flush() {
  for (auto& [key, text] : partial_) {
    if (!text.empty()) Emit(key.first, key.second, text);
    text.clear();
  }
}

void LineMerger::PopFront() {
  RankLine line = std::move(pending_.front().line);
  pending_.pop_front();
  std::sort(line.ranks.begin(), line.ranks.end());
  sink_(line);
}

void LineMerger::Add(const RankLine& line, std::chrono::nanoseconds now) {
  if (window_.count() == 0 || world_size_ < 2) {
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
         (now - pending_.front().since >= window_ ||
          static_cast<int>(pending_.front().line.ranks.size()) >= world_size_)) {
    PopFront();
  }
}

void LineMerger::ReleaseAll() {
  while (!pending_.empty()) PopFront();
}

std::string RankPrefix(const std::vector<int>& ranks, int world_size, const Style& style) {
  if (world_size < 2) return "";
  const size_t width = fmt::formatted_size("{}", world_size - 1);
  const std::string text = fmt::format("{:>{}}:", FormatRanks(ranks), width);
  return Paint(style, ranks.size() == 1 ? RankColour(ranks[0]) : Colour::kBold, text) + " ";
}

}  // namespace meshrun::client
