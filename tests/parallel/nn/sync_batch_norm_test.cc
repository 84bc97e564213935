// SyncBatchNorm in real rank processes, against torch::nn::BatchNorm on the whole batch in each of
// them.
#include "parallel/nn/sync_batch_norm.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/functional.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <optional>
#include <string>
#include <vector>

#include "parallel/collectives/all_reduce.h"
#include "parallel/nn/distributed_data_parallel.h"
#include "tests/parallel/collectives/worlds.h"
#include "tests/parallel/support/gradcheck.h"
#include "tests/parallel/support/rank_processes.h"

namespace meshrun {
namespace {

using at::Tensor;
using std::vector;
using torch::nn::BatchNormOptions;

double difference(const Tensor& actual, const Tensor& expected) {
  const Tensor a = actual.detach().to(at::kDouble), b = expected.detach().to(at::kDouble);
  if (b.numel() == 0) return a.sizes() == b.sizes() ? 0 : 1;
  return (a - b).abs().max().item<double>() / std::max(b.abs().max().item<double>(), 1.0);
}

struct Part {
  int64_t begin, count;
};

// Samples by rank: uneven, with empty ones, all on the last.
vector<vector<int64_t>> splits(int world) {
  vector<int64_t> uneven, last(static_cast<size_t>(world), 0);
  for (int r = 0; r < world; ++r) uneven.push_back((r * 2 + 3) % 5);  // 3, 0, 2, 4
  last.back() = 3;
  return {vector<int64_t>(static_cast<size_t>(world), 2), uneven, last};
}

Part part_of(const vector<int64_t>& split, int rank) {
  Part part{0, split[static_cast<size_t>(rank)]};
  for (int r = 0; r < rank; ++r) part.begin += split[static_cast<size_t>(r)];
  return part;
}

int64_t total(const vector<int64_t>& split) {
  return part_of(split, static_cast<int>(split.size()) - 1).begin + split.back();
}

Tensor draw(vector<int64_t> shape, int seed, at::ScalarType type) {
  at::manual_seed(seed);
  return at::randn(shape, at::kDouble).to(type);
}

struct Reference {
  Tensor output, input_grad;
  vector<Tensor> parameter_grads;
};

Reference on_whole(const BatchNormOptions& options, const Tensor& whole, const Tensor& cotangent,
                   torch::nn::BatchNorm2d& norm) {
  // As a field of one column, so that one class takes every number of dimensions.
  const Tensor x = whole.detach().clone().requires_grad_();
  const Tensor y = norm(x.flatten(2).unsqueeze(-1)).view(whole.sizes());
  y.backward(cotangent);
  Reference reference{y.detach(), x.grad(), {}};
  for (const Tensor& parameter : norm->parameters()) {
    reference.parameter_grads.push_back(parameter.grad());
  }
  (void)options;
  return reference;
}

void expect_equal_to_one_process(const JoinedWorld& world, const BatchNormOptions& options,
                                 const vector<int64_t>& split, const vector<int64_t>& extents,
                                 at::ScalarType type, double shift, double tolerance) {
  vector<int64_t> shape = {total(split), options.num_features()};
  shape.insert(shape.end(), extents.begin(), extents.end());
  torch::nn::BatchNorm2d alone(options);
  SyncBatchNorm norm(options);
  for (torch::nn::Module* module : {static_cast<torch::nn::Module*>(alone.get()),
                                    static_cast<torch::nn::Module*>(norm.get())}) {
    module->to(type);
    for (auto& parameter : module->named_parameters()) {
      const at::NoGradGuard guard;
      parameter.value().copy_(at::arange(1, options.num_features() + 1));
    }
  }
  const Part own = part_of(split, world.rank);
  const auto piece = [&](const Tensor& tensor) { return tensor.narrow(0, own.begin, own.count); };
  for (int step = 0; step < 3; ++step) {
    const Tensor whole = draw(shape, step, type) + shift;
    const Tensor cotangent = draw(shape, 10 + step, type);
    alone->zero_grad();
    norm->zero_grad();
    const Reference reference = on_whole(options, whole, cotangent, alone);
    const Tensor x = piece(whole).clone().requires_grad_();
    const Tensor y = norm(x);
    EXPECT_EQ(y.scalar_type(), type);
    EXPECT_LE(difference(y, piece(reference.output)), tolerance);
    y.backward(piece(cotangent));
    EXPECT_LE(difference(x.grad(), piece(reference.input_grad)), tolerance);
    const vector<Tensor> parameters = norm->parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      const Tensor sum = parameters[i].grad().to(at::kDouble).clone();
      detail::all_reduce(world.manager.world(), sum).wait();
      EXPECT_LE(difference(sum, reference.parameter_grads[i]), tolerance);
    }
  }
  const vector<Tensor> expected = alone->buffers(), buffers = norm->buffers();
  ASSERT_EQ(buffers.size(), expected.size());
  for (size_t i = 0; i < buffers.size(); ++i) {
    EXPECT_LE(difference(buffers[i], expected[i]), tolerance) << i;
  }
  alone->eval();
  norm->eval();
  if (options.track_running_stats()) {
    const Tensor whole = draw(shape, 20, type) + shift;
    EXPECT_LE(difference(norm(piece(whole)),
                         piece(alone(whole.flatten(2).unsqueeze(-1)).view(whole.sizes()))),
              tolerance);
  }
}

const bool kSame = register_rank_function("sync_norm_same", [] {
  const JoinedWorld world;
  for (const vector<int64_t>& split : splits(world.size)) {
    for (const vector<int64_t>& extents : vector<vector<int64_t>>{{5}, {2, 3}, {2, 1, 2}}) {
      SCOPED_TRACE(c10::str("samples ", split, ", extents ", extents));
      for (const auto& options : {BatchNormOptions(3), BatchNormOptions(3).affine(false),
                                  BatchNormOptions(3).track_running_stats(false),
                                  BatchNormOptions(2).momentum(std::nullopt),
                                  BatchNormOptions(2).momentum(0.3).eps(1e-3)}) {
        expect_equal_to_one_process(world, options, split, extents, at::kDouble, 0.5, 1e-12);
      }
      expect_equal_to_one_process(world, BatchNormOptions(4), split, extents, at::kFloat, 0.5,
                                  2e-5);
      // A mean far from zero costs no digits. LibTorch's own float32 has lost them: against
      // float64.
      expect_equal_to_one_process(world, BatchNormOptions(4), split, extents, at::kDouble, 1e5,
                                  1e-8);
    }
  }
});
TEST(SyncBatchNormTest, EqualsBatchNormOnTheWholeBatch) {
  run_in_worlds("sync_norm_same", {1, 2, 3, 4}, {"ucx"});
  run_in_worlds("sync_norm_same", {3}, {"gloo"});
}

const bool kFarMean = register_rank_function("sync_norm_far_mean", [] {
  const JoinedWorld world;
  at::manual_seed(world.rank);
  const Tensor x = (at::randn({4, 2, 8}) + 4096).requires_grad_();
  SyncBatchNorm norm(BatchNormOptions(2).affine(false));
  const Tensor y = norm(x);
  Tensor squares = y.square().sum().to(at::kDouble).detach();
  detail::all_reduce(world.manager.world(), squares).wait();
  EXPECT_NEAR(squares.item<double>() / (64.0 * world.size), 1, 1e-3);
});
TEST(SyncBatchNormTest, AMeanFarFromZeroCostsNoDigits) {
  run_in_worlds("sync_norm_far_mean", {3}, {"ucx"});
}

const bool kHalf = register_rank_function("sync_norm_half", [] {
  const JoinedWorld world;
  SyncBatchNorm norm(BatchNormOptions(2));  // parameters of float32, as under autocast
  const Tensor whole = draw({3 * world.size, 2, 4}, 1, at::kBFloat16);
  const Tensor x = whole.narrow(0, 3 * world.rank, 3).clone().requires_grad_();
  const Tensor y = norm(x);
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  torch::nn::BatchNorm1d alone(BatchNormOptions(2));
  EXPECT_LE(difference(y, alone(whole.to(at::kFloat)).narrow(0, 3 * world.rank, 3)), 1e-2);
  EXPECT_LE(difference(norm->running_var, alone->running_var), 1e-5);
  y.sum().backward();
  EXPECT_EQ(x.grad().scalar_type(), at::kBFloat16);
  EXPECT_EQ(norm->weight.grad().scalar_type(), at::kFloat);
});
TEST(SyncBatchNormTest, HalfPrecisionIsComputedInFloat32) {
  run_in_worlds("sync_norm_half", {2}, {"ucx"});
}

const bool kNothing = register_rank_function("sync_norm_nothing", [] {
  const JoinedWorld world;
  SyncBatchNorm norm(BatchNormOptions(2));
  const Tensor x = at::zeros({0, 2, 4}).requires_grad_();
  const Tensor y = norm(x);
  EXPECT_EQ(y.sizes(), x.sizes());
  y.sum().backward();
  EXPECT_EQ(x.grad().sizes(), x.sizes());
  EXPECT_EQ(norm->running_mean.sum().item<float>(), 0);
  EXPECT_EQ(norm->running_var.sum().item<float>(), 2);
  EXPECT_EQ(norm->weight.grad().sum().item<float>(), 0);
});
TEST(SyncBatchNormTest, ABatchThatIsEmptyOnAllRanksChangesNothing) {
  run_in_worlds("sync_norm_nothing", {1, 2}, {"ucx"});
}

const bool kDerivatives = register_rank_function("sync_norm_derivatives", [] {
  const JoinedWorld world;
  const RankFunction function = [&](const vector<Tensor>& inputs) {
    const Tensor y = sync_batch_norm(inputs[0], inputs[1], inputs[2], {}, {}, 0.1, 1e-3);
    return vector<Tensor>{y * y};
  };
  const Tensor x = draw({2 * world.rank + 1, 2, 2}, 3 + world.rank, at::kDouble).requires_grad_();
  const Tensor weight = at::tensor({0.7, 1.3}, at::kDouble).requires_grad_();
  const Tensor bias = at::tensor({0.2, -0.4}, at::kDouble).requires_grad_();
  EXPECT_EQ(gradcheck(world.manager.world(), function, {x, weight, bias}), "");
  EXPECT_EQ(gradgradcheck(world.manager.world(), function, {x, weight, bias}), "");
});
TEST(SyncBatchNormTest, DerivativesAgreeWithDifferences) {
  run_in_worlds("sync_norm_derivatives", {1, 2, 3}, {"ucx"});
}

// Norms in members of a class and in containers, which nobody can replace.
struct NetworkImpl : torch::nn::Module {
  explicit NetworkImpl() {
    at::manual_seed(5);
    first =
        register_module("first", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 3, 3).padding(1)));
    norm = register_module("norm", torch::nn::BatchNorm2d(3));
    rest = register_module("rest",
                           torch::nn::Sequential(torch::nn::Flatten(), torch::nn::Linear(12, 4),
                                                 torch::nn::BatchNorm1d(4), torch::nn::ReLU(),
                                                 torch::nn::Linear(4, 1)));
    to(at::kDouble);
  }
  Tensor forward(const Tensor& x) { return rest->forward(norm(first(x)).relu()); }

  torch::nn::Conv2d first = nullptr;
  torch::nn::BatchNorm2d norm = nullptr;
  torch::nn::Sequential rest = nullptr;
};
TORCH_MODULE(Network);

