// What the tests of Bagua's surface share: rank functions on given nodes, and errors as text.
#pragma once

#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "ATen/Parallel.h"
#include "ATen/core/Tensor.h"
#include "gtest/gtest.h"
#include "parallel/bagua/communication.h"
#include "parallel/manager/distributed_manager.h"
#include "tests/parallel/support/rank_processes.h"

namespace meshrun::bagua {

#define MESHRUN_RANK_FUNCTION(name)                                                       \
  void name();                                                                            \
  [[maybe_unused]] const bool name##_is_registered = register_rank_function(#name, name); \
  void name()

// What launchers tell ranks that run on nodes of so many ranks each, though all are on this one.
inline std::vector<Variables> ranks_on_nodes(const std::vector<int>& ranks_per_node) {
  int size = 0;
  for (const int count : ranks_per_node) size += count;
  std::vector<Variables> ranks = env_ranks(size);
  size_t rank = 0;
  for (size_t node = 0; node < ranks_per_node.size(); ++node) {
    for (int local = 0; local < ranks_per_node[node]; ++local, ++rank) {
      ranks[rank]["LOCAL_RANK"] = std::to_string(local);
      ranks[rank]["LOCAL_WORLD_SIZE"] = std::to_string(ranks_per_node[node]);
      ranks[rank]["NODE_RANK"] = std::to_string(node);
    }
  }
  return ranks;
}

inline std::vector<Variables> with(std::vector<Variables> ranks, const std::string& name,
                                   const std::string& value) {
  for (Variables& variables : ranks) variables[name] = value;
  return ranks;
}

// Bagua's surface in a job, on ucx unless TEST_BACKEND says otherwise. All ranks leave together.
struct Job {
  Job() {
    at::set_num_threads(1);  // ranks share the cores
    const char* backend = std::getenv("TEST_BACKEND");
    DistributedManager::initialize({.backend = backend != nullptr ? backend : "ucx"});
    init_process_group();
    rank = DistributedManager::get().rank();
    size = DistributedManager::get().world_size();
  }
  ~Job() { DistributedManager::cleanup(/*barrier=*/true); }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  int rank = 0;
  int size = 1;
};

// The text of the error that `call` raises, which must be of that type.
template <typename ErrorType, typename Call>
std::string text_of(const Call& call) {
  try {
    call();
  } catch (const ErrorType& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another exception: " << error.what();
    return "";
  }
  ADD_FAILURE() << "no exception";
  return "";
}

inline void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "\"" << part << "\" is not in: " << text;
}

}  // namespace meshrun::bagua
