// A trace of this process for chrome://tracing and https://ui.perfetto.dev: spans and moments on
// named rows, in a file that holds a JSON array after every add().
//
// The files of several ranks become one trace when their arrays are joined (jq -s add). Threads:
// one at a time. Errors: a std::runtime_error that names the file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/os/fd.h"

namespace meshrun::detail {

struct TraceEvent {
  std::string row;
  std::string name;
  int64_t step = 0;
  // Nanoseconds since the epoch. Without an end it is a moment.
  int64_t begin = 0;
  std::optional<int64_t> end;
  std::optional<int64_t> bytes;
};

class TraceFile {
 public:
  // Creates the directory where there is none, and in it "meshrun-trace-rank-3-4711.json" of rank 3
  // and process 4711, or the first of "...-4711-2.json" and so on that is not there yet.
  TraceFile(const std::string& directory, int rank);
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  void add(const std::vector<TraceEvent>& events);
  const std::string& path() const { return path_; }

 private:
  void append(std::string text);
  // The number of a row. Its name, if it is new, is added to `text`.
  int64_t row(const std::string& name, std::string& text);

  const int rank_;
  std::string path_;
  os::UniqueFd fd_;
  int64_t end_ = 0;  // where the array's closing bracket stands
  std::vector<std::string> rows_;
};

// The first and the last step that are traced, of "20" (1 to 20) or "100-119".
using TracedSteps = std::pair<int64_t, int64_t>;
// Absent: neither.
std::optional<TracedSteps> parse_traced_steps(const std::string& text);

}  // namespace meshrun::detail
