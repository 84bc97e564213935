// In real rank processes, against the plain optimizers on the same mean gradients.
#include "parallel/nn/zero_redundancy_optimizer.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "parallel/checkpoint/checkpoint.h"
#include "parallel/collectives/all_gather_v.h"
#include "tests/parallel/collectives/worlds.h"
#include "tests/parallel/support/parameters.h"
#include "tests/parallel/support/rank_processes.h"

namespace meshrun {
namespace {

using at::Tensor;
using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::Optimizer;
using torch::optim::OptimizerParamGroup;
using torch::optim::SGDOptions;

// Shapes that no number of ranks divides, an empty one, two dtypes.
struct NetworkImpl : torch::nn::Module {
  NetworkImpl() {
    at::manual_seed(1);
    const auto add = [&](const char* name, at::IntArrayRef shape,
                         at::ScalarType type = at::kFloat) {
      list.push_back(register_parameter(name, at::randn(shape).to(type)));
    };
    add("matrix", {7, 5});
    add("transposed", {3, 4});
    add("number", {});
    add("double", {11}, at::kDouble);
    add("empty", {0, 3});
    add("sometimes", {6});
    add("never", {4});
    add("vector", {13});
    list[1].set_data(list[1].t().contiguous().t());
  }
  std::vector<Tensor> list;
};
TORCH_MODULE(Network);

constexpr size_t kSometimes = 5;  // has a gradient on the last rank, in odd steps
constexpr size_t kNever = 6;

Tensor gradient(const Network& network, size_t parameter, int step, int rank, int size) {
  const bool is_absent =
      parameter == kNever || (parameter == kSometimes && (rank != size - 1 || step % 2 == 0));
  if (is_absent) return Tensor();
  at::manual_seed(1000 * step + 100 * rank + parameter + 7);
  const Tensor& of = network->list[parameter];
  return at::randn(of.sizes()).to(of.scalar_type());
}

void set_own_gradients(const Network& network, int step, int rank, int size) {
  for (size_t i = 0; i < network->list.size(); ++i) {
    network->list[i].mutable_grad() = gradient(network, i, step, rank, size);
  }
}

// Added in rank order.
void set_mean_gradients(const Network& network, int step, int size) {
  for (size_t i = 0; i < network->list.size(); ++i) {
    Tensor sum;
    for (int rank = 0; rank < size; ++rank) {
      const Tensor own = gradient(network, i, step, rank, size);
      if (own.defined()) sum = sum.defined() ? sum + own : own;
    }
    network->list[i].mutable_grad() = sum.defined() ? sum / size : sum;
  }
}

// Two groups with learning rates of their own.
std::vector<OptimizerParamGroup> groups_of(const Network& network) {
  const std::vector<Tensor>& all = network->list;
  return {OptimizerParamGroup({all.begin(), all.begin() + 3}),
          OptimizerParamGroup({all.begin() + 3, all.end()})};
}

void set_rates(Optimizer& optimizer, int step) {
  for (size_t group = 0; group < 2; ++group) {
    optimizer.param_groups()[group].options().set_lr(0.01 * static_cast<double>(group + 1) /
                                                     (step + 1));
  }
}

void expect_equal(const Network& actual, const Network& wanted) {
  for (size_t i = 0; i < wanted->list.size(); ++i) {
    EXPECT_TRUE(at::equal(actual->list[i], wanted->list[i])) << "parameter " << i << "\n"
                                                             << actual->list[i] << wanted->list[i];
  }
}

void expect_equal_states(Optimizer& actual, const Network& network, Optimizer& wanted,
                         const Network& reference) {
  for (size_t i = 0; i < network->list.size(); ++i) {
    const ParameterState a = parameter_state(actual, network->list[i]);
    const ParameterState w = parameter_state(wanted, reference->list[i]);
    EXPECT_EQ(a.step, w.step) << i;
    ASSERT_EQ(a.moments.size(), w.moments.size()) << i;
    for (const auto& [name, moment] : w.moments) {
      EXPECT_TRUE(at::equal(a.moments.at(name), moment)) << name << i;
    }
  }
}

// Calls check with each optimizer's options and a maker of the plain one.
template <typename Check>
void for_each_kind(const Check& check) {
  check(AdamOptions(0.01).amsgrad(true).weight_decay(0.1),
        std::type_identity<torch::optim::Adam>());
  check(AdamWOptions(0.01), std::type_identity<torch::optim::AdamW>());
  check(SGDOptions(0.01).momentum(0.9).nesterov(true), std::type_identity<torch::optim::SGD>());
  check(SGDOptions(0.01), std::type_identity<torch::optim::SGD>());
}

const bool kEquals = register_rank_function("zero_equals", [] {
  const JoinedWorld world;
  for_each_kind([&](const auto& defaults, auto type) {
    using Plain = typename decltype(type)::type;
    for (const double megabytes : {25.0, 1e-4}) {
      for (const bool reduced : {false, true}) {
        SCOPED_TRACE(c10::str(c10::demangle(typeid(Plain).name()), megabytes, reduced));
        Network network, reference;
        ZeroRedundancyOptimizer optimizer(
            groups_of(network), defaults,
            {.gradients_are_reduced = reduced, .bucket_cap_mb = megabytes});
        Plain plain(groups_of(reference), defaults);
        for (int step = 0; step < 4; ++step) {
          if (reduced) {
            set_mean_gradients(network, step, world.size);
          } else {
            set_own_gradients(network, step, world.rank, world.size);
          }
          set_mean_gradients(reference, step, world.size);
          set_rates(optimizer, step);
          set_rates(plain, step);
          optimizer.step();
          plain.step();
          expect_equal(network, reference);
        }
        expect_equal_states(optimizer, network, plain, reference);
        // Each rank has its share of the states.
        int64_t whole = 0;
        for (const Tensor& parameter : reference->list) {
          for (const auto& [name, moment] : parameter_state(plain, parameter).moments) {
            whole += static_cast<int64_t>(moment.nbytes());
          }
        }
        const Tensor shares = all_gather_v(at::full({1}, optimizer.state_bytes(), at::kLong));
        if (megabytes > 1) {
          EXPECT_EQ(shares.sum().item<int64_t>(), whole);
          EXPECT_LE(shares.max().item<int64_t>(), whole / world.size + 3 * 2 * 8);
        }
      }
    }
  });
});

TEST(ZeroRedundancyOptimizerTest, EqualsThePlainOptimizerBitForBit) {
  run_in_worlds("zero_equals", {1, 2, 3, 4}, {"ucx"});
  run_in_worlds("zero_equals", {3}, {"gloo"});
}

const bool kClosure = register_rank_function("zero_closure", [] {
  const JoinedWorld world;
  for (const bool mean : {true, false}) {
    const Tensor x = at::full({3}, 1.0, at::kDouble).set_requires_grad(true);
    ZeroRedundancyOptimizer optimizer({x}, SGDOptions(0.5), {.mean = mean});
    const Tensor loss = optimizer.step([&] {
      optimizer.zero_grad();
      Tensor value = (x * (world.rank + 1)).sum();
      value.backward();
      return value;
    });
    EXPECT_EQ(loss.item<double>(), 3.0 * (world.rank + 1));
    const double sum = world.size * (world.size + 1) / 2.0;
    EXPECT_TRUE(
        at::allclose(x, at::full({3}, 1 - 0.5 * (mean ? sum / world.size : sum), at::kDouble)));
    // Set from outside: the next step goes on from there.
    {
      const at::NoGradGuard no_grad;
      x.fill_(2);
    }
    optimizer.zero_grad();
    x.mutable_grad() = at::zeros({3}, at::kDouble);
    optimizer.step();
    EXPECT_TRUE(at::equal(x, at::full({3}, 2.0, at::kDouble)));
  }
});

TEST(ZeroRedundancyOptimizerTest, ClosuresSumsAndParametersSetFromOutside) {
  run_in_worlds("zero_closure", {1, 3}, {"ucx"});
}

// Gradients whose sum is not a float16, and bfloat16 means that two roundings would miss.
const bool kHalfMeans = register_rank_function("zero_half_means", [] {
  const JoinedWorld world;
  for (const at::ScalarType type : {at::kHalf, at::kBFloat16}) {
    Tensor sum = at::zeros({500});
    Tensor own;
    for (int rank = 0; rank < world.size; ++rank) {
      at::manual_seed(rank);
      const Tensor gradient = (at::rand({500}) * 20000 + 40000).to(type);
      sum += gradient.to(at::kFloat);
      if (rank == world.rank) own = gradient;
    }
    const Tensor x = at::zeros({500}, type).set_requires_grad(true);
    ZeroRedundancyOptimizer optimizer({x}, SGDOptions(1));
    x.mutable_grad() = own;
    optimizer.step();
    EXPECT_TRUE(at::equal(x.detach(), -(sum / world.size).to(type))) << type;
  }
});

TEST(ZeroRedundancyOptimizerTest, SixteenBitMeansAreDividedBeforeTheyAreRounded) {
  run_in_worlds("zero_half_means", {1, 2, 3}, {"ucx"});
  run_in_worlds("zero_half_means", {3}, {"gloo"});
}

const bool kErrors = register_rank_function("zero_errors", [] {
  const JoinedWorld world;
  const bool is_last = world.rank == world.size - 1;
  Network network;
  const auto make = [&](const auto& defaults, double megabytes = 25) {
    ZeroRedundancyOptimizer(network->list, defaults, {.bucket_cap_mb = megabytes});
  };
  expect_error_on_all_ranks([&] { make(AdamWOptions(is_last ? 0.02 : 0.01)); }, "lr=0.02");
  expect_error_on_all_ranks([&] { is_last ? make(AdamOptions(0.01)) : make(AdamWOptions(0.01)); },
                            "options differ");
  expect_error_on_all_ranks([&] { make(AdamWOptions(0.01), is_last ? 0 : 1); },
                            "bucket_cap_mb must be positive");
  expect_error_on_all_ranks(
      [&] {
        const Tensor x = at::ones({is_last ? 3 : 2}).set_requires_grad(true);
        ZeroRedundancyOptimizer({x}, SGDOptions(0.1));
      },
      "differs between ranks");
  expect_error_on_all_ranks(
      [&] {
        ZeroRedundancyOptimizer({at::ones({2}).set_requires_grad(!is_last)}, SGDOptions(0.1));
      },
      "no parameter requires a gradient");

  const Tensor x = at::ones({4}).set_requires_grad(true);
  ZeroRedundancyOptimizer optimizer({x}, SGDOptions(1));
  x.mutable_grad() = at::ones({4});
  if (is_last) x.mutable_grad() = at::ones({4}).to_sparse();
  expect_error_on_all_ranks([&] { optimizer.step(); }, "has a sparse gradient");
  x.mutable_grad() = at::ones({4});
  optimizer.step();  // nothing is left of it
  EXPECT_TRUE(at::equal(x, at::zeros({4})));
  if (is_last) {
    optimizer.add_param_group(OptimizerParamGroup({at::ones({1}).set_requires_grad(true)}));
  }
  expect_error_on_all_ranks([&] { optimizer.step(); }, "was made for 1 parameters");
});

TEST(ZeroRedundancyOptimizerTest, WrongUseIsOneErrorOnAllRanks) {
  run_in_worlds("zero_errors", {2, 3});
}

// --- states between worlds ---

std::string directory() { return std::getenv("TEST_DIRECTORY"); }

// Steps [first, last) of a run whose gradients do not depend on the world.
template <typename AnyOptimizer>
void run_steps(AnyOptimizer& optimizer, const Network& network, int first, int last) {
  constexpr int kSize = 2;
  for (int step = first; step < last; ++step) {
    set_mean_gradients(network, step, kSize);
    optimizer.step();
  }
}

const bool kStates = register_rank_function("zero_states", [] {
  const JoinedWorld world;
  Network network;
  ZeroRedundancyOptimizer optimizer(network->list, AdamOptions(0.01).amsgrad(true),
                                    {.gradients_are_reduced = true});
  CheckpointDirectory checkpoints(directory(), {.identity = {}});
  const auto found = checkpoints.load(*network, optimizer);
  const int first = found ? static_cast<int>(found->step) : 0;
  run_steps(optimizer, network, first, first + 2);
  checkpoints.save(*network, optimizer, {first + 2, {}});

  Network reference;
  torch::optim::Adam plain(reference->list, AdamOptions(0.01).amsgrad(true));
  run_steps(plain, reference, 0, first + 2);
  expect_equal(network, reference);
  expect_equal_states(optimizer, network, plain, reference);
});

const bool kPlainReads = register_rank_function("zero_plain_reads", [] {
  const JoinedWorld world;
  Network network, reference;
  torch::optim::Adam plain(network->list, AdamOptions(0.01).amsgrad(true));
  const auto found = CheckpointDirectory(directory(), {.identity = {}}).load(*network, plain);
  ASSERT_TRUE(found);
  torch::optim::Adam wanted(reference->list, AdamOptions(0.01).amsgrad(true));
  run_steps(wanted, reference, 0, static_cast<int>(found->step));
  expect_equal(network, reference);
  expect_equal_states(plain, network, wanted, reference);
});

TEST(ZeroRedundancyOptimizerTest, ACheckpointGoesFromAnyWorldToAnyOther) {
  const std::string path = ::testing::TempDir() + "/zero_states";
  std::filesystem::remove_all(path);
  const auto run = [&](const char* function, int size) {
    SCOPED_TRACE(size);
    std::vector<Variables> ranks = env_ranks(size);
    for (Variables& rank : ranks) rank["TEST_DIRECTORY"] = path;
    expect_success(run_ranks(function, ranks));
  };
  for (const int size : {3, 1, 4, 2}) run("zero_states", size);
  run("zero_plain_reads", 1);
}

TEST(ZeroRedundancyOptimizerTest, OptionsTakeBoolsForBools) {
  EXPECT_TAKES_BOOL_ONLY(ZeroRedundancyOptions{.gradients_are_reduced = value});
  EXPECT_TAKES_BOOL_ONLY(ZeroRedundancyOptions{.mean = value});
  EXPECT_TAKES_BOOL_ONLY(ZeroRedundancyOptions{.use_fp32_reduction = value});
}

}  // namespace
}  // namespace meshrun
