// A rank of a job on hosts that are network namespaces: runs broadcast, all_reduce, all_gather
// and reduce_scatter on 16 MiB, checks every result, and on rank 0 prints what crossed between the
// hosts and the time, the least of MESHRUN_TEST_ROUNDS (4) rounds; the first one also connects. One
// JSON object a line. Exit status 0: all results were right.
//
// usage: crossing_rank INTERFACE [HOSTS [sums]]
//   INTERFACE  by which this host reaches the others
//   HOSTS      a letter for each rank, its host: also compares sums with an oracle that adds in the
//              same order, and prints how many
//   sums       does that alone
#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/manager/distributed_manager.h"
#include "tests/acceptance/ranks/interface_bytes.h"
#include "tests/acceptance/ranks/sum_brackets.h"
#include "third_party/libtorch/shims.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun {
namespace {

constexpr int64_t kElements = 24 * 174763;  // of float32: 16 MiB; divisible by 4 and by 6

// Rounds of each case.
int rounds_asked_for() {
  const char* const text = std::getenv("MESHRUN_TEST_ROUNDS");
  return text == nullptr ? 4 : std::max(1, std::atoi(text));
}

// Whole numbers, so that sums are exact in any order.
at::Tensor contribution(int rank, at::ScalarType type) {
  return (at::arange(kElements, at::kFloat).remainder(13) + rank).to(type);
}

struct Case {
  std::string name;
  double tensors;  // what must cross, in tensors of 16 MiB of float32
  std::function<bool()> run;
};

int run(const std::string& interface, std::string_view places, bool sums_alone) {
  DistributedManager::initialize();
  auto& manager = DistributedManager::get();
  const ProcessGroupPtr group = manager.group();
  const int rank = manager.rank(), size = manager.world_size();
  const double hosts = count_hosts(manager);
  const auto sum_of_ranks = static_cast<float>(size * (size - 1) / 2);
  const at::Tensor pattern = contribution(0, at::kFloat);
  const at::Tensor sum = pattern * size + sum_of_ranks;
  const int64_t part = kElements / size;
  const auto all_reduced = [&](at::ScalarType type) {
    std::vector<at::Tensor> tensors = {contribution(rank, type)};
    group->allreduce(tensors)->wait();
    return at::equal(tensors[0], sum.to(type));
  };
  std::vector<Case> cases = {
      {"all_reduce", 2 * (hosts - 1), [&] { return all_reduced(at::kFloat); }},
      // Half the bytes a result, all of them a partial.
      {"all_reduce of bfloat16", 1.5 * (hosts - 1), [&] { return all_reduced(at::kBFloat16); }},
      {"all_gather", hosts - 1,
       [&] {
         at::Tensor all = at::zeros({kElements});
         at::Tensor mine = pattern.narrow(0, rank * part, part).contiguous();
         libtorch::all_gather_single(*group, all, mine)->wait();
         return at::equal(all, pattern);
       }},
      {"broadcast", hosts - 1,
       [&] {
         std::vector<at::Tensor> tensors = {rank == 1 ? pattern.clone() : at::zeros({kElements})};
         c10d::BroadcastOptions options;
         options.rootRank = 1;
         group->broadcast(tensors, options)->wait();
         return at::equal(tensors[0], pattern);
       }},
      {"reduce_scatter", hosts - 1,
       [&] {
         at::Tensor all = contribution(rank, at::kFloat), mine = at::zeros({part});
         libtorch::reduce_scatter_single(*group, mine, all)->wait();
         return at::equal(mine, sum.narrow(0, rank * part, part));
       }},
  };
  const char* backend = std::getenv("MESHRUN_BACKEND");
  const bool is_gloo = backend != nullptr && std::string_view(backend) == "gloo";
  if (sums_alone) cases.clear();
  const int rounds = rounds_asked_for();
  std::string wrong;
  for (const Case& each : cases) {
    int64_t least = 0;
    double seconds = 0;
    for (int round = 0; round < rounds; ++round) {
      const int64_t before = bytes_sent_by_all(manager, interface);
      group->barrier()->wait();
      const auto begin = std::chrono::steady_clock::now();
      try {
        if (!each.run()) wrong = each.name + " of 16 MiB";
      } catch (const c10::Error&) {
        // Gloo has no reduce_scatter of every kind; all ranks leave the row out.
        if (!is_gloo) throw;
        break;
      }
      group->barrier()->wait();
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      const int64_t bytes = bytes_sent_by_all(manager, interface) - before;
      if (round == 0 || bytes < least) least = bytes;
      if (round == 0 || took.count() < seconds) seconds = took.count();
    }
    if (rank != 0 || seconds == 0) continue;
    const double must = each.tensors * kElements * 4;
    std::puts(nlohmann::json{{"name", each.name},
                             {"bytes", least},
                             {"must", must},
                             {"share", static_cast<double>(least) / must},
                             {"seconds", seconds},
                             {"right", wrong.empty()}}
                  .dump()
                  .c_str());
  }
  if (!places.empty()) {
    const BracketReport report = check_brackets(manager, places);
    if (!report.wrong.empty()) wrong = report.wrong;
    if (rank == 0) {
      std::puts(nlohmann::json{
          {"name", "brackets"}, {"calls", report.calls}, {"told_apart", report.told_apart}}
                    .dump()
                    .c_str());
    }
  }
  DistributedManager::cleanup(true);
  if (wrong.empty()) return 0;
  std::fflush(stdout);  // the last line is what the list prints
  std::fprintf(stderr, "rank %d has a wrong result: %s\n", rank, wrong.c_str());
  return 1;
}

}  // namespace
}  // namespace meshrun

int main(int argc, char** argv) {
  const std::vector<std::string_view> words(argv + 1, argv + argc);
  const bool sums_alone = words.size() == 3 && words[2] == "sums";
  if (words.empty() || words.size() > 2 + size_t{sums_alone}) {
    std::fputs("usage: crossing_rank INTERFACE [HOSTS [sums]]\n", stderr);
    return 2;
  }
  try {
    return meshrun::run(argv[1], words.size() > 1 ? words[1] : "", sums_alone);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "crossing_rank: %s\n", error.what());
    return 1;
  }
}
