// The v-collectives of backends that have none, in real rank processes over Gloo and, for the path
// that groups calls, over ucx's own calls: worlds of 1 to 4 against what one process computes.
#include "parallel/comm/point_to_point/point_to_point_v_collectives.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "parallel/base/collective_errors.h"
#include "parallel/base/errors.h"
#include "parallel/comm/process_group_factory.h"
#include "parallel/comm/ucx/backend.h"
#include "parallel/comm/v_collectives_of.h"
#include "parallel/kernels/piece_kernels.h"
#include "tests/parallel/support/rank_processes.h"
#include "tests/parallel/support/v_calls.h"
#include "torch/csrc/distributed/c10d/PrefixStore.hpp"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"
#include "torch/csrc/distributed/c10d/TCPStore.hpp"

namespace meshrun {
namespace {

using at::Tensor;
using Extents = std::vector<int64_t>;

int number(const char* variable) { return std::atoi(std::getenv(variable)); }

// A group of all ranks, and the adapter over its backend for the CPU.
struct World {
  explicit World(const std::string& backend) {
    // Ranks share the cores.
    at::set_num_threads(1);
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(number("MASTER_PORT"));
    options.isServer = rank == 0;
    options.numWorkers = size;
    options.waitWorkers = true;
    store = c10::make_intrusive<c10d::TCPStore>(std::getenv("MASTER_ADDR"), options);
    group = make_process_group(c10::make_intrusive<c10d::PrefixStore>("world", store), rank, size,
                               backend);
  }
  ~World() { group->barrier()->wait(); }
  PointToPointVCollectives collectives(PointToPointVCollectives::Compare compare = nullptr) const {
    return PointToPointVCollectives(group->getBackend(c10::DeviceType::CPU), std::move(compare));
  }

