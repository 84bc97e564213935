// NCCL between two to four ranks that share one GPU: what travels, on which streams, in CUDA
// graphs, and what makes the host wait.
#include <ATen/ATen.h>
#include <ATen/cuda/CUDAGraph.h>
#include <ATen/record_function.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <gtest/gtest.h>
#include <nccl.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <vector>

#include "parallel/collectives/all_reduce.h"
#include "parallel/collectives/call/output_memory.h"
#include "parallel/collectives/collectives.h"
#include "parallel/comm/interface/stream_calls.h"
#include "parallel/comm/v_collectives_of.h"
#include "parallel/manager/device_choice.h"
#include "parallel/nn/distributed_data_parallel.h"
#include "parallel/nn/shared_module.h"
#include "tests/parallel/support/host_waits.h"
#include "tests/parallel/support/one_gpu.h"
#include "tests/parallel/support/rank_processes.h"
#include "tests/parallel/support/rank_world.h"
#include "tests/parallel/support/v_calls.h"

namespace meshrun {
namespace {

using at::Tensor;
using c10d::ReduceOp;
using torch::autograd::grad;
using Extents = std::vector<int64_t>;

// Ends a rank that makes the host wait for the GPU through c10; host_waits() counts the others,
// too.
class NoHostWaits {
 public:
  NoHostWaits() { set(c10::cuda::SyncDebugMode::L_ERROR); }
  ~NoHostWaits() { set(c10::cuda::SyncDebugMode::L_DISABLED); }
  NoHostWaits(const NoHostWaits&) = delete;
  NoHostWaits& operator=(const NoHostWaits&) = delete;

 private:
  static void set(c10::cuda::SyncDebugMode mode) {
    c10::cuda::warning_state().set_sync_debug_mode(mode);
  }
};

struct KeptWarnings : c10::WarningHandler {
  void process(const c10::Warning& warning) override { text += warning.msg() + "\n"; }
  std::string text;
};

// Sizes of each route (gather_route.h), some of them zero.
std::vector<Extents> size_patterns(int world) {
  const auto ranks = static_cast<size_t>(world);
  std::vector<Extents> patterns = {Extents(ranks, 3), Extents(ranks, 8), Extents(ranks, 0)};
  patterns[1].back() = 7;
  patterns[2].back() = 5;
  return patterns;
}

int64_t sum(const Extents& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
}

// [3, 2, 4] with `extent` along dim; small whole numbers, whose sums are exact in every dtype.
Tensor sample(const RankWorld& world, int64_t extent, int64_t dim, at::ScalarType type, int seed) {
  Extents shape = {3, 2, 4};
  const int64_t count = 24 / shape[static_cast<size_t>(dim)] * extent;
  shape[static_cast<size_t>(dim)] = extent;
  return ((at::arange(count) * 7 + seed * 11) % 13).reshape(shape).to(type).to(world.device());
}

Tensor slice(const Tensor& tensor, const Extents& sizes, int64_t dim, int rank) {
  const int64_t begin = std::accumulate(sizes.begin(), sizes.begin() + rank, int64_t{0});
  return tensor.narrow(dim, begin, sizes[static_cast<size_t>(rank)]);
}

#define MESHRUN_RANK_FUNCTION(name)                                                     \
  void name(const RankWorld& world);                                                    \
  [[maybe_unused]] const bool name##_is_registered = register_rank_function(#name, [] { \
    const RankWorld world;                                                              \
    name(world);                                                                        \
  });                                                                                   \
  void name(const RankWorld& world)

