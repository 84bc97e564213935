// One suite for the collectives on uneven pieces, over backends and worlds of real processes.
//
// The ranks' part runs anywhere ranks are started: MESHRUN_TEST_RANK_FUNCTION=conformance makes
// this program a rank of it, under whatever launcher.
//
// By default a sample of the matrix is run, by a random seed that is printed; MESHRUN_TEST_SEED
// repeats one, MESHRUN_TEST_WHOLE=1 (conformance_whole_test, for tools/test --soak) runs all.
#include <gtest/gtest.h>

#include <cstdio>
#include <random>
#include <string>

#include "tests/parallel/collectives/conformance/cases.h"
#include "tests/parallel/support/rank_processes.h"
#ifdef MESHRUN_CONFORMANCE_NCCL
#include "parallel/manager/device_choice.h"
#include "tests/parallel/support/one_gpu.h"
#endif
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun {
namespace {

using Part = void (*)(const RankWorld&);

bool register_part(const std::string& name, Part part) {
  return register_rank_function(name, [part] {
    const RankWorld world;
    part(world);
  });
}

void check_all(const RankWorld& world) {
  check_vectors(world);
  check_gradients_numerically(world);
  check_gradients(world);
  check_results(world);
}

[[maybe_unused]] const bool kRegistered[] = {
    register_part("results", check_results), register_part("gradients", check_gradients),
    register_part("numeric gradients", check_gradients_numerically),
    register_part("closed forms", check_vectors), register_part("conformance", check_all)};

// Seed of the sample; empty: everything is run.
const std::string& seed() {
  static const std::string seed = [] {
    if (!variable("MESHRUN_TEST_WHOLE").empty()) return std::string();
    return variable("MESHRUN_TEST_SEED", std::to_string(std::random_device{}()));
  }();
  return seed;
}

#ifdef MESHRUN_CONFORMANCE_NCCL
// CUDA does not outlive a fork.
constexpr RankStart kStart = RankStart::kExec;

// NCCL between ranks of one host that share a GPU.
constexpr const char kOnOneHost[] = "nccl on one host";

std::vector<Variables> ranks_of(const std::string& how, int world_size) {
  std::vector<Variables> ranks = ranks_on_one_gpu(
      world_size, how == kOnOneHost ? GpuSharing::kOnOneHost : GpuSharing::kAsHosts);
  // One rank takes turns with nobody: it runs the whole matrix.
  if (world_size == 1) ranks[0]["MESHRUN_TEST_SEED"] = "";
  return ranks;
}

const char* reason_to_skip(const std::string& how, const std::string& part, int world_size) {
  if (gpu_count() == 0) return "this process sees no GPU (nvidia-smi -L lists them)";
  if (how == kOnOneHost && other_nccl().empty()) {
    return "MESHRUN_TEST_NCCL names no libnccl.so.2 of version 2.30 or later";
  }
  // Difference quotients are thousands of calls, and ranks that take turns on a GPU need
  // milliseconds for each.
  return part == "numeric gradients" && world_size > 1 ? "in a world of one alone" : nullptr;
}
#else
// A whole exit, which a fork at main() has not; nothing here starts UCX or a thread.
constexpr RankStart kStart = RankStart::kFork;

std::vector<Variables> ranks_of(const std::string& backend, int world_size) {
  std::vector<Variables> ranks = env_ranks(world_size);
  for (Variables& variables : ranks) variables["MESHRUN_BACKEND"] = backend;
  return ranks;
}

const char* reason_to_skip(const std::string&, const std::string&, int) { return nullptr; }
#endif

void run_on(const std::string& how, const std::string& part, int world_size) {
  std::vector<Variables> ranks = ranks_of(how, world_size);
  for (Variables& variables : ranks) variables.emplace("MESHRUN_TEST_SEED", seed());
  const std::string said = "MESHRUN_TEST_SEED=" + ranks[0].at("MESHRUN_TEST_SEED");
  SCOPED_TRACE(said);
  std::puts(said.c_str());
  const auto results = run_ranks(part, ranks, std::chrono::minutes(8), kStart);
  expect_success(results);
  if (results[0].output.find("skipped") != std::string::npos) std::puts(results[0].output.c_str());
}

// A backend, or how ranks share a GPU; ranks.
using BackendAndWorld = std::tuple<const char*, int>;
class CollectivesConformanceTest : public ::testing::TestWithParam<BackendAndWorld> {
 protected:
  void run(const std::string& part) {
    const auto& [how, world_size] = GetParam();
    if (const char* const reason = reason_to_skip(how, part, world_size)) GTEST_SKIP() << reason;
    run_on(how, part, world_size);
  }
};

TEST_P(CollectivesConformanceTest, GivesWhatOneProcessComputes) { run("results"); }

TEST_P(CollectivesConformanceTest, GradientsEqualThoseOfTheUnshardedComputation) {
  run("gradients");
}

TEST_P(CollectivesConformanceTest, GradientsOfBothOrdersAreThoseOfDifferenceQuotients) {
  run("numeric gradients");
}

TEST_P(CollectivesConformanceTest, HoldsTheClosedForms) { run("closed forms"); }

#ifdef MESHRUN_CONFORMANCE_NCCL
INSTANTIATE_TEST_SUITE_P(Nccl, CollectivesConformanceTest,
                         ::testing::Combine(::testing::Values("nccl"),
                                            ::testing::Values(1, 2, 3, 4)));
INSTANTIATE_TEST_SUITE_P(NcclOnOneHost, CollectivesConformanceTest,
                         ::testing::Combine(::testing::Values(kOnOneHost),
                                            ::testing::Values(2, 3, 4)));
#else
INSTANTIATE_TEST_SUITE_P(Ucx, CollectivesConformanceTest,
                         ::testing::Combine(::testing::Values("ucx"),
                                            ::testing::Values(1, 2, 3, 4)));
INSTANTIATE_TEST_SUITE_P(Gloo, CollectivesConformanceTest,
                         ::testing::Combine(::testing::Values("gloo"), ::testing::Values(1, 3)));
#endif

}  // namespace
}  // namespace meshrun
