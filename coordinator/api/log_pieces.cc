#include "coordinator/api/log_pieces.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "core/utf8.h"

namespace meshrun::coordinator {
namespace {

// A character has four bytes at most.
constexpr size_t kMostHeld = 3;

// How many bytes at the end may be the beginning of a character.
size_t UnfinishedBytes(std::string_view bytes) {
  for (size_t length = 1; length <= std::min(kMostHeld, bytes.size()); ++length) {
    const auto first = static_cast<unsigned char>(bytes[bytes.size() - length]);
    if (first < 0x80) return 0;
    if (first < 0xc0) continue;
    const size_t wanted = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    return wanted > length ? length : 0;
  }
  return 0;
}

LogPieces::Json Piece(int rank, int stream, uint64_t generation, uint64_t offset, uint64_t dropped,
                      std::string_view bytes) {
  return {{"rank", rank},
          {"stream", stream == v1::LOG_STREAM_STDERR ? "stderr" : "stdout"},
          {"generation", generation},
          {"offset", offset},
          {"dropped", dropped},
          {"text", EscapeBytes(bytes)}};
}

}  // namespace

LogPieces::Json LogPieces::Add(const v1::ReadLogsResponse& answer) {
  const Stream stream{answer.rank(), answer.stream(), answer.generation()};
  ends_[stream] = answer.offset() + answer.data().size();
  Held held;
  if (const auto found = held_.find(stream); found != held_.end()) {
    held = std::move(found->second);
    held_.erase(found);
  }
  // Where bytes between are lost, the two do not belong together.
  const bool goes_on = !held.bytes.empty() && answer.dropped() == 0 &&
                       held.offset + held.bytes.size() == answer.offset();
  std::string bytes = goes_on ? held.bytes + answer.data() : answer.data();
  const uint64_t offset = goes_on ? held.offset : answer.offset();
  const size_t unfinished = UnfinishedBytes(bytes);
  if (unfinished > 0) {
    held_[stream] = {offset + bytes.size() - unfinished, bytes.substr(bytes.size() - unfinished)};
    bytes.resize(bytes.size() - unfinished);
  }
  if (bytes.empty() && answer.dropped() == 0) return nullptr;
  return Piece(answer.rank(), answer.stream(), answer.generation(), offset, answer.dropped(),
               bytes);
}

std::vector<LogPieces::Json> LogPieces::Rest() {
  std::vector<Json> out;
  for (const auto& [stream, held] : std::exchange(held_, {})) {
    const auto& [rank, kind, generation] = stream;
    out.push_back(Piece(rank, kind, generation, held.offset, 0, held.bytes));
  }
  return out;
}

std::vector<v1::LogPosition> LogPieces::Ends() const {
  std::vector<v1::LogPosition> out;
  for (const auto& [stream, end] : ends_) {
    const auto held = held_.find(stream);
    v1::LogPosition& position = out.emplace_back();
    position.set_rank(std::get<0>(stream));
    position.set_stream(static_cast<v1::LogStream>(std::get<1>(stream)));
    position.set_offset(held == held_.end() ? end : held->second.offset);
  }
  return out;
}

}  // namespace meshrun::coordinator