MESHRUN_RANK_FUNCTION(every_dtype_travels) {
  for (const at::ScalarType type :
       {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong, at::kInt, at::kShort,
        at::kChar, at::kByte, at::kBool, at::kComplexFloat, at::kComplexDouble}) {
    for (const Extents& sizes : size_patterns(world.size())) {
      for (const int64_t dim : {0, 2}) {
        SCOPED_TRACE(std::string(c10::toString(type)) + " along dim " + std::to_string(dim));
        const Tensor all = sample(world, sum(sizes), dim, type, 0);
        const Tensor own = slice(all, sizes, dim, world.rank());
        EXPECT_TRUE(at::equal(all_gather_v(own, sizes, dim, true, world.group()), all));
        const auto sent = [&](int rank) { return sample(world, sum(sizes), dim, type, rank); };
        Tensor expected = slice(sent(0), sizes, dim, world.rank()).clone();
        for (int rank = 1; rank < world.size(); ++rank) {
          expected.add_(slice(sent(rank), sizes, dim, world.rank()));
        }
        EXPECT_TRUE(at::equal(reduce_scatter_v(sent(world.rank()), sizes, dim, true, world.group()),
                              expected));
      }
    }
  }
}

// Rank 0 has a profiler, so that its calls go by c10d's methods, and those of the others do not.
MESHRUN_RANK_FUNCTION(mixed_ways) {
  const auto backend = world.group()->getBackend(c10::DeviceType::CUDA);
  auto& queued = dynamic_cast<StreamCalls&>(*backend);
  if (world.rank() == 0) {
    at::addGlobalCallback(at::RecordFunctionCallback(
        [](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> { return nullptr; }));
  }
  EXPECT_EQ(queued.takes_calls(world.device()), world.rank() != 0);
  for (const Extents& sizes : size_patterns(world.size())) {
    for (const int64_t dim : {0, 2}) {
      const auto sent = [&](int rank) { return sample(world, sum(sizes), dim, at::kFloat, rank); };
      const Tensor own = slice(sent(0), sizes, dim, world.rank());
      EXPECT_TRUE(at::equal(all_gather_v(own, sizes, dim, true, world.group()), sent(0)));
      const Extents received(sizes.size(), sizes[static_cast<size_t>(world.rank())]);
      const Tensor exchanged =
          all_to_all_v(sent(world.rank()), sizes, received, dim, dim, world.group());
      std::vector<Tensor> expected;
      Tensor sum_of_all;
      for (int rank = 0; rank < world.size(); ++rank) {
        expected.push_back(slice(sent(rank), sizes, dim, world.rank()));
        sum_of_all = rank == 0 ? expected[0].clone() : sum_of_all + expected.back();
      }
      EXPECT_TRUE(at::equal(exchanged, at::cat(expected, dim)));
      EXPECT_TRUE(at::equal(reduce_scatter_v(sent(world.rank()), sizes, dim, true, world.group()),
                            sum_of_all));
    }
  }
  at::clearCallbacks();
}

MESHRUN_RANK_FUNCTION(all_reduces) {
  for (const bool async : {false, true}) {
    CollectiveSpec call;
    call.async = async;
    const auto reduce = [&](const Tensor& tensor, ReduceOp::RedOpType op) {
      return detail::all_reduce(world.group(), tensor.to(world.device()), op, call).wait().cpu();
    };
    const int size = world.size();
    EXPECT_TRUE(at::equal(reduce(at::full({3}, world.rank() * 2.0), ReduceOp::AVG),
                          at::full({3}, size - 1.0)));
    // 2048 + 1 + 1 + ...: float16 alone rounds every 1 away.
    EXPECT_EQ(reduce(at::full({1}, world.rank() == 0 ? 2048.0 : 2.0, at::kHalf), ReduceOp::SUM)
                  .item<double>(),
              2048.0 + 2 * (size - 1));
    EXPECT_TRUE(at::equal(reduce(at::full({2}, -3, at::kShort), ReduceOp::SUM),
                          at::full({2}, -3 * size, at::kShort)));
    const Tensor number = at::full({2}, c10::complex<float>(1, 2));
    EXPECT_TRUE(at::equal(reduce(number, ReduceOp::SUM), number * size));
    EXPECT_TRUE(at::equal(reduce(number, ReduceOp::AVG), number));
  }
}

// The result is complete when the device is, and other streams may read it after a wait of theirs.
MESHRUN_RANK_FUNCTION(streams) {
  const auto side = c10::cuda::getStreamFromPool();
  for (const Extents& sizes : size_patterns(world.size())) {
    for (int round = 0; round < 20; ++round) {
      const Tensor all = sample(world, sum(sizes), 2, at::kFloat, round);
      const Tensor own = slice(all, sizes, 2, world.rank()).contiguous();
      // Nobody waits for this one.
      const Tensor dropped = at::full_like(all, -1);
      CollectiveSpec call;
      call.async = true;
      all_gather_v(*VCollectivesOf(world.group(), c10::DeviceType::CUDA), dropped, own, sizes, 2,
                   call);
      AsyncTensor pending = all_gather_v_async(own, sizes, 2, true, world.group());
      {
        const c10::cuda::CUDAStreamGuard guard(side);
        const Tensor read = pending.wait() * 2;
        pending = {};
        side.synchronize();
        EXPECT_TRUE(at::equal(read, all * 2)) << round;
      }
      c10::cuda::device_synchronize();
      EXPECT_TRUE(at::equal(dropped, all)) << round;
    }
  }
}

MESHRUN_RANK_FUNCTION(graphs) {
  const int size = world.size();
  const Extents sizes = size_patterns(size).front();
  std::vector<Tensor> indices;
  for (int rank = 0; rank < size; ++rank) indices.push_back(at::tensor({0, 2}, at::kLong));
  const IndexedAllToAllPlan plan(
      indices,
      std::vector<std::vector<int64_t>>(static_cast<size_t>(size),
                                        std::vector<int64_t>(static_cast<size_t>(size), 2)),
      3, world.group());
  const Tensor x = at::zeros({3, 4}, world.device()).requires_grad_();
  Tensor loss, gradient;
  const auto step = [&] {
    const Tensor gathered = all_gather_v(x, sizes, 0, true, world.group());
    const Tensor halo = indexed_all_to_all_v(x, plan);
    loss = gathered.square().sum() + halo.square().sum();
    gradient = grad({loss}, {x})[0];
  };
  const auto fill = [&](double value) {
    const at::NoGradGuard no_grad;
    Tensor(x).fill_(value + world.rank());
  };
  // With x = a + r on rank r; slices 0 and 2 go to every rank.
  const auto expect_step = [&](double value) {
    double expected = 0;
    for (int rank = 0; rank < size; ++rank) {
      expected += (12 + 8) * (value + rank) * (value + rank);
    }
    EXPECT_FLOAT_EQ(loss.item<float>(), static_cast<float>(expected));
    const Tensor rows = at::tensor({1.0, 0.0, 1.0}).view({3, 1}).to(at::kFloat);
    const Tensor by_hand = (at::full({3, 4}, 2.0f * size) + 2.0f * size * rows) *
                           static_cast<float>(value + world.rank());
    EXPECT_TRUE(at::allclose(gradient.cpu(), by_hand)) << gradient;
  };
  const auto stream = c10::cuda::getStreamFromPool();
  const c10::cuda::CUDAStreamGuard guard(stream);
  fill(1);
  for (int warm_up = 0; warm_up < 2; ++warm_up) step();
  expect_step(1);
  c10::cuda::device_synchronize();
  at::cuda::CUDAGraph graph;
  graph.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
  step();
  graph.capture_end();
  for (const double value : {2.0, 3.0}) {
    fill(value);
    graph.replay();
    expect_step(value);
  }
}

MESHRUN_RANK_FUNCTION(no_host_waits) {
  const int size = world.size();
  const torch::TensorOptions options(world.device());
  torch::nn::Linear network(4, 3), shared(3, 2);
  network->to(world.device());
  shared->to(world.device());
  DistributedDataParallel model(
      network, {.device_ids = {world.device().index()}, .output_device = world.device()});
  SharedModuleOptions of_world;
  of_world.process_group = world.group();
  mark_module_as_shared(*shared, of_world);
  std::vector<Tensor> indices;
  for (int rank = 0; rank < size; ++rank) indices.push_back(at::tensor({1, 3}, at::kLong));
  const IndexedAllToAllPlan plan(
      indices,
      std::vector<std::vector<int64_t>>(static_cast<size_t>(size),
                                        std::vector<int64_t>(static_cast<size_t>(size), 2)),
      8, world.group());
  const Tensor x = torch::ones({8, 4}, options) * (world.rank() + 1);
  const auto step = [&] {
    const Tensor rows = indexed_all_to_all_v(x, plan);
    shared(model(rows)).square().mean().backward();
  };
  {
    // The plan's first call copies its lists; c10d's first ones set up what they need.
    const NoHostWaits none;
    indexed_all_to_all_v(x, plan);
  }
  {
    // LibTorch says so where gradients are added up on another stream than the pass runs on.
    KeptWarnings warnings;
    const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
    for (int warm_up = 0; warm_up < 3; ++warm_up) step();
    EXPECT_EQ(warnings.text, "");
  }
  constexpr int kSteps = 3;
  const int64_t before = host_waits();
  {
    const NoHostWaits none;
    for (int i = 0; i < kSteps; ++i) step();
  }
  const int64_t waits = host_waits() - before;
  EXPECT_EQ(waits, 0);
  const Tensor of_all = at::full({1}, waits, at::kLong).to(world.device());
  const auto sum_of_all = detail::all_reduce(world.group(), of_all, ReduceOp::SUM, CollectiveSpec{})
                              .wait()
                              .item<int64_t>();
  EXPECT_GT(host_waits(), before + waits) << "the wait of item() is not counted";
  if (world.rank() == 0) {
    std::printf("host waits of %d training steps on %d ranks: %ld\n", kSteps, size, sum_of_all);
  }
  // All ranks have the same gradients.
  for (const Tensor& parameter : network->parameters()) {
    const Tensor all = all_gather_v(parameter.grad().view({1, -1}),
                                    Extents(static_cast<size_t>(size), 1), 0, true, world.group());
    EXPECT_TRUE(at::equal(all, all.select(0, 0).unsqueeze(0).expand_as(all)));
  }
}

// Printed: how long the host takes to queue a call, beside NCCL's function and c10d's for as many
// bytes. The machine is to do nothing else. kCalls fit into a GPU's queue, so that none waits for
// room in it.
MESHRUN_RANK_FUNCTION(host_time) {
  struct Row {
    std::string name;
    std::function<void()> call;
    std::vector<double> times;
  };
  constexpr int kCalls = 30;
  constexpr size_t kRounds = 9;
  constexpr int64_t kRows = 16;
  const auto ranks = static_cast<size_t>(world.size());
  const Extents equal(ranks, kRows);
  Extents nearly = equal, very_uneven(ranks, 1);
  nearly.back() = kRows - 1;
  very_uneven.back() = kRows * world.size();
  const auto of = [&](const Extents& sizes) {
    return at::ones({sizes[static_cast<size_t>(world.rank())], 64}, world.device());
  };
  const Tensor own = of(equal), own_nearly = of(nearly), own_uneven = of(very_uneven);
  const Tensor many = at::ones({kRows * world.size(), 64}, world.device());
  Tensor all = at::empty_like(many), from = at::ones_like(many), part = at::ones_like(own);
  const auto backend = world.group()->getBackend(c10::DeviceType::CUDA);
  auto* const communicator =
      reinterpret_cast<ncclComm_t>(dynamic_cast<c10d::ProcessGroupNCCL&>(*backend).getCommPtr());
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream().stream();
  const auto count = static_cast<size_t>(part.numel());
  const auto check = [](ncclResult_t result) {
    TORCH_CHECK(result == ncclSuccess, ncclGetErrorString(result));
  };
  const auto at_once = [](auto options) {
    options.asyncOp = false;
    return options;
  };
  std::vector<Row> rows;
  const auto add = [&](const std::string& name, std::function<void()> call) {
    rows.push_back({name, std::move(call), {}});
  };
  add("all_gather_v of equal pieces", [&] { all_gather_v(own, equal, 0, true, world.group()); });
  add("all_gather_v of nearly equal pieces",
      [&] { all_gather_v(own_nearly, nearly, 0, true, world.group()); });
  add("all_gather_v of very uneven pieces",
      [&] { all_gather_v(own_uneven, very_uneven, 0, true, world.group()); });
  add("all_to_all_v", [&] { all_to_all_v(many, equal, equal, 0, 0, world.group()); });
  add("reduce_scatter_v", [&] { reduce_scatter_v(many, equal, 0, true, world.group()); });
  auto& queued = dynamic_cast<StreamCalls&>(*backend);
  ASSERT_TRUE(queued.takes_calls(world.device()));
  add("ncclAllGather with a watch", [&] {
    queued.all_gather(world.device(), all.data_ptr(), {part.data_ptr(), part.nbytes()});
  });
  add("ncclAllGather", [&] {
    check(ncclAllGather(part.data_ptr(), all.data_ptr(), count, ncclFloat, communicator, stream));
  });
  add("ncclSend and ncclRecv of every rank", [&] {
    check(ncclGroupStart());
    for (int peer = 0; peer < world.size(); ++peer) {
      const size_t begin = static_cast<size_t>(peer) * count;
      check(ncclSend(from.data_ptr<float>() + begin, count, ncclFloat, peer, communicator, stream));
      check(ncclRecv(all.data_ptr<float>() + begin, count, ncclFloat, peer, communicator, stream));
    }
    check(ncclGroupEnd());
  });
  add("ncclReduceScatter", [&] {
    check(ncclReduceScatter(from.data_ptr(), part.data_ptr(), count, ncclFloat, ncclSum,
                            communicator, stream));
  });
  add("c10d's _allgather_base",
      [&] { backend->_allgather_base(all, part, at_once(c10d::AllgatherOptions())); });
  add("c10d's alltoall_base", [&] {
    Extents sent = equal, received = equal;
    backend->alltoall_base(all, from, sent, received, at_once(c10d::AllToAllOptions()));
  });
  add("c10d's _reduce_scatter_base",
      [&] { backend->_reduce_scatter_base(part, from, at_once(c10d::ReduceScatterOptions())); });
  add("a new tensor", [&] { at::empty({kRows * world.size(), 64}, own.options()); });
  add("memory for an output", [&] { empty_output({kRows * world.size(), 64}, own.options()); });

  for (Row& row : rows) row.call();  // connects
  for (size_t round = 0; round < kRounds; ++round) {
    for (Row& row : rows) {
      c10::cuda::device_synchronize();
      const auto begin = std::chrono::steady_clock::now();
      for (int i = 0; i < kCalls; ++i) row.call();
      const std::chrono::duration<double, std::micro> took =
          std::chrono::steady_clock::now() - begin;
      row.times.push_back(took.count() / kCalls);
    }
  }
  c10::cuda::device_synchronize();
  for (Row& row : rows) {
    std::nth_element(row.times.begin(), row.times.begin() + kRounds / 2, row.times.end());
    if (world.rank() == 0) {
      std::printf("host time of %s on %zu ranks: %.1f us\n", row.name.c_str(), ranks,
                  row.times[kRounds / 2]);
    }
  }
}

// Rank 1 makes the first call, in which NCCL connects on the host, and not the second. Both end by
// themselves if nobody notices.
MESHRUN_RANK_FUNCTION(a_peer_never_calls) {
  const Tensor own = at::ones({16}, world.device());
  const Tensor all = at::empty({16 * world.size()}, own.options());
  const auto backend = world.group()->getBackend(c10::DeviceType::CUDA);
  auto& queued = dynamic_cast<StreamCalls&>(*backend);
  ASSERT_TRUE(queued.takes_calls(world.device()));
  const auto gather = [&] {
    queued.all_gather(world.device(), all.data_ptr(), {own.data_ptr(), own.nbytes()});
  };
  gather();
  c10::cuda::device_synchronize();
  backend->setTimeout(std::chrono::milliseconds(1500));
  if (world.rank() == 0) gather();
  std::this_thread::sleep_for(std::chrono::seconds(12));
  std::_Exit(0);
}

MESHRUN_RANK_FUNCTION(ranks_are_the_worlds) {
  const auto group = world.make_group({1, 0});
  const auto backend = group->getBackend(c10::DeviceType::CUDA);
  EXPECT_EQ(dynamic_cast<c10d::ProcessGroupNCCL&>(*backend).getOptions()->global_ranks_in_group,
            (std::vector<uint64_t>{1, 0}));
}

// Without a world: which NCCL a rank loads.
const bool kVersion = register_rank_function("version", [] {
  int version = 0;
  ncclGetVersion(&version);
  std::printf("NCCL %d\n", version);
});

class NcclRanksTest : public ::testing::TestWithParam<GpuSharing> {
 protected:
  // Executed anew: the loader reads LD_PRELOAD, and CUDA does not outlive a fork.
  static std::vector<RankResult> started(const std::string& function, int world) {
    return run_ranks(function, ranks_on_one_gpu(world, GetParam()), RankStart::kExec);
  }
  void SetUp() override {
    if (gpu_count() == 0) GTEST_SKIP() << "this process sees no GPU (nvidia-smi -L lists them)";
    if (GetParam() != GpuSharing::kOnOneHost) return;
    const auto said = started("version", 1);
    const std::string& text = said[0].output;
    int version = 0;
    std::sscanf(text.c_str() + std::min(text.find("NCCL "), text.size()), "NCCL %d", &version);
    constexpr int kFirstThatShares = 23000;
    if (version < kFirstThatShares) {
      GTEST_SKIP() << "NCCL " << version
                   << " puts one rank of a host on a GPU: name a libnccl.so.2 "
                   << "of 2.30 or later (MESHRUN_TEST_NCCL, gpu-check --nccl)";
    }
  }
  void run(const std::string& function, std::initializer_list<int> worlds = {2, 3, 4}) const {
    for (const int world : worlds) {
      SCOPED_TRACE(function + " in a world of " + std::to_string(world));
      const auto results = started(function, world);
      expect_success(results);
      std::fputs(results[0].output.c_str(), stdout);
    }
  }
};

TEST_P(NcclRanksTest, EveryDtypeTravelsOnEveryRoute) { run("every_dtype_travels"); }
TEST_P(NcclRanksTest, RanksMayCallC10dOrNcclItself) { run("mixed_ways", {2, 3}); }
TEST_P(NcclRanksTest, AllReducesAverageAndAddWide) { run("all_reduces"); }
TEST_P(NcclRanksTest, ResultsAreThereOnOtherStreamsAndWithoutAWait) { run("streams", {2, 4}); }
TEST_P(NcclRanksTest, AForwardAndBackwardPassRunFromAGraph) { run("graphs", {2}); }
TEST_P(NcclRanksTest, ATrainingStepMakesTheHostWaitForNothing) { run("no_host_waits", {2}); }
TEST_P(NcclRanksTest, ACallThatAPeerNeverMakesEndsTheRank) {
  const auto results = started("a_peer_never_calls", 2);
  EXPECT_EQ(results[0].signal, SIGABRT) << results[0].output;
  EXPECT_NE(results[0].output.find("OpType=_ALLGATHER_BASE"), std::string::npos)
      << results[0].output;
  EXPECT_NE(results[0].output.find("Timeout(ms)=1500"), std::string::npos) << results[0].output;
}
TEST_P(NcclRanksTest, GroupsKnowTheWorldsRanks) { run("ranks_are_the_worlds", {2}); }
TEST_P(NcclRanksTest, HostTimesArePrinted) { run("host_time", {2}); }

INSTANTIATE_TEST_SUITE_P(OnOneGpu, NcclRanksTest,
                         ::testing::Values(GpuSharing::kAsHosts, GpuSharing::kOnOneHost),
                         [](const auto& info) {
                           return info.param == GpuSharing::kAsHosts ? "RanksAsHosts"
                                                                     : "RanksOfOneHost";
                         });

}  // namespace
}  // namespace meshrun
