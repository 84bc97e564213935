// The output of the processes that one generation has started, from bytes to the screen.
//
//   one rank                its bytes, as they come. While one stream has an unfinished line on the
//                           terminal, the other stream waits for a moment: the streams are read
//                           separately, so the end of a progress bar may arrive after a line that
//                           the rank printed later
//   several, terminal       lines with their rank; equal lines of several ranks are merged, and
//                           lines without an end are rows below that are redrawn
//   several, file or pipe   each rank's lines, whole, with their rank. A line that has had no end
//                           for 5 s comes as it stands, as a line of its own (a progress bar, a
//                           prompt): LineAssembler::ShowUnfinished
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "client/cli/screen.h"
#include "client/render/rank_output.h"
#include "meshrun/v1/job_service.pb.h"

namespace meshrun::client {

// What is shown of the ranks' output, and what is said of output that is gone.
struct OutputView {
  // Null: all.
  std::function<bool(int rank, bool is_stderr)> shows;
  // Number of ranks of which some output is shown; 0: all ranks.
  int shown_ranks = 0;
  // A rank that a person types to on this terminal; -1: none.
  int input_rank = -1;
  // In place of "3: ": what stands before a line of this rank; what it is given as the local rank
  // is the rank, unless the follower knows better. Equal lines are not merged then, and a single
  // rank's lines have it too. Null: the usual.
  std::function<std::string(int rank, int local_rank)> prefix;
  // Why bytes may be gone.
  std::string why_lost =
      "its log is longer than the worker's --log-limit, or its file system was full";
};

// The same for one of several nodes: `here` has the local rank of each of its ranks. The view's own
// functions get local ranks.
OutputView OfNode(const OutputView& view, const std::map<int, int>& here);

class OutputPipe {
 public:
  // `view` and `screen` must outlive it.
  OutputPipe(Screen& screen, int world_size, const OutputView& view);

  void Append(const v1::ReadLogsResponse& chunk);
  // Shows lines that have waited for their equals; ranks' lines without an end go to `*rows`.
  void Release(std::vector<std::string>* rows);
  void Finish();
  // Lines or bytes wait.
  bool waiting() const { return !merger_.empty() || !held_.empty(); }
  // Bytes that were gone before they could be shown.
  uint64_t lost() const { return lost_; }

 private:
  void SayLost(const v1::ReadLogsResponse& chunk);
  void AppendBytes(bool is_stderr, const std::string& data);
  void ShowBytes(bool is_stderr, std::string_view data);
  void ShowHeld();
  void ShowLine(const RankLine& line);
  std::string PrefixOf(const RankLine& line, const Style& style) const;
  void ShowPrompt(const std::vector<LineAssembler::OpenLine>& lines);

  Screen& screen_;
  const OutputView& view_;
  const int world_size_;
  LineMerger merger_;
  LineAssembler assembler_;
  std::map<std::pair<int, bool>, bool> said_lost_;
  uint64_t lost_ = 0;
  uint64_t lost_unsaid_ = 0;
  bool prompted_ = false;
  // Where both streams of one rank are on the terminal: the stream whose line is open there, and
  // the bytes of the other stream that wait.
  std::optional<bool> open_is_stderr_;
  std::string held_;
  bool held_is_stderr_ = false;
  std::chrono::nanoseconds held_since_{0};
};

}  // namespace meshrun::client