  int rank = number("RANK");
  int size = number("WORLD_SIZE");
  c10::intrusive_ptr<c10d::Store> store;
  c10::intrusive_ptr<c10d::ProcessGroup> group;
};

#define MESHRUN_RANK_FUNCTION(name)                                                       \
  void name();                                                                            \
  [[maybe_unused]] const bool name##_is_registered = register_rank_function(#name, name); \
  void name()

// Uneven, equal, some empty, all but one empty, all empty.
std::vector<Extents> size_patterns(int world) {
  const auto ranks = static_cast<size_t>(world);
  std::vector<Extents> patterns(5, Extents(ranks, 0));
  for (size_t r = 0; r < ranks; ++r) {
    patterns[0][r] = static_cast<int64_t>(2 * r + 1);
    patterns[1][r] = 3;
    patterns[2][r] = r % 2 == 0 ? 4 : 0;
  }
  patterns[3].back() = 5;
  return patterns;
}

int64_t sum(const Extents& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
}

// [3, 2, 4] with `extent` along dim; values that tell where they belong, and add up exactly.
Tensor sample(int64_t extent, int64_t dim, at::ScalarType type, int seed) {
  Extents shape = {3, 2, 4};
  shape[static_cast<size_t>(dim)] = extent;
  const int64_t count = 24 / Extents{3, 2, 4}[static_cast<size_t>(dim)] * extent;
  return ((at::arange(count) * 7 + seed * 11) % 61).reshape(shape).to(type);
}

Tensor slice(const Tensor& tensor, const Extents& sizes, int64_t dim, int rank) {
  const int64_t begin = std::accumulate(sizes.begin(), sizes.begin() + rank, int64_t{0});
  return tensor.narrow(dim, begin, sizes[static_cast<size_t>(rank)]);
}

// The same values in memory that is not contiguous.
Tensor strided(const Tensor& tensor) {
  const int64_t last = tensor.dim() - 1;
  return at::stack({tensor, tensor}, last + 1).select(last + 1, 0);
}

Tensor unwritten(const Tensor& like) {
  return at::full_like(like, 1, at::MemoryFormat::Contiguous);
}

void expect_equal(const Tensor& actual, const Tensor& expected, const std::string& what) {
  EXPECT_TRUE(at::equal(actual, expected)) << what << "\n" << actual << "\nexpected\n" << expected;
}

const std::vector<at::ScalarType>& types() {
  static const auto* const types = new std::vector<at::ScalarType>{
      at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong,        at::kInt,
      at::kShort, at::kChar,   at::kByte, at::kBool,     at::kComplexFloat};
  return *types;
}

// Every collective along dim 0, 1 and 2 (the last), on contiguous and on strided tensors.
void run_all(const World& world, at::ScalarType type) {
  PointToPointVCollectives collectives = world.collectives();
  for (const Extents& sizes : size_patterns(world.size)) {
    for (int64_t dim = 0; dim < 3; ++dim) {
      for (const bool is_strided : {false, true}) {
        const auto laid = [&](const Tensor& t) { return is_strided ? strided(t) : t; };
        const std::string what = std::string(c10::toString(type)) + " dim " + std::to_string(dim) +
                                 (is_strided ? " strided" : "");
        const Tensor all = sample(sum(sizes), dim, type, 0);
        const Tensor mine = slice(all, sizes, dim, world.rank);
        const int root = world.size - 1;

        Tensor output = laid(unwritten(all));
        all_gather_v(collectives, output, laid(mine.contiguous()), sizes, dim, {})->wait();
        expect_equal(output, all, "all_gather_v " + what);

        output = laid(unwritten(all));
        gather_v(collectives, output, laid(mine.contiguous()), sizes, dim, root, {})->wait();
        expect_equal(output, world.rank == root ? all : unwritten(all), "gather_v " + what);

        output = laid(unwritten(mine));
        scatter_v(collectives, output, laid(all), sizes, dim, root, {})->wait();
        expect_equal(output, mine, "scatter_v " + what);

        // The backend adds nothing itself, so its dtypes do not limit this; bool adds as "or".
        Tensor expected = slice(all, sizes, dim, world.rank).contiguous().clone();
        for (int rank = 1; rank < world.size; ++rank) {
          expected.add_(slice(sample(sum(sizes), dim, type, rank), sizes, dim, world.rank));
        }
        output = laid(unwritten(mine));
        reduce_scatter_v(collectives, output, laid(sample(sum(sizes), dim, type, world.rank)),
                         sizes, dim, {})
            ->wait();
        expect_equal(output, expected, "reduce_scatter_v " + what);

        // Rank r sends sizes[r] to each, so it receives sizes[s] from rank s.
        const auto ranks = static_cast<size_t>(world.size);
        const Extents sent(ranks, sizes[static_cast<size_t>(world.rank)]);
        std::vector<Tensor> pieces;
        for (int rank = 0; rank < world.size; ++rank) {
          const Extents theirs(ranks, sizes[static_cast<size_t>(rank)]);
          pieces.push_back(slice(sample(sum(theirs), dim, type, rank), theirs, dim, world.rank));
        }
        output = laid(unwritten(all));
        all_to_all_v(collectives, output, sizes, dim,
                     laid(sample(sum(sent), dim, type, world.rank)), sent, dim, {})
            ->wait();
        expect_equal(output, at::cat(pieces, dim), "all_to_all_v " + what);
      }
    }
  }
}

MESHRUN_RANK_FUNCTION(every_collective_over_gloo) {
  const World world("gloo");
  for (const at::ScalarType type : types()) run_all(world, type);
}

MESHRUN_RANK_FUNCTION(every_collective_coalesced) {
  const World world("ucx");
  ASSERT_TRUE(world.group->getBackend(c10::DeviceType::CPU)->supportsCoalescing());
  for (const at::ScalarType type :
       {at::kFloat, at::kBFloat16, at::kLong, at::kShort, at::kBool, at::kComplexFloat}) {
    run_all(world, type);
  }
}

MESHRUN_RANK_FUNCTION(own_slices) {
  const World world("gloo");
  PointToPointVCollectives collectives = world.collectives();
  const Extents sizes(static_cast<size_t>(world.size), 2);
  const Tensor all = sample(sum(sizes), 1, at::kFloat, 0);
  // The input may be its slice of the output.
  Tensor output = unwritten(all);
  slice(output, sizes, 1, world.rank).copy_(slice(all, sizes, 1, world.rank));
  all_gather_v(collectives, output, slice(output, sizes, 1, world.rank), sizes, 1, {})->wait();
  expect_equal(output, all, "in place");
  // Or a view of that memory with other values.
  const Tensor numbers = sample(sum(sizes), 1, at::kComplexFloat, 0) * c10::complex<float>(1, 2);
  for (const bool is_negative : {false, true}) {
    const auto opposite = [&](const Tensor& t) {
      return is_negative ? t.neg() : t.conj().resolve_conj();
    };
    const auto seen_as = [&](const Tensor& t) { return is_negative ? at::_neg_view(t) : t.conj(); };
    for (const bool to_all : {true, false}) {
      output = unwritten(numbers);
      const Tensor own = slice(output, sizes, 1, world.rank);
      own.copy_(opposite(slice(numbers, sizes, 1, world.rank)));
      if (to_all) {
        all_gather_v(collectives, output, seen_as(own), sizes, 1, {})->wait();
      } else {
        gather_v(collectives, output, seen_as(own), sizes, 1, 0, {})->wait();
      }
      if (to_all || world.rank == 0) expect_equal(output, numbers, "in place, another view");
    }
  }
  // What the caller has written is left alone.
  Extents to_others = sizes;
  to_others[static_cast<size_t>(world.rank)] = 0;
  output = at::full({sum(sizes), 3}, 9.0f);
  const Tensor input = at::full({sum(to_others), 3}, static_cast<float>(world.rank));
  all_to_all_v(collectives, output, sizes, 0, input, to_others, 0, {})->wait();
  for (int rank = 0; rank < world.size; ++rank) {
    const float expected = rank == world.rank ? 9.0f : static_cast<float>(rank);
    EXPECT_TRUE((slice(output, sizes, 0, rank) == expected).all().item<bool>());
  }
}

MESHRUN_RANK_FUNCTION(own_slices_left_in_the_input) {
  const World world("gloo");
  const Extents sizes(static_cast<size_t>(world.size), 2);
  Extents from_others = sizes;
  from_others[static_cast<size_t>(world.rank)] = 0;
  const Tensor input = at::full({sum(sizes), 3}, static_cast<float>(world.rank));
  const Tensor output = at::full({sum(from_others), 3}, 9.0f);
  all_to_all_v(world.collectives(), output, from_others, 0, input, sizes, 0, {})->wait();
  for (int rank = 0; rank < world.size; ++rank) {
    EXPECT_TRUE((slice(output, from_others, 0, rank) == rank).all().item<bool>());
  }
}

MESHRUN_RANK_FUNCTION(transposes) {
  const World world("gloo");
  const auto ranks = static_cast<int64_t>(world.size);
  // [2 P, 3 P]: rank r has columns 3r.. and asks for rows 2r.. .
  const Tensor whole = at::arange(6 * ranks * ranks, at::kFloat).reshape({2 * ranks, 3 * ranks});
  const Tensor mine = whole.narrow(1, 3 * world.rank, 3).contiguous();
  const Tensor output = at::zeros({2, 3 * ranks});
  const Extents rows(static_cast<size_t>(ranks), 2), columns(static_cast<size_t>(ranks), 3);
  all_to_all_v(world.collectives(), output, columns, 1, mine, rows, 0, {})->wait();
  expect_equal(output, whole.narrow(0, 2 * world.rank, 2), "transposed");
}

MESHRUN_RANK_FUNCTION(sums_of_halves) {
  const World world("gloo");
  PointToPointVCollectives collectives = world.collectives();
  const Extents sizes(static_cast<size_t>(world.size), 1);
  // 2048 + 1 + 1 + ...: float16 alone rounds every 1 away.
  const Tensor input = at::full({world.size}, world.rank == 0 ? 2048.0 : 1.0, at::kHalf);
  const Tensor output = at::zeros({1}, at::kHalf);
  CollectiveSpec call;
  reduce_scatter_v(collectives, output, input, sizes, 0, call)->wait();
  const Tensor once = at::scalar_tensor(2048.0 + (world.size - 1), at::kFloat).to(at::kHalf);
  EXPECT_EQ(output.item<double>(), once.item<double>());
  call.use_fp32 = false;
  reduce_scatter_v(collectives, output, input, sizes, 0, call)->wait();
  EXPECT_EQ(output.item<double>(), 2048.0);
}

MESHRUN_RANK_FUNCTION(several_under_way) {
  const World world("gloo");
  PointToPointVCollectives collectives = world.collectives();
  const Extents sizes = size_patterns(world.size)[0];
  std::vector<Tensor> outputs;
  std::vector<PointToPointVCollectives::WorkPtr> works;
  CollectiveSpec call;
  call.async = true;
  for (int i = 0; i < 4; ++i) {
    const Tensor all = sample(sum(sizes), 1, at::kFloat, i);
    outputs.push_back(unwritten(all));
    works.push_back(all_gather_v(collectives, outputs.back(),
                                 slice(all, sizes, 1, world.rank).contiguous(), sizes, 1, call));
  }
  // Polled, not waited for: somebody else must move it forward.
  while (!works[3]->isCompleted()) std::this_thread::yield();
  EXPECT_TRUE(works[3]->isSuccess());
  for (int i = 0; i < 4; ++i) {
    works[static_cast<size_t>(i)]->wait();
    expect_equal(outputs[static_cast<size_t>(i)], sample(sum(sizes), 1, at::kFloat, i),
                 "call " + std::to_string(i));
  }
}

// Along a dim whose slices are put into place after they have come.
void check_dropped(const std::string& backend) {
  const World world(backend);
  PointToPointVCollectives collectives = world.collectives();
  CollectiveSpec call;
  call.async = true;
  for (const Extents& sizes : size_patterns(world.size)) {
    const Tensor all = sample(sum(sizes), 1, at::kFloat, 0);
    const Tensor output = unwritten(all);
    all_gather_v(collectives, output, slice(all, sizes, 1, world.rank).contiguous(), sizes, 1,
                 call);
    expect_equal(output, all, "without a wait");
  }
}

MESHRUN_RANK_FUNCTION(dropped_over_gloo) { check_dropped("gloo"); }
MESHRUN_RANK_FUNCTION(dropped_coalesced) { check_dropped("ucx"); }

MESHRUN_RANK_FUNCTION(problems) {
  const World world("gloo");
  const Tensor tensor = at::zeros({4});
  const Extents sizes(static_cast<size_t>(world.size), 4);
  const auto raised = [](const PointToPointVCollectives::WorkPtr& work) -> std::string {
    try {
      work->wait();
    } catch (const CollectiveArgumentError& error) {
      return error.what_without_backtrace();
    }
    return "nothing";
  };
  PointToPointVCollectives collectives = world.collectives();
  CollectiveSpec call;
  call.problem = "sizes must not be purple";
  EXPECT_EQ(raised(all_gather_v(collectives, {}, {}, {}, 7, call)), "sizes must not be purple");
  // What a caller should have found.
  EXPECT_EQ(raised(all_gather_v(collectives, tensor, tensor, sizes, 1, {})),
            "the input is [4], and must have 4 along dim 1");
  const Tensor wider = at::zeros({4 * world.size, 3});
  const std::string differ =
      "input [4, 2] and output [" + std::to_string(4 * world.size) + ", 3] differ beside dim 0";
  EXPECT_EQ(raised(all_gather_v(collectives, wider, at::zeros({4, 2}), sizes, 0, {})), differ);
  if (world.size > 1) {
    EXPECT_EQ(
        raised(all_gather_v(collectives, tensor, tensor, sizes, 0, {})),
        "the output is [4], and must have " + std::to_string(4 * world.size) + " along dim 0");
  }
  // With headers compared, it is for `compare` to raise, before anything is sent.
  std::vector<std::string> asked;
  PointToPointVCollectives compared = world.collectives([&](const Comparison& comparison) {
    asked.push_back(comparison.what + " | " + comparison.problem);
    if (comparison.problem.empty()) {
      return all_gather_v(collectives, at::zeros({0}), at::zeros({0}), Extents(sizes.size(), 0), 0,
                          {});
    }
    CollectiveSpec failing;
    failing.problem = "raised by compare";
    return all_gather_v(collectives, {}, {}, {}, 0, failing);
  });
  EXPECT_EQ(raised(reduce_scatter_v(compared, {}, {}, {}, 0, call)), "raised by compare");
  const Tensor gathered = at::zeros({4 * world.size});
  EXPECT_EQ(raised(all_gather_v(compared, gathered, tensor, sizes, 0, {})), "nothing");
  ASSERT_EQ(asked.size(), 2);
  EXPECT_EQ(asked[0], "reduce_scatter_v | sizes must not be purple");
  EXPECT_NE(asked[1].find("all_gather_v of Float [-1] along dim 0, sizes [4"), std::string::npos)
      << asked[1];
}

MESHRUN_RANK_FUNCTION(compared_headers) {
  const World world("ucx");
  auto& ucx = dynamic_cast<UcxBackend&>(*world.group->getBackend(c10::DeviceType::CPU));
  PointToPointVCollectives collectives =
      world.collectives([&](Comparison comparison) { return ucx.compare(std::move(comparison)); });
  const Extents sizes(static_cast<size_t>(world.size), 2);
  const Tensor input = at::ones({2, 3});
  const Tensor output = at::zeros({2 * world.size, 3});
  all_gather_v(collectives, output, input, sizes, 0, {})->wait();
  EXPECT_TRUE((output == 1).all().item<bool>());
  // One rank means something else: every rank hears of it, and nothing is sent.
  const Tensor other = at::zeros({3, 2 * world.size});
  VCollectives::WorkPtr work =
      world.rank == 1 ? all_gather_v(collectives, other, at::ones({3, 2}), sizes, 1, {})
                      : all_gather_v(collectives, output, input, sizes, 0, {});
  EXPECT_THROW(work->wait(), CollectiveMismatchError);
  CollectiveSpec call;
  if (world.rank == 0) call.problem = "rank 0 is confused";
  EXPECT_THROW(all_gather_v(collectives, output, input, sizes, 0, call)->wait(),
               CollectiveArgumentError);
  // The group is as good as before.
  output.zero_();
  all_gather_v(collectives, output, input, sizes, 0, {})->wait();
  EXPECT_TRUE((output == 1).all().item<bool>());
}

// The same sentence on all ranks, before any data moves, and the group is as good as before.
void expect_splits_compared(const World& world, PointToPointVCollectives& collectives,
                            const std::string& call) {
  const int last = world.size - 1;
  const auto ranks = static_cast<size_t>(world.size);
  const auto raised = [&](Extents to, Extents from, CollectiveSpec given = {}) -> std::string {
    const Tensor output = at::full({sum(from), 3}, -1.0f);
    const auto since = std::chrono::steady_clock::now();
    std::string text = "nothing";
    try {
      all_to_all_v(collectives, output, from, 0, at::full({sum(to), 3}, 1.0f), to, 0,
                   std::move(given))
          ->wait();
    } catch (const CollectiveMismatchError& error) {
      text = error.what_without_backtrace();
    } catch (const CollectiveArgumentError& error) {
      text = error.what_without_backtrace();
    }
    EXPECT_EQ((output == -1).all().item<bool>(), text != "nothing" || output.numel() == 0);
    EXPECT_LT(std::chrono::steady_clock::now() - since, std::chrono::seconds(5));
    return text;
  };
  const Extents ones(ranks, 1);
  const auto with = [&](int rank, size_t index, int64_t size) {
    Extents sizes = ones;
    if (world.rank == rank) sizes[index] = size;
    return sizes;
  };
  const std::string disagree = "Ranks disagree on the sizes of " + call;
  const std::string end = ". No tensor was written, and the group can still be used.";
  for (const int64_t wrong : {0, 2}) {
    // The last rank expects other than 1 from rank 0, then rank 0 sends other than 1 to it.
    std::string text = raised(ones, with(last, 0, wrong));
    EXPECT_EQ(text.substr(0, disagree.size()), disagree) << text;
    EXPECT_NE(text.find("rank 0 sends 3 to rank " + std::to_string(last) + ", which expects " +
                        std::to_string(3 * wrong)),
              std::string::npos)
        << text;
    EXPECT_EQ(text.substr(text.size() - end.size()), end) << text;
    EXPECT_EQ(raised(ones, ones), "nothing");
    text = raised(with(0, ranks - 1, wrong), ones);
    EXPECT_NE(text.find("rank 0 sends " + std::to_string(3 * wrong) + " to rank " +
                        std::to_string(last) + ", which expects 3"),
              std::string::npos)
        << text;
    EXPECT_EQ(raised(ones, ones), "nothing");
  }
  CollectiveSpec given;
  if (world.rank == last) given.problem = "sizes must not be purple";
  std::string text = raised(ones, ones, given);
  EXPECT_NE(
      text.find("wrong arguments on rank " + std::to_string(last) + ": sizes must not be purple"),
      std::string::npos)
      << text;
  given = {};
  given.requires_grad = world.rank == last;
  text = raised(ones, ones, given);
  EXPECT_NE(text.find("with a gradient"), std::string::npos) << text;
  // Equal sizes by different plans.
  given = {};
  given.agreed = world.rank == last ? 2 : 1;
  given.say([plan = given.agreed] { return ", plan " + std::to_string(plan); });
  text = raised(ones, ones, given);
  for (const char* const plan : {", plan 1", ", plan 2"}) {
    EXPECT_NE(text.find(plan), std::string::npos) << text;
  }
  EXPECT_EQ(raised(ones, ones), "nothing");
}

MESHRUN_RANK_FUNCTION(splits_over_gloo) {
  const World world("gloo");
  PointToPointVCollectives collectives = world.collectives();
  expect_splits_compared(world, collectives, "all_to_all_v of group");
}

MESHRUN_RANK_FUNCTION(splits_compared_by_headers) {
  const World world("ucx");
  auto& ucx = dynamic_cast<UcxBackend&>(*world.group->getBackend(c10::DeviceType::CPU));
  PointToPointVCollectives collectives =
      world.collectives([&](Comparison comparison) { return ucx.compare(std::move(comparison)); });
  expect_splits_compared(world, collectives, "all_to_all_v number");
}

MESHRUN_RANK_FUNCTION(found_for_a_group) {
  const World world("gloo");
  const Extents sizes = size_patterns(world.size)[0];
  const Tensor all = sample(sum(sizes), 0, at::kFloat, 0);
  const Tensor output = unwritten(all);
  VCollectivesOf collectives(world.group, c10::DeviceType::CPU);
  all_gather_v(*collectives, output, slice(all, sizes, 0, world.rank), sizes, 0, {})->wait();
  expect_equal(output, all, "found");
  EXPECT_NE(dynamic_cast<PointToPointVCollectives*>(&*collectives), nullptr);
  EXPECT_THROW(VCollectivesOf(world.group, c10::DeviceType::CUDA), BackendError);
}

void run(const std::string& function, std::initializer_list<int> worlds = {1, 2, 3, 4}) {
  for (const int world : worlds) {
    SCOPED_TRACE(function + " in a world of " + std::to_string(world));
    expect_success(run_ranks(function, env_ranks(world)));
  }
}

TEST(PointToPointVCollectivesTest, EveryCollectiveEqualsItsDefinitionOverGloo) {
  run("every_collective_over_gloo");
}
TEST(PointToPointVCollectivesTest, EveryCollectiveEqualsItsDefinitionWhereCallsCoalesce) {
  run("every_collective_coalesced");
}
TEST(PointToPointVCollectivesTest, OwnSlicesAreCopiedOrLeftAlone) {
  run("own_slices", {1, 3});
  run("own_slices_left_in_the_input", {1, 3});
}
TEST(PointToPointVCollectivesTest, SlicesMayBeCutAndLaidAlongDifferentDims) {
  run("transposes", {2, 3});
}
TEST(PointToPointVCollectivesTest, HalvesAreAddedInFloat32AndRoundedOnce) {
  run("sums_of_halves", {2, 4});
}
TEST(PointToPointVCollectivesTest, SeveralAreUnderWayAtOnceAndCanBePolled) {
  run("several_under_way", {3});
}
TEST(PointToPointVCollectivesTest, AWorkThatNobodyWaitsForCompletesItsOutput) {
  run("dropped_over_gloo", {3});
  run("dropped_coalesced", {3});
}
TEST(PointToPointVCollectivesTest, AProblemIsAnArgumentErrorOfTheWork) { run("problems", {1, 2}); }
TEST(PointToPointVCollectivesTest, WithComparedHeadersAWrongCallIsAnErrorOnEveryRank) {
  run("compared_headers", {3});
}
TEST(PointToPointVCollectivesTest, SplitsOfAnAllToAllAreComparedBeforeDataMoves) {
  run("splits_over_gloo", {2, 3});
  run("splits_compared_by_headers", {2, 3});
}
TEST(VCollectivesOfTest, TakesTheAdapterWhereTheBackendHasNone) { run("found_for_a_group", {2}); }

TEST(PieceKernelsTest, WhatIsPackedUnpacksToTheSame) {
  const Tensor tensor = at::arange(2 * 7 * 3, at::kFloat).reshape({2, 7, 3});
  const std::vector<PackedPiece> pieces = {{0, 2, 0}, {2, 1, 16}, {5, 2, 24}};
  const Tensor buffer = at::zeros({40});
  pack_pieces(buffer, tensor, 1, pieces);
  expect_equal(buffer.narrow(0, 16, 6), tensor.narrow(1, 2, 1).reshape({6}), "a piece");
  const Tensor back = at::zeros_like(tensor);
  unpack_pieces(back, 1, buffer, pieces);
  Tensor expected = tensor.clone();
  expected.narrow(1, 3, 2).zero_();
  expect_equal(back, expected, "unpacked");
}

}  // namespace
}  // namespace meshrun
