// DistributedDataParallel in real rank processes, against the same training in one process.
#include "parallel/nn/distributed_data_parallel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include <string>
#include <tuple>
#include <vector>

#include "parallel/base/shared_heap.h"
#include "parallel/manager/distributed_manager.h"
#include "parallel/nn/fully_connected.h"
#include "tests/parallel/support/parameters.h"
#include "tests/parallel/support/rank_processes.h"
#include "tests/parallel/support/tensor_oracle.h"

namespace meshrun {
namespace {

using at::Tensor;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kGlobalBatch = 24;  // divisible by every world size from 1 to 4
constexpr int kSteps = 5;

DistributedManager& join() {
  DistributedManager::initialize();
  at::set_num_threads(1);
  return DistributedManager::get();
}

FullyConnected network(int seed) {
  torch::manual_seed(seed);
  return FullyConnected(
      FullyConnectedOptions().in_features(6).layer_size(16).out_features(3).num_layers(3));
}

Tensor global_input(int step) {
  torch::manual_seed(1000 + step);
  return torch::randn({kGlobalBatch, 6});
}

Tensor slice(const Tensor& batch, const DistributedManager& manager) {
  return batch.chunk(manager.world_size())[manager.rank()];
}

Tensor loss_of(const Tensor& prediction) { return (prediction - 1).square().mean(); }

void expect_close(const std::vector<Tensor>& actual, const std::vector<Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_LT(relative_l2(actual[i], expected[i]), 1e-5) << "tensor " << i;
  }
}

void expect_bitwise_equal_on_all_ranks(const std::vector<Tensor>& tensors) {
  const ProcessGroupPtr group = DistributedManager::get().group();
  for (const Tensor& tensor : tensors) {
    std::vector<Tensor> first = {tensor.detach().clone()};
    group->broadcast(first)->wait();
    EXPECT_TRUE(at::equal(first[0], tensor.detach()));
  }
}

// Ranks of the host write results straight to the buckets.
void expect_in_shared_memory(const std::vector<Tensor>& parameters) {
  const SharedHeap* const heap = SharedHeap::of_process();
  ASSERT_NE(heap, nullptr);
  for (const Tensor& parameter : parameters) {
    const Tensor gradient = parameter.grad();
    EXPECT_TRUE(heap->offset_of(gradient.const_data_ptr(), gradient.nbytes()));
  }
}

// Trains both ways from rank 0's parameters and compares them.
void expect_equal_to_one_process(const DistributedDataParallelOptions& options) {
  DistributedManager& manager = join();
  FullyConnected alone = network(/*seed=*/0);
  torch::optim::Adam alone_optimizer(alone->parameters(), 0.01);
  // Every rank starts elsewhere: the broadcast has to mend that.
  FullyConnected together = network(manager.rank());
  DistributedDataParallel model(together, options);
  torch::optim::Adam optimizer(model->parameters(), 0.01);
  for (int step = 0; step < kSteps; ++step) {
    const Tensor input = global_input(step);
    alone_optimizer.zero_grad();
    loss_of(alone(input)).backward();
    alone_optimizer.step();
    model->zero_grad();  // not the optimizer's, which detaches views in place
    loss_of(model(slice(input, manager))).backward();
    if (options.gradient_as_bucket_view) expect_in_shared_memory(model->parameters());
    optimizer.step();
  }
  expect_close(model->parameters(), alone->parameters());
  expect_bitwise_equal_on_all_ranks(model->parameters());
  DistributedManager::cleanup(/*barrier=*/true);
}

const bool kDefaults =
    register_rank_function("ddp_defaults", [] { expect_equal_to_one_process({}); });
// 100 bytes: several buckets, and other ones after the first iteration.
const bool kSmallBuckets = register_rank_function(
    "ddp_small_buckets", [] { expect_equal_to_one_process({.bucket_cap_mb = 1e-4}); });
const bool kViews = register_rank_function(
    "ddp_views", [] { expect_equal_to_one_process({.gradient_as_bucket_view = true}); });
const bool kStatic = register_rank_function(
    "ddp_static", [] { expect_equal_to_one_process({.static_graph = true}); });
const bool kFindUnused = register_rank_function("ddp_find_unused", [] {
  expect_equal_to_one_process({.find_unused_parameters = true, .bucket_cap_mb = 1e-4});
});

TEST(DistributedDataParallelTest, OptionsTakeBoolsForBools) {
  using Options = DistributedDataParallelOptions;
  EXPECT_TAKES_BOOL_ONLY(Options{.broadcast_buffers = value});
  EXPECT_TAKES_BOOL_ONLY(Options{.find_unused_parameters = value});
  EXPECT_TAKES_BOOL_ONLY(Options{.gradient_as_bucket_view = value});
  EXPECT_TAKES_BOOL_ONLY(Options{.static_graph = value});
  EXPECT_TAKES_BOOL_ONLY(Options{.bfloat16_gradients = value});
}

TEST(DistributedDataParallelTest, EqualsOneProcessInWorldsOfOneToFour) {
  for (const int world_size : {1, 2, 3, 4}) {
    SCOPED_TRACE(world_size);
    expect_success(run_ranks("ddp_defaults", env_ranks(world_size)));
  }
}

TEST(DistributedDataParallelTest, EqualsOneProcessWithEveryOption) {
  for (const char* options : {"ddp_small_buckets", "ddp_views", "ddp_static", "ddp_find_unused"}) {
    SCOPED_TRACE(options);
    expect_success(run_ranks(options, env_ranks(2)));
  }
}

// The gradients of one step, by one process and by all ranks.
const bool kBfloat16 = register_rank_function("ddp_bfloat16", [] {
  DistributedManager& manager = join();
  for (const bool views : {false, true}) {
    FullyConnected alone = network(0), together = network(0);
    DistributedDataParallel model(
        together,
        {.bucket_cap_mb = 1e-4, .gradient_as_bucket_view = views, .bfloat16_gradients = true});
    for (int step = 0; step < 2; ++step) {  // one bucket, then many
      alone->zero_grad();
      model->zero_grad();
      loss_of(alone(global_input(step))).backward();
      loss_of(model(slice(global_input(step), manager))).backward();
      for (size_t i = 0; i < together->parameters().size(); ++i) {
        const Tensor gradient = together->parameters()[i].grad();
        EXPECT_EQ(gradient.scalar_type(), at::kFloat);
        const double error = relative_l2(gradient, alone->parameters()[i].grad());
        EXPECT_LT(error, 1.0 / 128) << "parameter " << i;
        EXPECT_GT(error, 0) << "nothing was rounded";
        EXPECT_TRUE(at::equal(gradient, gradient.to(at::kBFloat16).to(at::kFloat)));
        expect_bitwise_equal_on_all_ranks({gradient});
      }
    }
  }
  DistributedManager::cleanup(true);
});

TEST(DistributedDataParallelTest, GradientsMayTravelAsBfloat16) {
  for (const int world_size : {1, 2, 3}) {
    SCOPED_TRACE(world_size);
    expect_success(run_ranks("ddp_bfloat16", env_ranks(world_size)));
  }
}

const bool kBfloat16OfDouble = register_rank_function("ddp_bfloat16_of_double", [] {
  join();
  FullyConnected doubles = network(0);
  doubles->to(at::kDouble);
  try {
    const DistributedDataParallel model(doubles, {.bfloat16_gradients = true});
    ADD_FAILURE() << "no error";
  } catch (const c10::ValueError& error) {
    EXPECT_THAT(
        error.what_without_backtrace(),
        AllOf(HasSubstr("bfloat16_gradients takes parameters of float32"), HasSubstr("Double")));
  }
  DistributedManager::cleanup(true);
});

TEST(DistributedDataParallelTest, OnlyGradientsOfFloat32TravelAsBfloat16) {
  expect_success(run_ranks("ddp_bfloat16_of_double", env_ranks(2)));
}

const bool kNoSync = register_rank_function("ddp_no_sync", [] {
  DistributedManager& manager = join();
  FullyConnected alone = network(0);
  FullyConnected together = network(0);
  DistributedDataParallel model(together);
  for (int step = 0; step < 2; ++step) {
    alone->zero_grad();
    model->zero_grad();
    const Tensor first = global_input(2 * step);
    const Tensor second = global_input(2 * step + 1);
    (loss_of(alone(first)) + loss_of(alone(second))).backward();
    {
      const NoSyncGuard guard = model->no_sync();
      loss_of(model(slice(first, manager))).backward();
      // Not averaged: what this rank alone would have.
      FullyConnected local = network(0);
      loss_of(local(slice(first, manager))).backward();
      EXPECT_LT(relative_l2(together->parameters()[0].grad(), local->parameters()[0].grad()), 1e-6);
    }
    loss_of(model(slice(second, manager))).backward();
    for (size_t i = 0; i < together->parameters().size(); ++i) {
      EXPECT_LT(relative_l2(together->parameters()[i].grad(), alone->parameters()[i].grad()), 1e-5);
    }
  }
  DistributedManager::cleanup(true);
});

TEST(DistributedDataParallelTest, NoSyncAccumulatesLocallyAndTheNextPassAveragesAll) {
  expect_success(run_ranks("ddp_no_sync", env_ranks(2)));
}

// One trunk and three heads, of which each call uses one; the last is never used.
struct HeadsImpl : torch::nn::Module {
  HeadsImpl() {
    torch::manual_seed(7);
    trunk = register_module("trunk", torch::nn::Linear(4, 4));
    for (int i = 0; i < 3; ++i) {
      heads.push_back(register_module("head" + std::to_string(i), torch::nn::Linear(4, 2)));
    }
  }
  Tensor forward(const Tensor& x, int head) { return heads[head](trunk(x)); }