const bool kConverted = register_rank_function("sync_norm_converted", [] {
  const JoinedWorld world;
  Network alone, network;
  EXPECT_EQ(convert_sync_batch_norm(network), 2);
  EXPECT_EQ(convert_sync_batch_norm(network, world.manager.world()), 2);  // again: no harm
  DistributedDataParallel model(network, {.broadcast_buffers = false});
  torch::optim::SGD alone_optimizer(alone->parameters(), 0.1);
  torch::optim::SGD optimizer(network->parameters(), 0.1);
  const int64_t batch = 12, own = batch / world.size;
  for (int step = 0; step < 4; ++step) {
    const Tensor whole = draw({batch, 2, 2, 2}, step, at::kDouble);
    alone_optimizer.zero_grad();
    optimizer.zero_grad();
    alone(whole).square().mean().backward();
    model(whole.narrow(0, own * world.rank, own)).square().mean().backward();
    alone_optimizer.step();
    optimizer.step();
  }
  for (const auto& item : alone->named_parameters()) {
    EXPECT_LE(difference(network->named_parameters()[item.key()], item.value()), 1e-12)
        << item.key();
  }
  for (const auto& item : alone->named_buffers()) {
    EXPECT_LE(difference(network->named_buffers()[item.key()], item.value()), 1e-12) << item.key();
  }
  // In evaluation nothing is exchanged: one rank may do it alone.
  network->eval();
  if (world.rank == 0) network(draw({2, 2, 2, 2}, 9, at::kDouble));
  // `alone` was never converted, and a clone is not.
  if (world.rank == 0) alone(draw({2, 2, 2, 2}, 9, at::kDouble));

  struct Bare : torch::nn::Module {
    Bare() {
      register_module("good", torch::nn::BatchNorm1d(2));
      register_module("bare", torch::nn::BatchNorm1d(
                                  BatchNormOptions(2).affine(false).track_running_stats(false)));
    }
  };
  Bare bare;
  EXPECT_THAT(error_of([&] { convert_sync_batch_norm(bare); }), ::testing::HasSubstr("'bare'"));
});
TEST(SyncBatchNormTest, AConvertedNetworkTrainsAsOneProcess) {
  run_in_worlds("sync_norm_converted", {1, 2, 3, 4}, {"ucx"});
}

