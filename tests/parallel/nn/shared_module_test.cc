// Shared modules in real rank processes, against one process that sees all ranks' data.
#include "parallel/nn/shared_module.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "parallel/base/no_collectives.h"
#include "parallel/collectives/tie.h"
#include "parallel/nn/distributed_data_parallel.h"
#include "tests/parallel/collectives/worlds.h"
#include "tests/parallel/support/rank_processes.h"

namespace meshrun {
namespace {

using at::Tensor;

// Two layers and one that only some ranks use; small integers, so that sums are exact in any order.
struct NetworkImpl : torch::nn::Module {
  explicit NetworkImpl(at::ScalarType type = at::kDouble) {
    const auto parameter = [&](const char* name, at::IntArrayRef shape, double value) {
      return register_parameter(name, at::full(shape, value, type));
    };
    first = parameter("first", {2, 3}, 1);
    second = parameter("second", {3}, 2);
    sometimes = parameter("sometimes", {3}, 1);
    never = parameter("never", {1}, 1);
  }
  Tensor forward(const Tensor& x, bool with_sometimes = false) const {
    const Tensor y = at::matmul(x, first) * second;
    return (with_sometimes ? y * sometimes : y).sum();
  }
  Tensor first, second, sometimes, never;
};
TORCH_MODULE(Network);

Tensor data(int rank, int step, at::ScalarType type = at::kDouble) {
  return at::tensor({rank + 1, 2 * step - rank}).to(type).view({1, 2});
}

using Gradients = std::vector<Tensor>;
Gradients gradients_of(const Network& network) {
  return {network->first.grad(), network->second.grad(), network->sometimes.grad()};
}

// Gradients for all ranks' data, in one process.
Gradients expected(int size, const std::vector<int>& steps, const std::vector<int>& sometimes = {},
                   double factor = 1) {
  Network alone;
  for (const int step : steps) {
    for (int rank = 0; rank < size; ++rank) {
      const bool with = std::find(sometimes.begin(), sometimes.end(), rank) != sometimes.end();
      (alone->forward(data(rank, step), with) * factor).backward();
    }
  }
  return gradients_of(alone);
}

void expect_equal(const Gradients& actual, const Gradients& wanted) {
  for (size_t i = 0; i < wanted.size(); ++i) {
    ASSERT_EQ(actual[i].defined(), wanted[i].defined()) << i;
    if (wanted[i].defined()) {
      EXPECT_TRUE(at::equal(actual[i], wanted[i])) << i << actual[i];
    }
  }
}

const bool kSums = register_rank_function("shared_sums", [] {
  const JoinedWorld world;
  for (const double megabytes : {25.0, 1e-5}) {  // one bucket; one for each parameter
    Network network;
    SharedModuleOptions options;
    options.bucket_cap_mb = megabytes;
    mark_module_as_shared(*network, options);
    network->forward(data(world.rank, 0)).backward();
    expect_equal(gradients_of(network), expected(world.size, {0}));
    // Gradients accumulate: what is reduced already is not reduced again.
    for (const int step : {1, 2}) network->forward(data(world.rank, step)).backward();
    expect_equal(gradients_of(network), expected(world.size, {0, 1, 2}));
    EXPECT_FALSE(network->never.grad().defined());
    network->zero_grad();
    network->forward(data(world.rank, 3)).backward();
    expect_equal(gradients_of(network), expected(world.size, {3}));

    unmark_module_as_shared(*network);
    network->zero_grad();
    network->forward(data(world.rank, 3)).backward();
    Network alone;
    alone->forward(data(world.rank, 3)).backward();
    expect_equal(gradients_of(network), gradients_of(alone));
  }
});

TEST(SharedModuleTest, GradientsAreTheSumOverRanksAndAccumulate) { run_in_worlds("shared_sums"); }

// Another hook of a tensor: not in the list that register_hook() makes.
struct Doubles : torch::autograd::FunctionPreHook {
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& g) override {
    return {g[0] * 2};
  }
};

const bool kHooked = register_rank_function("shared_hooked", [] {
  const JoinedWorld world;
  const auto ten = [](const Tensor& gradient) { return gradient * 10; };
  Network network;
  torch::autograd::impl::add_hook(network->first, std::make_unique<Doubles>());
  network->sometimes.register_hook(ten);
  mark_module_as_shared(*network);
  network->second.register_hook(ten);
  for (const int step : {0, 1}) network->forward(data(world.rank, step), true).backward();
  std::vector<int> all(world.size);
  std::iota(all.begin(), all.end(), 0);
  Gradients wanted = expected(world.size, {0, 1}, all);
  wanted[0] *= 2;
  wanted[1] *= 10;
  wanted[2] *= 10;
  expect_equal(gradients_of(network), wanted);
});

TEST(SharedModuleTest, OtherHooksOfAParameterRunWheneverTheyWereAdded) {
  run_in_worlds("shared_hooked", {1, 2});
}

// Whether the host has read, on this thread, which parameters the ranks have reached: on a GPU it
// would have to wait for that.
class ReadingObserver {
 public:
  ReadingObserver() {
    reads_ = 0;
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(&ReadingObserver::start).scopes({at::RecordScope::FUNCTION}));
  }
  ~ReadingObserver() { at::removeCallback(handle_); }
  ReadingObserver(const ReadingObserver&) = delete;
  ReadingObserver& operator=(const ReadingObserver&) = delete;

