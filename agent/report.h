// What a rank says of itself: progress bars, curves and hang detection come from it. For programs
// that need nothing else of agent/agent.h, whose calls return absl::Status: this header needs no
// abseil.
//
// Threads: any. `agent` is DistributedManager::agent(); null, as it is without meshrun, does
// nothing.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace meshrun::agent {

class Agent;

// Absent values leave what was said before.
struct Progress {
  std::optional<int64_t> step;
  std::optional<int64_t> total_steps;
  std::optional<double> loss;
  std::map<std::string, double> metrics;
  std::string note;
  // In all since this process began; Agent::Report fills them in where it knows them.
  std::optional<double> waited_seconds;
  std::optional<uint64_t> collective_bytes;
  // In all, since this process began to count: samples that it has trained on, and seconds in which
  // it has waited for its data.
  std::optional<double> samples;
  std::optional<double> data_seconds;
};

// Never blocks; dropped when the daemon's socket is full.
void Report(Agent* agent, const Progress& progress);

// For a report that must arrive, such as that of the last step. Returns the reason why it has not
// arrived; empty if it has, or if there is no agent.
std::string ReportReliably(Agent* agent, const Progress& progress);

}  // namespace meshrun::agent
