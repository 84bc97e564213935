#include "tests/parallel/collectives/worlds.h"

#include <cstdlib>
#include <exception>

#include "ATen/Parallel.h"
#include "ATen/ops/full.h"
#include "c10/util/Exception.h"
#include "core/fingerprint.h"
#include "gtest/gtest.h"
#include "tests/parallel/support/rank_processes.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun {

void run_in_worlds(const std::string& function, const std::vector<int>& sizes,
                   const std::vector<std::string>& backends) {
  for (const std::string& backend : backends) {
    for (const int size : sizes) {
      SCOPED_TRACE(backend + ", world of " + std::to_string(size));
      std::vector<Variables> ranks = env_ranks(size);
      for (Variables& rank : ranks) {
        rank["MESHRUN_BACKEND"] = backend;
        // How much of a matrix, and which part.
        for (const char* const name : {"MESHRUN_TEST_WHOLE", "MESHRUN_TEST_SEED"}) {
          if (const char* const value = std::getenv(name)) rank[name] = value;
        }
      }
      const bool as_users_do = size == 2 && backend == "ucx";
      expect_success(
          run_ranks(function, ranks, as_users_do ? RankStart::kExec : RankStart::kForkAtMain));
    }
  }
}

namespace {

DistributedManager& join() {
  // Ranks share the cores.
  at::set_num_threads(1);
  DistributedManager::initialize();
  return DistributedManager::get();
}

}  // namespace

JoinedWorld::JoinedWorld() : manager(join()), rank(manager.rank()), size(manager.world_size()) {}
// After an exception the others may wait elsewhere: a barrier would hide what happened.
JoinedWorld::~JoinedWorld() { DistributedManager::cleanup(std::uncaught_exceptions() == 0); }

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "not a c10::Error: " << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

void expect_error_on_all_ranks(const std::function<void()>& call, const std::string& part) {
  const std::string text = error_of(call);
  EXPECT_NE(text.find(part), std::string::npos) << text;
  const ProcessGroupPtr world = DistributedManager::get().world();
  std::vector<at::Tensor> first = {
      at::full({1}, static_cast<int64_t>(Fingerprint(text)), at::TensorOptions().dtype(at::kLong))};
  const int64_t own = first[0].item<int64_t>();
  world->broadcast(first)->wait();
  EXPECT_EQ(own, first[0].item<int64_t>()) << "rank 0 has other words than: " << text;
}

}  // namespace meshrun