  int reads() const { return reads_; }

 private:
  static std::unique_ptr<at::ObserverContext> start(const at::RecordFunction& call) {
    const std::string name = call.name();
    if (name == "aten::ne" || name == "aten::_local_scalar_dense") ++reads_;
    return nullptr;
  }

  at::CallbackHandle handle_ = 0;
  inline static thread_local int reads_ = 0;
};

const bool kUnread = register_rank_function("shared_unread", [] {
  const JoinedWorld world;
  Network network;
  network->never.requires_grad_(false);
  mark_module_as_shared(*network);
  const auto step = [&](bool uses_all) {
    const ReadingObserver observer;
    network->forward(data(world.rank, 0), uses_all).backward();
    return observer.reads();
  };
  EXPECT_EQ(step(true), 0);  // every rank reaches every parameter
  const Gradients first = gradients_of(network);
  for (const Tensor& gradient : first) EXPECT_TRUE(gradient.defined());
  // Where a gradient stands already, zeros may be added to it.
  EXPECT_EQ(step(false), 0);
  std::vector<int> all;
  for (int rank = 0; rank < world.size; ++rank) all.push_back(rank);
  const Gradients with = expected(world.size, {0}, all);
  const Gradients without = expected(world.size, {0});
  expect_equal(gradients_of(network), {with[0] + without[0], with[1] + without[1], with[2]});
  // Else the others have to be asked: one read.
  network->zero_grad();
  EXPECT_EQ(step(false), 1);
  EXPECT_FALSE(network->sometimes.grad().defined());
});

TEST(SharedModuleTest, TheHostReadsOnlyWhatItCannotKnow) { run_in_worlds("shared_unread", {2}); }

const bool kUnused = register_rank_function("shared_unused", [] {
  const JoinedWorld world;
  Network network;
  mark_module_as_shared(*network);
  const bool uses_it = world.rank == world.size - 1;
  for (int step = 0; step < 2; ++step) {
    network->forward(data(world.rank, step), uses_it).backward();
  }
  // On ranks that have not used it too; and what no rank uses is left alone.
  expect_equal(gradients_of(network), expected(world.size, {0, 1}, {world.size - 1}));
  EXPECT_FALSE(network->never.grad().defined());

  // A rank that uses nothing is tied.
  network->zero_grad();
  Tensor loss = at::zeros({}, at::kDouble);
  loss = world.rank == 0 ? network->forward(data(0, 1)) : tie(loss, network->first * 1);
  loss.backward();
  expect_equal({network->first.grad()}, {expected(1, {1})[0]});
});

TEST(SharedModuleTest, AParameterUnusedOnSomeRanksCountsAsZeroThere) {
  run_in_worlds("shared_unused", {1, 2, 3});
}

