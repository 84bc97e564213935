// Random programs of collectives, against one process: sequences on random groups, with random
// sizes, dtypes and dimensions, by ranks that come at random times.
//
//   random_programs --seed 7 --programs 200 --world 4
//
// Program n is a function of seed + n alone, so `--seed S --programs 1` repeats it. Starts its own
// rank processes. Exit codes: 0, or 1 where a program failed; its seed and the command to repeat it
// are printed.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <random>
#include <thread>

#include "CLI/CLI.hpp"
#include "spdlog/fmt/fmt.h"
#include "tests/parallel/collectives/conformance/cases.h"
#include "tests/parallel/collectives/conformance/oracle.h"
#include "tests/parallel/support/rank_processes.h"
#include "third_party/libtorch/shims.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;
using Counts = std::vector<int64_t>;

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kHalf, at::kBFloat16,     at::kDouble,
                                     at::kInt,   at::kLong, at::kComplexFloat, at::kBool};

// Draws that ranks must have in common may not depend on what one of them has under way.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  // 0 <= result < bound; not a standard distribution, whose values differ between libraries.
  int64_t below(int64_t bound) {
    return static_cast<int64_t>(engine_() % static_cast<uint64_t>(bound));
  }
  bool one_in(int64_t count) { return below(count) == 0; }

 private:
  std::mt19937_64 engine_;
};

// One of c10d's under way: what it writes, and what one process says.
struct UnderWay {
  c10::intrusive_ptr<c10d::Work> work;
  std::function<Tensor()> actual;
  Tensor expected;
  std::string name;
};

class Program {
 public:
  Program(const RankWorld& world, const std::vector<NamedMembers>& groups, uint64_t seed)
      : world_(world),
        groups_(groups),
        seed_(seed),
        random_(seed),
        delay_(seed * 64 + world.rank()) {}

  void run() {
    const int64_t steps = 3 + random_.below(8);
    for (step_ = 0; step_ < steps; ++step_) {
      make_step();
      while (!under_way_.empty() && delay_.one_in(2)) finish_one();
    }
    while (!under_way_.empty()) finish_one();
  }

 private:
  // What a program is about: ranks that come apart by up to 2 ms.
  void come_late() {
    if (delay_.one_in(4))
      std::this_thread::sleep_for(std::chrono::microseconds(delay_.below(2000)));
  }

  Counts extents(int size) {
    Counts extents;
    // Now and then long enough for the protocols of long messages.
    const int64_t most = random_.one_in(10) ? 3000 : 9;
    for (int rank = 0; rank < size; ++rank) {
      extents.push_back(random_.one_in(4) ? 0 : random_.below(most));
    }
    return extents;
  }

  // All draws are made by all ranks, also by those that are not in the group.
  void make_step() {
    const NamedMembers& group = groups_[random_.below(static_cast<int64_t>(groups_.size()))];
    const bool is_member = group.members.group != nullptr;
    const int size = group.members.size;
    Setting setting{.type = kTypes[random_.below(std::size(kTypes))],
                    .dim = random_.below(3),
                    .extents = extents(size),
                    .layout = static_cast<MemoryLayout>(random_.below(3)),
                    .form = static_cast<SizesForm>(1 + random_.below(2)),
                    .use_fp32 = !random_.one_in(3),
                    .root = static_cast<int>(random_.below(size))};
    if (random_.one_in(3)) setting.dim -= 3;
    const int64_t which = random_.below(1 << 20);
    const bool is_c10d = random_.one_in(2), asks_gradient = random_.one_in(4);
    if (!is_member) return;
    come_late();
    if (is_c10d) {
      start(group, setting, which);
      return;
    }
    const std::vector<Operation> all = operations(group.members, setting);
    const Operation& operation = all[which % all.size()];
    // Thousands of terms are beyond the 16-bit types' range or precision.
    const bool is_half = setting.type == at::kHalf || setting.type == at::kBFloat16;
    const int64_t most = *std::max_element(setting.extents.begin(), setting.extents.end());
    if (asks_gradient && operation.is_differentiable && (!is_half || most < 10) &&
        (at::isFloatingType(setting.type) || at::isComplexType(setting.type))) {
      check_gradient(group, operation, setting);
    } else {
      check_result(world_, group, operation, setting);
    }
  }

  Tensor own(const Members& members, int64_t salt, int64_t count, at::ScalarType type) const {
    return of(members, members.rank, salt, count, type);
  }
  Tensor of(const Members& members, int rank, int64_t salt, int64_t count,
            at::ScalarType type) const {
    return content(members.world_ranks[rank], salt + static_cast<int64_t>(seed_ % 97), {count},
                   type);
  }
  Tensors of_ranks(const Members& members, int64_t salt, int64_t count, at::ScalarType type) const {
    Tensors all;
    for (int rank = 0; rank < members.size; ++rank) {
      all.push_back(of(members, rank, salt, count, type));
    }
    return all;
  }

