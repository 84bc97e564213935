// Output of ranks as the HTTP API gives it: pieces of text, each with its place. Not thread-safe.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "meshrun/v1/job_service.pb.h"

namespace meshrun::coordinator {

// A character whose bytes come in two answers is in one piece.
class LogPieces {
 public:
  using Json = nlohmann::ordered_json;

  // {"rank", "stream": "stdout", "generation", "offset", "dropped", "text"}; null: there is nothing
  // to say yet. `text` is UTF-8: any other byte is written as \xNN.
  Json Add(const v1::ReadLogsResponse& answer);
  // What has no rest: streams that end within a character.
  std::vector<Json> Rest();
  // Where each stream goes on after its pieces, by rank.
  std::vector<v1::LogPosition> Ends() const;

 private:
  struct Held {
    uint64_t offset = 0;
    std::string bytes;
  };
  using Stream = std::tuple<int, int, uint64_t>;
  // The beginning of a character at the end of each stream.
  std::map<Stream, Held> held_;
  // Offset after what has been added of each stream.
  std::map<Stream, uint64_t> ends_;
};

}  // namespace meshrun::coordinator