const bool kOptions = register_rank_function("shared_options", [] {
  const JoinedWorld world;
  {
    Network network;
    SharedModuleOptions options;
    options.mean = true;
    mark_module_as_shared(*network, options);
    network->forward(data(world.rank, 1)).backward();
    const Gradients wanted = expected(world.size, {1});
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_TRUE(at::allclose(gradients_of(network)[i], wanted[i] / world.size));
    }
  }
  for (const bool use_fp32 : {true, false}) {
    Network network(at::kBFloat16);
    mark_module_as_shared(*network, std::nullopt, true, use_fp32);
    // 256 + 1 is 256 in bfloat16.
    Tensor x = at::zeros({1, 2}, at::kBFloat16);
    x[0][0] = world.rank == 0 ? 128 : 0.5;  // times second, 2
    network->forward(x).backward();
    const Tensor wanted = at::full({3}, 255.0 + world.size, at::kBFloat16);
    if (use_fp32) {
      EXPECT_TRUE(at::equal(network->first.grad()[0], wanted)) << network->first.grad();
    }
    EXPECT_EQ(network->first.grad().scalar_type(), at::kBFloat16);
  }
  // Its own parameters alone.
  struct Outer : torch::nn::Module {
    Outer() : own(register_parameter("own", at::ones({1}, at::kDouble))), inner() {
      register_module("inner", inner);
    }
    Tensor own;
    Network inner;
  };
  Outer outer;
  mark_module_as_shared(outer, "world", /*recurse=*/false);
  (outer.own.sum() + outer.inner->forward(data(world.rank, 1))).backward();
  EXPECT_EQ(outer.own.grad().item<double>(), world.size);
  Network alone;
  alone->forward(data(world.rank, 1)).backward();
  expect_equal(gradients_of(outer.inner), gradients_of(alone));
});

TEST(SharedModuleTest, MeansFloat32SumsAndRecursionAreOptions) {
  run_in_worlds("shared_options", {1, 3});
}

// Models that mark themselves do so in float32, before to() makes them float64.
const bool kConverted = register_rank_function("shared_converted", [] {
  const JoinedWorld world;
  Network network(at::kFloat);
  mark_module_as_shared(*network);
  network->to(at::kDouble);
  // Twice 2^30 + 0.5 has 32 significant bits; float32 keeps 24.
  Tensor x = at::zeros({1, 2}, at::kDouble);
  x[0][0] = world.rank == 0 ? 1073741824.5 : 0.5;  // times second, 2
  const bool uses_it = world.rank == world.size - 1;
  network->forward(x, uses_it).backward();
  const Tensor wanted = at::full({3}, 2147483648.0 + world.size, at::kDouble);
  EXPECT_TRUE(at::equal(network->first.grad()[0], wanted)) << network->first.grad();
  for (const Tensor& gradient : gradients_of(network)) {
    ASSERT_TRUE(gradient.defined());
    EXPECT_EQ(gradient.scalar_type(), at::kDouble);
  }
  network->zero_grad();
  network->to(at::kFloat);
  network->forward(data(world.rank, 1, at::kFloat)).backward();
  EXPECT_EQ(network->first.grad().scalar_type(), at::kFloat);
  EXPECT_TRUE(at::equal(network->first.grad().to(at::kDouble), expected(world.size, {1})[0]));
});

TEST(SharedModuleTest, GradientsTravelInTheDtypeThatParametersHaveByThen) {
  run_in_worlds("shared_converted", {1, 2});
}

const bool kGroups = register_rank_function("shared_groups", [] {
  const JoinedWorld world;
  DistributedManager::create_process_subgroup("pair", 2);
  Network everywhere, in_pairs, alone;
  mark_module_as_shared(*everywhere);
  mark_module_as_shared(*in_pairs, "pair");
  // The order of the gradients differs between ranks, that of the reductions does not.
  const Tensor x = data(world.rank, 1);
  (world.rank % 2 == 0 ? everywhere->forward(x) + in_pairs->forward(x)
                       : in_pairs->forward(x) + everywhere->forward(x))
      .backward();
  expect_equal(gradients_of(everywhere), expected(world.size, {1}));
  for (int rank = world.rank / 2 * 2; rank < world.rank / 2 * 2 + 2; ++rank) {
    alone->forward(data(rank, 1)).backward();
  }
  expect_equal(gradients_of(in_pairs), gradients_of(alone));
});

