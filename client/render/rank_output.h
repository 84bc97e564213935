// From the bytes that ranks write to the lines that a person reads. Pure: time is passed in.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "client/render/style.h"

namespace meshrun::client {

struct RankLine {
  // More than one where equal lines were merged; in ascending order.
  std::vector<int> ranks;
  bool is_stderr = false;
  std::string text;
};

using LineSink = std::function<void(const RankLine&)>;

// Cuts each rank's streams into lines. A line that redraws itself with carriage returns arrives as
// its last form. A line without an end is cut at 64 KiB.
class LineAssembler {
 public:
  explicit LineAssembler(LineSink sink) : sink_(std::move(sink)) {}
  void Append(int rank, bool is_stderr, std::string_view data);
  // Passes on the lines that have no end yet.
  void Flush();

 private:
  void Emit(int rank, bool is_stderr, std::string_view line);

  LineSink sink_;
  std::map<std::pair<int, bool>, std::string> partial_;
};

// Merges the same line of several ranks into one. A line waits at most `window` for its equals,
// each rank's own order stays, and at most kMaxPending lines wait. With window 0 every line passes
// at once.
class LineMerger {
 public:
  static constexpr size_t kMaxPending = 256;

  LineMerger(int world_size, std::chrono::nanoseconds window, LineSink sink)
      : world_size_(world_size), window_(window), sink_(std::move(sink)) {}

  void Add(const RankLine& line, std::chrono::nanoseconds now);
  // Passes on the lines that have waited long enough, or all lines.
  void Release(std::chrono::nanoseconds now);
  void ReleaseAll();
  bool empty() const { return pending_.empty(); }
  void set_world_size(int world_size) { world_size_ = world_size; }

 private:
  struct Pending {
    RankLine line;
    std::chrono::nanoseconds since;
  };
  void PopFront();

  int world_size_;
  const std::chrono::nanoseconds window_;
  LineSink sink_;
  std::deque<Pending> pending_;
};

// "3: " or "0-3: ", padded to the width of the largest rank; empty where there is but one rank.
std::string RankPrefix(const std::vector<int>& ranks, int world_size, const Style& style);

}  // namespace meshrun::client