// Nothing is sent, so ranks evaluate other batches, and one of them alone.
const bool kEvaluates = register_rank_function("sync_norm_evaluates", [] {
  const JoinedWorld world;
  const auto options = BatchNormOptions(3).track_running_stats(false);
  torch::nn::BatchNorm2d alone(options);
  SyncBatchNorm norm(options);
  torch::nn::Sequential network(torch::nn::BatchNorm2d{options});
  EXPECT_EQ(convert_sync_batch_norm(*network), 1);
  norm->eval();
  network->eval();
  if (world.rank == world.size - 1) {
    const Tensor x = draw({2, 3, 2, 2}, world.rank, at::kFloat);
    alone->eval();
    EXPECT_TRUE(at::equal(norm(x), alone(x)));
    EXPECT_TRUE(at::equal(network->forward(x), alone(x)));
    EXPECT_EQ(norm(x.narrow(0, 0, 0)).size(0), 0);
    EXPECT_THAT(error_of([&] {
                  norm(at::ones({1, 3}));
                }),
                ::testing::HasSubstr("more than 1 value per channel"));
  }
  // In training all ranks count again.
  norm->train();
  network->train();
  alone->train();
  const Tensor whole = draw({2 * world.size, 3, 2, 2}, 7, at::kFloat);
  const Tensor wanted = alone(whole).narrow(0, 2 * world.rank, 2);
  EXPECT_LE(difference(norm(whole.narrow(0, 2 * world.rank, 2)), wanted), 1e-5);
  EXPECT_LE(difference(network->forward(whole.narrow(0, 2 * world.rank, 2)), wanted), 1e-5);
});
TEST(SyncBatchNormTest, EvaluationWithoutRunningStatisticsTakesTheRanksOwnBatch) {
  run_in_worlds("sync_norm_evaluates", {1, 2, 3}, {"ucx"});
}

