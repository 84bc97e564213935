// Rank processes whose generations follow each other (generation_agent.h).
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "tests/parallel/elastic/generation_agent.h"
#include "tests/parallel/support/rank_processes.h"

namespace meshrun {

inline int number(const char* name) { return std::atoi(std::getenv(name)); }

// That the agents of all processes share.
inline GenerationAgent::StorePtr shared_store() {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(number("TEST_PORT"));
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

inline std::shared_ptr<GenerationAgent> own_agent(int world_size) {
  return GenerationAgent::of(shared_store(), static_cast<uint64_t>(number("TEST_GENERATION")),
                             number("TEST_RANK"), world_size);
}

// For a process that begins in the second generation: the first one has told who is in it.
inline void await_second_generation() {
  const auto before = GenerationAgent::of(shared_store(), 1, 0, 2);
  while (!before->has("next")) usleep(2000);
}

// A process: its rank in its first generation, and that.
struct Begins {
  int rank;
  int generation;
};

inline std::vector<RankResult> run_generations(const std::string& function,
                                               const std::vector<Begins>& processes,
                                               const Variables& more = {}) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(free_port());
  options.isServer = true;
  options.waitWorkers = false;
  const auto coordinator = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  std::vector<Variables> ranks;
  for (const Begins& process : processes) {
    Variables& variables = ranks.emplace_back(more);
    variables["TEST_RANK"] = std::to_string(process.rank);
    variables["TEST_PORT"] = std::to_string(options.port);
    variables["TEST_GENERATION"] = std::to_string(process.generation);
  }
  return run_ranks(function, ranks);
}

}  // namespace meshrun