  torch::nn::Linear trunk = nullptr;
  std::vector<torch::nn::Linear> heads;
};
TORCH_MODULE(Heads);

const bool kUnused = register_rank_function("ddp_unused", [] {
  DistributedManager& manager = join();
  const Tensor x = torch::ones({3, 4});
  Heads alone;
  alone(x, manager.rank()).sum().backward();
  const Tensor local = alone->heads[manager.rank()]->weight.grad();

  Heads heads;
  DistributedDataParallel model(heads, {.find_unused_parameters = true});
  for (int step = 0; step < 2; ++step) {
    model->zero_grad();
    model(x, manager.rank()).sum().backward();
    // Used by one of two ranks: half of that rank's gradient.
    EXPECT_LT(relative_l2(heads->heads[manager.rank()]->weight.grad(), local / 2), 1e-6);
    EXPECT_TRUE(heads->heads[1 - manager.rank()]->weight.grad().defined());
    EXPECT_FALSE(heads->heads[2]->weight.grad().defined());
  }
  DistributedManager::cleanup(true);
});

TEST(DistributedDataParallelTest, ParametersUnusedOnSomeRanksAreAveragedAndOnAllRanksLeftAlone) {
  expect_success(run_ranks("ddp_unused", env_ranks(2)));
}

const bool kNamed = register_rank_function("ddp_unused_named", [] {
  join();
  Heads heads;
  DistributedDataParallel model(heads);
  model(torch::ones({2, 4}), 1).sum().backward();
  std::string text;
  try {
    model(torch::ones({2, 4}), 1);
  } catch (const c10::Error& error) {
    text = error.what_without_backtrace();
  }
  EXPECT_THAT(text, AllOf(HasSubstr("head0.weight, head0.bias, head2.weight, head2.bias"),
                          HasSubstr("find_unused_parameters")));
  DistributedManager::cleanup(true);
});

TEST(DistributedDataParallelTest, UnusedParametersAreNamed) {
  expect_success(run_ranks("ddp_unused_named", env_ranks(2)));
}

// Returns more than its callers put into their loss.
struct PairImpl : torch::nn::Module {
  PairImpl() {
    first = register_module("first", torch::nn::Linear(2, 2));
    second = register_module("second", torch::nn::Linear(2, 2));
  }
  std::tuple<Tensor, std::vector<Tensor>> forward(const Tensor& x) {
    return {first(x), {second(x)}};
  }
  torch::nn::Linear first = nullptr;
  torch::nn::Linear second = nullptr;
};
TORCH_MODULE(Pair);

const bool kOutputs = register_rank_function("ddp_outputs", [] {
  join();
  Pair pair;
  DistributedDataParallel model(pair, {.find_unused_parameters = true});
  for (int step = 0; step < 3; ++step) {
    model->zero_grad();
    std::get<0>(model(torch::ones({1, 2}))).sum().backward();
    EXPECT_TRUE(pair->first->weight.grad().defined());
    EXPECT_FALSE(pair->second->weight.grad().defined());
  }
  DistributedManager::cleanup(true);
});

TEST(DistributedDataParallelTest, OutputsThatTheLossDoesNotUseAreNotWaitedFor) {
  expect_success(run_ranks("ddp_outputs", env_ranks(2)));
}

struct CounterImpl : torch::nn::Module {
  explicit CounterImpl(at::ScalarType type = at::kLong) {
    linear = register_module("linear", torch::nn::Linear(2, 1));
    counter = register_buffer("counter", torch::zeros({1}, type));
  }
  Tensor forward(const Tensor& x) {
    seen = counter.item<int64_t>();
    return linear(x);
  }
  torch::nn::Linear linear = nullptr;
  Tensor counter;
  int64_t seen = -1;
};
TORCH_MODULE(Counter);

const bool kBuffers = register_rank_function("ddp_buffers", [] {
  DistributedManager& manager = join();
  for (const bool broadcast : {true, false}) {
    Counter module;
    module->counter.fill_(10 + manager.rank());
    DistributedDataParallel model(module, {.broadcast_buffers = broadcast});
    EXPECT_EQ(module->counter.item<int64_t>(), 10);  // the initial state is rank 0's in any case
    for (int step = 0; step < 2; ++step) {
      module->counter.fill_(20 + manager.rank());
      model(torch::ones({1, 2})).sum().backward();
      EXPECT_EQ(module->seen, broadcast ? 20 : 20 + manager.rank());
    }
  }
  DistributedManager::cleanup(true);
});

// Gloo and NCCL have no int16, and most of their calls no complex numbers.
const bool kCarriedBuffers = register_rank_function("ddp_carried_buffers", [] {
  DistributedManager& manager = join();
  Counter module(at::kShort);
  module->counter.fill_(-10 - manager.rank());
  const Tensor spectrum = module->register_buffer(
      "spectrum", torch::full({2}, c10::complex<float>(1, static_cast<float>(manager.rank()))));
  DistributedDataParallel model(module, {});
  EXPECT_EQ(module->counter.item<int64_t>(), -10);
  EXPECT_EQ(spectrum.sum().item<c10::complex<float>>(), c10::complex<float>(2, 0));
  module->counter.fill_(-32768 + manager.rank());
  model(torch::ones({1, 2})).sum().backward();
  EXPECT_EQ(module->seen, -32768);
  DistributedManager::cleanup(true);
});

TEST(DistributedDataParallelTest, BuffersOfDtypesThatBackendsLackAreBroadcastToo) {
  for (const char* const backend : {"ucx", "gloo"}) {
    SCOPED_TRACE(backend);
    std::vector<Variables> ranks = env_ranks(2);
    for (Variables& rank : ranks) rank["MESHRUN_BACKEND"] = backend;
    expect_success(run_ranks("ddp_carried_buffers", ranks));
  }
}

TEST(DistributedDataParallelTest, BuffersAreRankZerosBeforeEachForwardWhereAskedFor) {
  expect_success(run_ranks("ddp_buffers", env_ranks(2)));
}

template <typename Call>
std::string value_error_of(Call call) {
  try {
    call();
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  ADD_FAILURE() << "no c10::ValueError";
  return "";
}

const bool kMismatch = register_rank_function("ddp_mismatch", [] {
  DistributedManager& manager = join();
  torch::nn::Linear wide(3, manager.rank() == 1 ? 5 : 4);
  EXPECT_THAT(value_error_of([&] { DistributedDataParallel model(wide); }),
              AllOf(HasSubstr("weight Float [4, 3]"), HasSubstr("weight Float [5, 3]"),
                    HasSubstr("rank 1")));
  torch::nn::Linear typed(3, 4);
  if (manager.rank() == 2) typed->to(at::kDouble);
  EXPECT_THAT(value_error_of([&] { DistributedDataParallel model(typed); }),
              AllOf(HasSubstr("Float"), HasSubstr("Double"), HasSubstr("rank 2")));
  torch::nn::Linear frozen(3, 4);
  if (manager.rank() == 1) {
    for (Tensor& parameter : frozen->parameters()) parameter.requires_grad_(false);
  }
  EXPECT_THAT(value_error_of([&] { DistributedDataParallel model(frozen); }),
              AllOf(HasSubstr("on rank 1"), HasSubstr("nothing to train")));
  torch::nn::Linear good(3, 4);
  EXPECT_THAT(value_error_of([&] { DistributedDataParallel model(good, {.bucket_cap_mb = 0}); }),
              HasSubstr("bucket_cap_mb"));

  const bool other = manager.rank() == 2;
  for (const DistributedDataParallelOptions& options :
       {DistributedDataParallelOptions{.broadcast_buffers = !other},
        DistributedDataParallelOptions{.find_unused_parameters = other},
        DistributedDataParallelOptions{.bucket_cap_mb = other ? 26.0 : 25.0},
        DistributedDataParallelOptions{.gradient_as_bucket_view = other},
        DistributedDataParallelOptions{.static_graph = other}}) {
    EXPECT_THAT(value_error_of([&] { DistributedDataParallel model(good, options); }),
                AllOf(HasSubstr("the options differ"), HasSubstr("on rank 0"),
                      HasSubstr("on rank 2"), HasSubstr("bucket_cap_mb=25")));
  }
  DistributedManager::cleanup(true);
});

TEST(DistributedDataParallelTest, ModulesThatDifferAreAnErrorOnEveryRankWithBothSides) {
  expect_success(run_ranks("ddp_mismatch", env_ranks(3)));
}

// Uses one layer twice, and checkpoint-like graphs rely on the same path.
struct SharedImpl : torch::nn::Module {
  SharedImpl() {
    torch::manual_seed(3);
    layer = register_module("layer", torch::nn::Linear(4, 4));
    idle = register_module("idle", torch::nn::Linear(4, 4));
  }
  Tensor forward(const Tensor& x) { return layer(layer(x).tanh()); }
  torch::nn::Linear layer = nullptr;
  torch::nn::Linear idle = nullptr;
};
TORCH_MODULE(Shared);

const bool kStaticShared = register_rank_function("ddp_static_shared", [] {
  DistributedManager& manager = join();
  Shared alone;
  Shared module;
  DistributedDataParallel model(module, {.static_graph = true});
  for (int step = 0; step < 4; ++step) {
    torch::manual_seed(step);
    const Tensor batch = torch::randn({4, 4});
    alone->zero_grad();
    model->zero_grad();
    loss_of(alone(batch)).backward();
    loss_of(model(slice(batch, manager))).backward();
    EXPECT_LT(relative_l2(module->layer->weight.grad(), alone->layer->weight.grad()), 1e-5);
  }
  DistributedManager::cleanup(true);
});

TEST(DistributedDataParallelTest, AStaticGraphMayShareAndLeaveOutParameters) {
  expect_success(run_ranks("ddp_static_shared", env_ranks(2)));
}

}  // namespace
}  // namespace meshrun
