// From the bytes that ranks write to the lines that a person reads. Pure: time is passed in.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
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

// What becomes of a line that redraws itself with carriage returns.
enum class Redraws {
  // Its last form arrives, as on a terminal. A line without an end is cut at 64 KiB.
  kLastForm,
  // All its bytes arrive, unless ShowUnfinished has passed it on before its end: for files and
  // pipes. A line is cut at kMostLine, and the longest one where all open lines together have
  // kMostOpen.
  kKept,
};

// Cuts each rank's streams into lines, and keeps those that have no end yet.
class LineAssembler {
 public:
  static constexpr size_t kMostLine = size_t{64} << 20;
  static constexpr size_t kMostOpen = size_t{256} << 20;
  // Time between two forms of a line that has no end yet, and the longest one that is passed on.
  static constexpr std::chrono::seconds kUnfinished{5};
  static constexpr size_t kMostUnfinished = size_t{4} << 10;

  // `redraws`: for stdout and for stderr.
  LineAssembler(std::array<Redraws, 2> redraws, LineSink sink)
      : redraws_(redraws), sink_(std::move(sink)) {}
  void Append(int rank, bool is_stderr, std::string_view data, std::chrono::nanoseconds now);
  // Passes on the lines that have no end yet, or that of one stream.
  void Flush();
  void Flush(int rank, bool is_stderr);
  // Forgets the beginning of a line that has no end yet.
  void Drop(int rank, bool is_stderr);
  // For streams whose open lines nobody sees otherwise (`which`: stdout, stderr): passes on each
  // line that has had no end for kUnfinished, and again every kUnfinished if it has changed. A line
  // that redraws itself is passed on in its last form, then and at its end; another one whole. The
  // end passes on only what differs from the form before. Two kinds of lines wait for their end:
  // lines longer than kMostUnfinished, and lines that stop at a multiple of the block that the C
  // library writes, whose rest is in the buffer of the rank.
  void ShowUnfinished(std::array<bool, 2> which, std::chrono::nanoseconds now);

  // A line without an end, in its last form.
  struct OpenLine {
    int rank;
    bool is_stderr;
    std::string_view text;
    // When its first byte came.
    std::chrono::nanoseconds since;
    // It has redrawn itself: no prompt does.
    bool redrawn;
  };
  // Open lines of streams whose last form counts; by rank, stdout first. Valid until the next call
  // of another method.
  std::vector<OpenLine> OpenLines() const;
  // Bytes of all lines without an end.
  size_t open_bytes() const { return open_bytes_; }

 private:
  struct Partial {
    std::string text;
    std::chrono::nanoseconds since{0};
    bool redrawn = false;
    // The form that ShowUnfinished has passed on, and when.
    std::optional<std::string> shown;
    std::chrono::nanoseconds shown_at{0};
    // All bytes of the stream so far.
    uint64_t position = 0;
  };
  void Emit(int rank, bool is_stderr, std::string_view line);
  // Passes on the line that `partial` holds, if it says more than what was shown of it.
  void End(int rank, bool is_stderr, Partial& partial);
  void Bound(int rank, bool is_stderr, Partial& partial);

  const std::array<Redraws, 2> redraws_;
  LineSink sink_;
  std::map<std::pair<int, bool>, Partial> partial_;
  size_t open_bytes_ = 0;
};

// Merges the same line of several ranks into one. A line waits at most its stream's window for its
// equals, each rank's own order stays, and at most kMaxPending lines wait. With window 0 every line
// of that stream passes at once.
class LineMerger {
 public:
  static constexpr size_t kMaxPending = 256;

  // `windows`: for stdout and for stderr.
  LineMerger(int world_size, std::array<std::chrono::nanoseconds, 2> windows, LineSink sink)
      : world_size_(world_size), windows_(windows), sink_(std::move(sink)) {}

  void Add(const RankLine& line, std::chrono::nanoseconds now);
  // Passes on the lines that have waited long enough, or all lines.
  void Release(std::chrono::nanoseconds now);
  void ReleaseAll();
  bool empty() const { return pending_.empty(); }

 private:
  struct Pending {
    RankLine line;
    std::chrono::nanoseconds since;
  };
  void PopFront();

  const int world_size_;
  const std::array<std::chrono::nanoseconds, 2> windows_;
  LineSink sink_;
  std::deque<Pending> pending_;
};

// The last state of a line that redraws itself: what follows its last carriage return.
std::string_view LastForm(std::string_view line);

// "3: " or "0-3: ", padded to the width of the largest rank; empty where there is but one rank.
std::string RankPrefix(const std::vector<int>& ranks, int world_size, const Style& style);

// torchrun's --log-line-prefix-template: ${rank}, ${local_rank}, ${role_name} and ${hostname}
// become their values; anything else stays as it is.
struct LinePrefix {
  std::string text;
  std::string role;
  std::string host;
  std::string Of(int rank, int local_rank) const;
};

// Rows of at most style.width columns for the lines without an end; equal lines are merged. Only
// lines that are open since before `until` and show something count. If there are more than `most`
// rows, the last row says how many ranks are left out.
std::vector<std::string> LiveRows(const std::vector<LineAssembler::OpenLine>& lines, int world_size,
                                  std::chrono::nanoseconds until, size_t most, const Style& style);

// Does a line without an end ask for input? "(Pdb) ", ">>>", "name: ", "really?"
bool LooksLikePrompt(std::string_view text);

}  // namespace meshrun::client