TEST(SharedModuleTest, SeveralModulesAreReducedInTheOrderOfTheirMarks) {
  run_in_worlds("shared_groups", {4});
}

const bool kAveraged = register_rank_function("shared_and_averaged", [] {
  const JoinedWorld world;
  DistributedManager::create_process_subgroup("pair", 2);
  DistributedManager::create_orthogonal_process_group("across", "pair");
  Network network;
  mark_module_as_shared(*network, "pair");
  DistributedDataParallelOptions options;
  options.process_group = world.manager.group("across");
  options.find_unused_parameters = true;
  DistributedDataParallel model(network, options);
  for (const int step : {0, 1}) model(data(world.rank, step), true).backward();
  expect_equal(gradients_of(network), expected(4, {0, 1}, {0, 1, 2, 3}, 0.5));
  const auto error = [&](auto& wrapped) -> std::string {
    try {
      wrapped(data(world.rank, 0), true);
    } catch (const SharedModuleError& raised) {
      return raised.what_without_backtrace();
    }
    return "none";
  };
  {
    const NoSyncGuard guard = model->no_sync();
    EXPECT_THAT(error(model), testing::HasSubstr("no_sync()"));
    const at::NoGradGuard no_grad;
    EXPECT_EQ(error(model), "none");
  }
  options.gradient_as_bucket_view = true;
  DistributedDataParallel views(network, options);
  EXPECT_THAT(error(views), testing::HasSubstr("gradient_as_bucket_view"));
});

TEST(SharedModuleTest, WithinDataParallelTrainingTheSumsAreAveraged) {
  run_in_worlds("shared_and_averaged", {4});
}

// Throws in the backward pass.
struct Bomb : torch::autograd::Function<Bomb> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list) {
    throw std::runtime_error("bomb");
  }
};

const bool kPasses = register_rank_function("shared_passes", [] {
  const JoinedWorld world;
  Network network;
  mark_module_as_shared(*network);
  network->forward(data(world.rank, 0)).backward();
  const Gradients before = expected(world.size, {0});

  // grad() accumulates nothing, so there is nothing to reduce.
  const Tensor local =
      torch::autograd::grad({network->forward(data(world.rank, 1))}, {network->first})[0];
  Network alone;
  alone->forward(data(world.rank, 1)).backward();
  EXPECT_TRUE(at::equal(local, alone->first.grad()));
  expect_equal(gradients_of(network), before);

  // A pass that fails leaves them as they were, and the next one works.
  const Tensor x = data(world.rank, 1).requires_grad_();
  EXPECT_THROW(network->forward(Bomb::apply(x)).backward(), std::runtime_error);
  expect_equal(gradients_of(network), before);
  network->forward(data(world.rank, 1)).backward();
  expect_equal(gradients_of(network), expected(world.size, {0, 1}));

  // With a graph of the gradients the sums are right, and constants.
  network->zero_grad();
  for (const int step : {1, 2}) {
    network->forward(data(world.rank, step)).backward({}, std::nullopt, /*create_graph=*/true);
  }
  EXPECT_TRUE(at::equal(network->first.grad().detach(), expected(world.size, {1, 2})[0]));
  EXPECT_FALSE(network->first.grad().requires_grad() && world.size > 1);
});

TEST(SharedModuleTest, PassesThatFailOrOnlyAskLeaveGradientsAlone) {
  run_in_worlds("shared_passes", {1, 2});
}

// Runs a backward pass of its own within another one.
std::function<void()> inner_pass;
struct Nested : torch::autograd::Function<Nested> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    const at::AutoGradMode enabled(true);
    inner_pass();
    return gradients;
  }
};

