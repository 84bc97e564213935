// What ranks write as JSON for scripts, one object a line:
//
//   {"jobId":"geoid-k3x9w2","generation":1,"rank":0,"stream":"stdout","readAt":"...","text":"a"}
//
// `text` is the line without its newline, UTF-8 as it is and every other byte as \xNN. `readAt` is
// when the end of the line was read here: nobody keeps when it was written. Bytes that are no
// longer kept are an object with their number as `dropped` in place of `text`. Pure: time is passed
// in.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "client/render/rank_output.h"
#include "core/clock.h"
#include "meshrun/v1/job_service.pb.h"

namespace meshrun::client {

class LogLines {
 public:
  // `sink` gets one object with its newline.
  LogLines(std::string job_id, std::function<void(std::string_view)> sink)
      : job_id_(std::move(job_id)), sink_(std::move(sink)) {}
  LogLines(const LogLines&) = delete;
  LogLines& operator=(const LogLines&) = delete;

  void Append(const v1::ReadLogsResponse& chunk, WallNanos now);
  // Passes on the lines that have no end.
  void Finish(WallNanos now);

 private:
  struct Where {
    uint64_t generation;
    int rank;
    bool is_stderr;
  };
  LineAssembler& LinesOf(uint64_t generation);
  void Print(const Where& where, const std::string& text) const;
  void PrintDropped(const Where& where, uint64_t bytes) const;

  const std::string job_id_;
  const std::function<void(std::string_view)> sink_;
  // A rank of one generation may end in the middle of a line, and the next one begins another.
  std::map<uint64_t, LineAssembler> lines_;
  WallNanos now_{0};
};

}  // namespace meshrun::client
