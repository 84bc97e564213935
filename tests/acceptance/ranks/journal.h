// What one rank process did, line by line, with the host's own clock: the evidence that items of
// tests/acceptance/elastic judge by.
//
// Threads: any. A line is one write, so a killed process leaves no half of one.
#pragma once

#include <mutex>
#include <nlohmann/json.hpp>
#include <string>

#include "agent/agent.h"

namespace meshrun::acceptance {

class Journal {
 public:
  // Appends to DIRECTORY/<generation>-<rank>-<pid>.jsonl. Exits with 2 where that cannot be opened.
  Journal(const std::string& directory, const agent::Assignment& first);
  // Further lines are of this place.
  void Move(const agent::Assignment& place);
  void Write(const std::string& what, nlohmann::json fields = nlohmann::json::object());

 private:
  int fd_ = -1;
  std::mutex mu_;
  uint64_t generation_ = 0;
  int rank_ = 0;
};

// Seconds of CLOCK_BOOTTIME.
double Now();

}  // namespace meshrun::acceptance
