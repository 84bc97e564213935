// AFNO and DistributedAFNO on one GPU, against the CPU. A world of one sends nothing: what is left
// are the transforms, the products, and where tensors are.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

#include "parallel/manager/device_choice.h"
#include "parallel/manager/distributed_manager.h"
#include "parallel/nn/afno.h"
#include "parallel/nn/autocast.h"
#include "parallel/nn/distributed_afno.h"

namespace meshrun {
namespace {

using at::Tensor;

// In float64: rounding in float32 moves modes over the kinks of relu and softshrink.
template <typename Model>
std::vector<Tensor> outcome_on(c10::Device device, Model model) {
  model->to(device, at::kDouble);
  at::manual_seed(4);
  const Tensor x = at::randn({2, 4, 32, 64}, at::kDouble).to(device).requires_grad_();
  const Tensor y = model(x);
  y.square().sum().backward();
  std::vector<Tensor> outcome = {y.detach().cpu(), x.grad().cpu()};
  for (const Tensor& parameter : model->parameters()) outcome.push_back(parameter.grad().cpu());
  return outcome;
}

void expect_close(const std::vector<Tensor>& actual, const std::vector<Tensor>& wanted) {
  ASSERT_EQ(actual.size(), wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_LE((actual[i] - wanted[i]).norm().item<double>(),
              1e-10 * wanted[i].norm().item<double>())
        << i;
  }
}

TEST(AfnoNcclTest, OutputsAndGradientsAreThoseOfTheCpu) {
  if (gpu_count() == 0) GTEST_SKIP() << "this process sees no GPU (nvidia-smi -L lists them)";
  DistributedManager::setup(0, 1, 0, "localhost", "12355", "nccl");
  DistributedManager::create_process_subgroup("model_parallel", 1);
  const c10::Device gpu = DistributedManager::get().device();
  const auto serial = [] {
    at::manual_seed(3);
    return AFNO(
        AFNOOptions({32, 64}, 4, 3).patch_size({4, 4}).embed_dim(32).depth(2).num_blocks(4));
  };
  const auto distributed = [] {
    at::manual_seed(3);
    return DistributedAFNO(
        DistributedAFNOOptions({32, 64}, 4).out_channels(3).patch_size(4).embed_dim(32).depth(2));
  };
  const std::vector<Tensor> wanted = outcome_on(c10::kCPU, serial());
  expect_close(outcome_on(gpu, serial()), wanted);
  expect_close(outcome_on(gpu, distributed()), wanted);

  AFNO model = serial();
  model->to(gpu);
  const Tensor x = at::randn({2, 4, 32, 64}).to(gpu);
  const Tensor exact = model(x).detach();
  const Tensor cast = in_bfloat16(gpu, [&] { return model(x); });
  EXPECT_LE((cast.detach() - exact).norm().item<double>(), 0.05 * exact.norm().item<double>());
  DistributedManager::cleanup();
}

}  // namespace
}  // namespace meshrun