  void start(const NamedMembers& group, const Setting& setting, int64_t which) {
    const Members& members = group.members;
    const at::ScalarType type = setting.type;
    const int64_t count = setting.extents[0];
    UnderWay next;
    switch (which % 7) {
      case 0: {
        auto tensors = std::make_shared<Tensors>(Tensors{own(members, 1, count, type)});
        c10d::AllreduceOptions options;
        const Tensors all = of_ranks(members, 1, count, type);
        next.expected = sum_in_rank_order(all);
        if (which % 2 == 1 && !at::isComplexType(type)) {
          options.reduceOp = c10d::ReduceOp::MIN;
          next.expected = all[0];
          for (const Tensor& tensor : all) next.expected = at::minimum(next.expected, tensor);
        }
        next.name = "allreduce";
        next.work = members.group->allreduce(*tensors, options);
        next.actual = [tensors] { return (*tensors)[0]; };
        break;
      }
      case 1: {
        auto tensors = std::make_shared<Tensors>(Tensors{own(members, 2, count, type)});
        c10d::BroadcastOptions options;
        options.rootRank = setting.root;
        next.name = "broadcast";
        next.work = members.group->broadcast(*tensors, options);
        next.expected = of(members, setting.root, 2, count, type);
        next.actual = [tensors] { return (*tensors)[0]; };
        break;
      }
      case 2: {
        auto outputs = std::make_shared<std::vector<Tensors>>(1);
        Tensors expected;
        for (int rank = 0; rank < members.size; ++rank) {
          (*outputs)[0].push_back(at::zeros({setting.extents[rank]}, type));
          expected.push_back(of(members, rank, 3, setting.extents[rank], type));
        }
        Tensors inputs = {own(members, 3, setting.extents[members.rank], type)};
        next.name = "allgather";
        next.work = members.group->allgather(*outputs, inputs);
        next.expected = at::cat(expected);
        next.actual = [outputs] { return at::cat((*outputs)[0]); };
        break;
      }
      case 3: {
        std::vector<Tensors> inputs(1);
        for (int rank = 0; rank < members.size; ++rank) {
          inputs[0].push_back(own(members, 10 + rank, setting.extents[rank], type));
        }
        const int64_t mine = setting.extents[members.rank];
        auto outputs = std::make_shared<Tensors>(Tensors{at::zeros({mine}, type)});
        next.name = "reduce_scatter";
        next.work = members.group->reduce_scatter(*outputs, inputs);
        next.expected = sum_in_rank_order(of_ranks(members, 10 + members.rank, mine, type));
        next.actual = [outputs] { return (*outputs)[0]; };
        break;
      }
      case 4: {
        const auto between = [&](int from, int to) {
          return setting.extents[(from + 2 * to) % members.size];
        };
        Counts to, from;
        Tensors sent, expected;
        for (int rank = 0; rank < members.size; ++rank) {
          to.push_back(between(members.rank, rank));
          from.push_back(between(rank, members.rank));
          sent.push_back(own(members, 30 + rank, to.back(), type));
          expected.push_back(of(members, rank, 30 + members.rank, from.back(), type));
        }
        Tensor input = at::cat(sent);
        next.expected = at::cat(expected);
        auto output = std::make_shared<Tensor>(at::zeros_like(next.expected));
        next.name = "alltoall_base";
        next.work = libtorch::all_to_all_single(*members.group, *output, input, from, to);
        next.actual = [output] { return *output; };
        break;
      }
      case 5: {
        next.name = "barrier";
        next.work = members.group->barrier();
        next.expected = at::zeros({1});
        next.actual = [] { return at::zeros({1}); };
        break;
      }
      default: {
        const int above = (members.rank + 1) % members.size;
        const int below = (members.rank + members.size - 1) % members.size;
        Tensors sent = {own(members, 40, setting.extents[members.rank], type)};
        auto received =
            std::make_shared<Tensors>(Tensors{at::zeros({setting.extents[below]}, type)});
        const int tag = static_cast<int>(step_);
        const auto sending = members.group->send(sent, above, tag);
        next.name = "recv";
        next.work = members.group->recv(*received, below, tag);
        next.expected = of(members, below, 40, setting.extents[below], type);
        next.actual = [received, sending] {
          sending->wait();
          return (*received)[0];
        };
      }
    }
    next.name +=
        fmt::format(" ({}) on group {}, rank {}", to_string(setting), group.name, members.rank);
    under_way_.push_back(std::move(next));
  }

  // Any of them: ranks wait in orders of their own.
  void finish_one() {
    const auto chosen = under_way_.begin() + delay_.below(static_cast<int64_t>(under_way_.size()));
    UnderWay done = std::move(*chosen);
    under_way_.erase(chosen);
    try {
      done.work->wait();
      const Tensor actual = done.actual();
      EXPECT_TRUE(at::equal(actual, done.expected)) << done.name << ":\n"
                                                    << actual << "\ninstead of\n"
                                                    << done.expected;
    } catch (const std::exception& error) {
      throw std::runtime_error(done.name + " raised: " + error.what());
    }
  }

