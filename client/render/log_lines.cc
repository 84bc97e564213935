#include "client/render/log_lines.h"

#include <array>
#include <chrono>
#include <nlohmann/json.hpp>

#include "core/json/json.h"
#include "core/utf8.h"

namespace meshrun::client {
namespace {

using Json = nlohmann::ordered_json;

Json Head(const std::string& job_id, uint64_t generation, int rank, bool is_stderr, WallNanos at) {
  return {{"jobId", job_id},
          {"generation", generation},
          {"rank", rank},
          {"stream", is_stderr ? "stderr" : "stdout"},
          {"readAt", JsonTime(std::chrono::floor<std::chrono::milliseconds>(at))}};
}

}  // namespace

LineAssembler& LogLines::LinesOf(uint64_t generation) {
  const auto found = lines_.find(generation);
  if (found != lines_.end()) return found->second;
  const std::array<Redraws, 2> whole = {Redraws::kKept, Redraws::kKept};
  const auto print = [this, generation](const RankLine& line) {
    Print({generation, line.ranks.front(), line.is_stderr}, line.text);
  };
  return lines_.try_emplace(generation, whole, print).first->second;
}

void LogLines::Append(const v1::ReadLogsResponse& chunk, WallNanos now) {
  now_ = now;
  const Where where{chunk.generation(), chunk.rank(), chunk.stream() == v1::LOG_STREAM_STDERR};
  LineAssembler& lines = LinesOf(where.generation);
  if (chunk.dropped() > 0) {
    // The line whose beginning was read does not go on after them.
    lines.Flush(where.rank, where.is_stderr);
    PrintDropped(where, chunk.dropped());
  }
  lines.Append(where.rank, where.is_stderr, chunk.data(), now);
}

void LogLines::Finish(WallNanos now) {
  now_ = now;
  for (auto& [generation, lines] : lines_) lines.Flush();
}

void LogLines::Print(const Where& where, const std::string& text) const {
  Json out = Head(job_id_, where.generation, where.rank, where.is_stderr, now_);
  out["text"] = EscapeBytes(text);
  sink_(out.dump() + "\n");
}

void LogLines::PrintDropped(const Where& where, uint64_t bytes) const {
  Json out = Head(job_id_, where.generation, where.rank, where.is_stderr, now_);
  out["dropped"] = bytes;
  sink_(out.dump() + "\n");
}

}  // namespace meshrun::client