// Rank 1 reaches one of two layers that are alike.
const bool kUnreached = register_rank_function("sync_norm_unreached", [] {
  const JoinedWorld world;
  SyncBatchNorm first(BatchNormOptions(3)), second(BatchNormOptions(3));
  const Tensor x = draw({2, 3}, world.rank, at::kDouble), y = draw({2, 3}, 9, at::kDouble);
  first->to(at::kDouble), second->to(at::kDouble);
  const Tensor a = first(x).square().sum(), b = second(y).square().sum();
  const Tensor loss = world.rank == 1 ? a : a + b;
  expect_error_on_all_ranks([&] { loss.backward(); }, "not of one call's backward pass");
});

TEST(SyncBatchNormTest, BackwardPassesOfTwoLayersNeverMeet) {
  run_in_worlds("sync_norm_unreached", {2, 3}, {"ucx"});
}

const bool kWrong = register_rank_function("sync_norm_wrong", [] {
  const JoinedWorld world;
  const bool odd = world.rank == 1;
  SyncBatchNorm norm(BatchNormOptions(2).affine(false).track_running_stats(false));
  expect_error_on_all_ranks([&] { norm(at::ones({2, odd ? 3 : 2})); }, "disagree");
  EXPECT_THAT(error_of([&] {
                norm(at::ones({odd ? 0 : 1, 2}));
              }),
              ::testing::HasSubstr("more than 1 value per channel"));
  EXPECT_THAT(error_of([&] { norm(at::ones({2})); }),
              ::testing::HasSubstr("[batch, channels, ...]"));
  EXPECT_EQ(norm(at::ones({1, 2})).size(0), 1);  // two in all
});
TEST(SyncBatchNormTest, AWrongCallIsAnErrorOnAllRanks) {
  run_in_worlds("sync_norm_wrong", {2}, {"ucx"});
}

}  // namespace
}  // namespace meshrun