const bool kNested = register_rank_function("shared_nested", [] {
  const JoinedWorld world;
  Network network;
  mark_module_as_shared(*network);
  inner_pass = [&] { network->forward(data(world.rank, 2)).backward(); };
  const Tensor x = data(world.rank, 1).requires_grad_();
  // Before and after the parameters' own gradients have come.
  network->forward(Nested::apply(x)).backward();
  expect_equal(gradients_of(network), expected(world.size, {1, 2}));
  network->zero_grad();
  Nested::apply(network->forward(x)).backward();
  expect_equal(gradients_of(network), expected(world.size, {1, 2}));
});

TEST(SharedModuleTest, PassesMayNest) { run_in_worlds("shared_nested", {1, 2}); }

const bool kSparse = register_rank_function("shared_sparse", [] {
  const JoinedWorld world;
  torch::manual_seed(0);
  torch::nn::Embedding table(torch::nn::EmbeddingOptions(4, 2).sparse(true));
  mark_module_as_shared(*table);
  for (int pass = 1; pass <= 2; ++pass) {
    table(at::tensor({0, world.rank}, at::kLong)).sum().backward();
    const Tensor gradient = table->weight.grad();
    EXPECT_EQ(gradient[0][0].item<double>(), pass * (world.size + 1));
    for (int row = 1; row < world.size; ++row) EXPECT_EQ(gradient[row][1].item<double>(), pass);
  }
});

TEST(SharedModuleTest, SparseGradientsAreSummedToo) {
  run_in_worlds("shared_sparse", {3}, {"ucx"});
}

const bool kForbidden = register_rank_function("shared_forbidden", [] {
  const JoinedWorld world;
  Network network, other;
  mark_module_as_shared(*network);
  network->forward(data(world.rank, 0)).backward();
  const auto expect = [](const std::function<void()>& call, const char* part) {
    const std::string text = error_of(call);
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  {
    const NoCollectives none("update()");
    expect([&] { mark_module_as_shared(*other); }, "mark_module_as_shared inside update()");
    expect([&] { network->forward(data(world.rank, 1)).backward(); },
           "backward() of a shared module inside update()");
    expect([&] { DistributedDataParallel model(other); },
           "DistributedDataParallel() inside update()");
  }
  // Gradients are as they were, and the module can still be used.
  expect_equal(gradients_of(network), expected(world.size, {0}));
  network->forward(data(world.rank, 2)).backward();
  expect_equal(gradients_of(network), expected(world.size, {0, 2}));
});

TEST(SharedModuleTest, IsForbiddenWhereStateChangesInAnyWorld) {
  run_in_worlds("shared_forbidden", {1, 2});
}

const bool kWrong = register_rank_function("shared_wrong", [] {
  const JoinedWorld world;
  const bool odd = world.rank == 1;
  const auto expect = [](const std::function<void()>& call, const char* part) {
    expect_error_on_all_ranks(call, part);
    EXPECT_THROW(call(), SharedModuleError);
  };
  Network network;
  mark_module_as_shared(*network);
  expect([&] { mark_module_as_shared(*network); }, "marked as shared already");
  // On one rank alone.
  Network other;
  expect([&] { mark_module_as_shared(odd ? *network : *other); }, "marked as shared already");
  expect([&] { mark_module_as_shared(*other, std::nullopt, true, odd); }, "options differ");
  Network smaller(odd ? at::kFloat : at::kDouble);
  expect([&] { mark_module_as_shared(*smaller); }, "module differs");
  torch::nn::Module empty;
  expect([&] { mark_module_as_shared(empty); }, "nothing to share");
  EXPECT_THROW(mark_module_as_shared(*other, "nobody"), c10::Error);
  EXPECT_THROW(unmark_module_as_shared(*other), SharedModuleError);
  EXPECT_THROW(unmark_module_as_shared(empty), SharedModuleError);
  unmark_module_as_shared(*network);
  EXPECT_THROW(unmark_module_as_shared(*network), SharedModuleError);
  mark_module_as_shared(*network);
  network->forward(data(world.rank, 0)).backward();
  expect_equal(gradients_of(network), expected(world.size, {0}));
});

TEST(SharedModuleTest, WrongMarksAreTypedErrorsOnAllRanks) {
  run_in_worlds("shared_wrong", {2, 3});
}

}  // namespace
}  // namespace meshrun
