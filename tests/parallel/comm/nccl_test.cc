// The CUDA half in a world of one rank: NCCL's group, and a data-parallel step on the GPU.
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "parallel/base/errors.h"
#include "parallel/comm/process_group_factory.h"
#include "parallel/comm/v_collectives_of.h"
#include "parallel/manager/device_choice.h"
#include "parallel/manager/distributed_manager.h"
#include "parallel/nn/distributed_data_parallel.h"
#include "parallel/nn/fully_connected.h"
#include "tests/parallel/support/v_calls.h"

namespace meshrun {
namespace {

using at::Tensor;

void join(const std::string& backend) {
  DistributedManager::setup(0, 1, 0, "localhost", "12355", backend);
}

class NcclTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (gpu_count() == 0) GTEST_SKIP() << "this process sees no GPU (nvidia-smi -L lists them)";
    join("nccl");
  }
  void TearDown() override { DistributedManager::cleanup(); }
};

TEST(NcclBackendTest, IsLinkedInAndSaysWhenThereIsNoGpu) {
  EXPECT_TRUE(has_backend("nccl"));
  if (gpu_count() == 0) {
    EXPECT_THROW(join("nccl"), BackendError);
  }
}

TEST_F(NcclTest, AllReduceWorksOnTheGpuAndOnTheCpu) {
  DistributedManager& manager = DistributedManager::get();
  EXPECT_EQ(manager.backend(), "nccl");
  EXPECT_EQ(manager.device(), c10::Device(c10::kCUDA, 0));
  for (const c10::Device device : {manager.device(), c10::Device(c10::kCPU)}) {
    std::vector<Tensor> tensors = {torch::full({1 << 20}, 3.0, device)};
    manager.world()->allreduce(tensors)->wait();
    EXPECT_EQ(tensors[0].device(), device);
    EXPECT_EQ(tensors[0].sum().item<double>(), 3.0 * (1 << 20));
  }
}

// A world of one sends nothing: what is left are the own slices, the kernels and the capture.
TEST_F(NcclTest, VCollectivesWorkOnTheGpuAndInAGraph) {
  DistributedManager& manager = DistributedManager::get();
  const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool();
  const c10::cuda::CUDAStreamGuard guard(stream);
  const Tensor input = torch::randn({6, 5}, manager.device()).to(torch::kHalf);
  const Tensor gathered = torch::zeros_like(input), reduced = torch::zeros_like(input);
  const Tensor exchanged = torch::zeros_like(input);
  VCollectivesOf collectives(manager.world(), c10::DeviceType::CUDA);
  const auto step = [&] {
    all_gather_v(*collectives, gathered, input, {5}, 1, {})->wait();
    reduce_scatter_v(*collectives, reduced, input, {6}, 0, {})->wait();
    all_to_all_v(*collectives, exchanged, {5}, 1, input, {5}, 1, {})->wait();
  };
  const auto expect_step = [&] {
    for (const Tensor& output : {gathered, reduced, exchanged}) {
      EXPECT_TRUE(torch::equal(output, input));
    }
  };
  step();
  expect_step();
  at::cuda::CUDAGraph graph;
  graph.capture_begin();
  step();
  graph.capture_end();
  input.add_(1);
  graph.replay();
  expect_step();
}

FullyConnected network(c10::Device device) {
  torch::manual_seed(0);
  FullyConnected made(FullyConnectedOptions().in_features(6).layer_size(64).out_features(3));
  made->to(device);
  return made;
}

TEST_F(NcclTest, ADataParallelStepEqualsThePlainOne) {
  DistributedManager& manager = DistributedManager::get();
  FullyConnected alone = network(manager.device());
  FullyConnected together = network(manager.device());
  DistributedDataParallel model(
      together, {.device_ids = {manager.device().index()}, .output_device = manager.device()});
  torch::optim::Adam alone_optimizer(alone->parameters(), 0.01);
  torch::optim::Adam optimizer(model->parameters(), 0.01);
  for (int step = 0; step < 3; ++step) {
    const Tensor input = torch::randn({128, 6});  // on the CPU: the model moves it
    alone_optimizer.zero_grad();
    (alone(input.to(manager.device())) - 1).square().mean().backward();
    alone_optimizer.step();
    optimizer.zero_grad();
    (model(input) - 1).square().mean().backward();
    optimizer.step();
  }
  for (size_t i = 0; i < alone->parameters().size(); ++i) {
    const Tensor expected = alone->parameters()[i].detach();
    const Tensor actual = together->parameters()[i].detach();
    EXPECT_TRUE(actual.is_cuda());
    EXPECT_LT((actual - expected).norm().item<double>(), 1e-5 * expected.norm().item<double>());
  }
}

}  // namespace
}  // namespace meshrun