  const RankWorld& world_;
  const std::vector<NamedMembers>& groups_;
  const uint64_t seed_;
  Random random_, delay_;
  int64_t step_ = 0;
  std::vector<UnderWay> under_way_;
};

// Every set of ranks. Where this rank is not among them, without a group.
std::vector<NamedMembers> all_groups(const RankWorld& world) {
  std::vector<NamedMembers> groups;
  for (int mask = 1; mask < 1 << world.size(); ++mask) {
    std::vector<int> ranks;
    for (int rank = 0; rank < world.size(); ++rank) {
      if ((mask >> rank & 1) != 0) ranks.push_back(rank);
    }
    Members members{.size = static_cast<int>(ranks.size()), .world_ranks = ranks};
    members.group = world.make_group(ranks);
    members.argument = members.group;
    if (members.group) members.rank = members.group->getRank();
    groups.push_back({fmt::format("of ranks {}", fmt::join(ranks, ", ")), members});
  }
  return groups;
}

constexpr char kAt[] = "program with seed ";

void run_programs() {
  const RankWorld world;
  const auto groups = all_groups(world);
  const uint64_t first = std::stoull(variable("MESHRUN_TEST_SEED"));
  const int64_t count = std::stoll(variable("MESHRUN_TEST_PROGRAMS"));
  const auto* result = &::testing::UnitTest::GetInstance()->ad_hoc_test_result();
  for (int64_t i = 0; i < count; ++i) {
    // The last such line is where a rank failed, or hung.
    std::printf("%s%llu\n", kAt, static_cast<unsigned long long>(first + i));
    std::fflush(stdout);
    Program(world, groups, first + i).run();
    if (result->Failed()) throw std::runtime_error("stopped at the first program that failed");
  }
}
[[maybe_unused]] const bool kRegistered = register_rank_function("random programs", run_programs);

// The seed of the last program that a rank began.
uint64_t last_seed(const std::string& output, uint64_t otherwise) {
  const size_t at = output.rfind(kAt);
  return at == std::string::npos ? otherwise : std::stoull(output.substr(at + sizeof(kAt) - 1));
}

std::string without_progress(const std::string& output) {
  std::string kept;
  size_t begin = 0;
  while (begin < output.size()) {
    const size_t end = std::min(output.find('\n', begin), output.size() - 1) + 1;
    if (output.compare(begin, sizeof(kAt) - 1, kAt) != 0) kept += output.substr(begin, end - begin);
    begin = end;
  }
  return kept;
}

int main_of_all(int argc, char** argv) {
  CLI::App app{"Random programs of collectives, against one process."};
  uint64_t seed = 1;
  int64_t programs = 200;
  int world = 4, minutes = 8;
  app.add_option("--seed", seed, "of the first program; the n-th has seed + n")
      ->capture_default_str();
  app.add_option("--programs", programs, "how many")->capture_default_str();
  app.add_option("--world", world, "ranks")->capture_default_str()->check(CLI::Range(1, 8));
  app.add_option("--minutes", minutes, "after which ranks that hang are killed")
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  std::vector<Variables> ranks = env_ranks(world);
  for (Variables& variables : ranks) {
    variables["MESHRUN_TEST_SEED"] = std::to_string(seed);
    variables["MESHRUN_TEST_PROGRAMS"] = std::to_string(programs);
  }
  const auto results =
      run_ranks("random programs", ranks, std::chrono::minutes(minutes), RankStart::kFork);
  uint64_t failed_at = UINT64_MAX;
  bool has_failed = false;
  for (size_t rank = 0; rank < results.size(); ++rank) {
    if (results[rank].exit_code == 0) continue;
    has_failed = true;
    failed_at = std::min(failed_at, last_seed(results[rank].output, seed));
    std::printf("rank %zu, exit code %d, signal %d:\n%s\n", rank, results[rank].exit_code,
                results[rank].signal, without_progress(results[rank].output).c_str());
  }
  if (has_failed) {
    std::printf("failed: seed %llu; to repeat it: %s --seed %llu --programs 1 --world %d\n",
                static_cast<unsigned long long>(failed_at), argv[0],
                static_cast<unsigned long long>(failed_at), world);
    return 1;
  }
  std::printf(
      "verdict: pass %lld programs of seeds %llu to %llu on %d ranks: the oracle's results\n",
      static_cast<long long>(programs), static_cast<unsigned long long>(seed),
      static_cast<unsigned long long>(seed + programs - 1), world);
  return 0;
}

}  // namespace
}  // namespace meshrun

int main(int argc, char** argv) { return meshrun::main_of_all(argc, argv); }
