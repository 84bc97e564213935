// The distributed transforms and FNO on one GPU, against the CPU. A world of one sends nothing:
// what is left are cuFFT, the order of rows, and where tensors are.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "parallel/fft/distributed_fft.h"
#include "parallel/fft/distributed_fftn.h"
#include "parallel/manager/device_choice.h"
#include "parallel/manager/distributed_manager.h"
#include "parallel/nn/fno.h"

namespace meshrun {
namespace {

using at::Tensor;
using Sizes = std::vector<int64_t>;

double relative(const Tensor& a, const Tensor& b) {
  return ((a.cpu() - b.cpu()).norm() / b.cpu().norm()).item<double>();
}

class FftNcclTest : public testing::Test {
 protected:
  void SetUp() override {
    if (gpu_count() == 0) GTEST_SKIP() << "this process sees no GPU (nvidia-smi -L lists them)";
    DistributedManager::setup(0, 1, 0, "localhost", "12355", "nccl");
  }
  void TearDown() override {
    if (DistributedManager::is_initialized()) DistributedManager::cleanup();
  }
};

TEST_F(FftNcclTest, TransformsAndGradientsAreTheUnshardedOnes) {
  const c10::Device gpu = DistributedManager::get().device();
  for (const auto& [height, width] : {std::pair<int64_t, int64_t>{45, 90}, {90, 45}, {720, 1440}}) {
    for (const FftLayout layout : {FftLayout::kCanonical, FftLayout::kPaired}) {
      const bool paired = layout == FftLayout::kPaired;
      at::manual_seed(1);
      const Tensor x = at::randn({3, height, width}, at::kDouble).to(gpu).requires_grad_();
      const FftOptions options{.s = {height, width}, .group = {}, .layout = layout};
      const Tensor y = distributed_rfft2(x, options);
      const Tensor expected =
          at::fft_rfft2(x, std::nullopt, paired ? Sizes{2, 1} : Sizes{1, 2}, "ortho");
      EXPECT_LE(relative(y, expected), 1e-12);
      EXPECT_LE(relative(distributed_irfft2(y, options), x), 1e-12);
      at::real(y * y.conj()).sum().backward();
      const Tensor own = x.grad().clone();
      x.mutable_grad() = Tensor();
      at::real(expected * expected.conj()).sum().backward();
      EXPECT_LE(relative(own, x.grad()), 1e-12);
    }
  }
  const Tensor x = at::randn({2, 6, 5, 8}, at::kDouble).to(gpu);
  const FftOptions options{.s = {6, 5, 8}, .dim = {1, 2, 3}, .group = {}};
  const Tensor y = distributed_rfftn(x, options);
  EXPECT_LE(relative(y, at::fft_rfftn(x, std::nullopt, Sizes{1, 2, 3}, "ortho")), 1e-12);
  EXPECT_LE(relative(distributed_irfftn(y, options), x), 1e-12);
}

TEST_F(FftNcclTest, FnoIsTheCpus) {
  const auto outcome = [](c10::Device device, bool grouped) {
    at::manual_seed(2);
    FNOOptions options = FNOOptions().width(8).modes({4, 5}).num_layers(2).padding(2);
    if (grouped) options.group(GroupArgument());
    FNO network(options);
    network->to(device, at::kDouble);
    at::manual_seed(3);
    const Tensor y = network(at::randn({2, 1, 16, 20}, at::kDouble).to(device));
    y.square().sum().backward();
    std::map<std::string, Tensor> results = {{"output", y.detach()}};
    for (const auto& item : network->named_parameters()) {
      results["gradient of " + item.key()] = item.value().grad();
    }
    return results;
  };
  const auto wanted = outcome(c10::kCPU, false);
  for (const bool grouped : {false, true}) {
    const auto got = outcome(DistributedManager::get().device(), grouped);
    ASSERT_EQ(got.size(), wanted.size());
    for (const auto& [name, tensor] : wanted) {
      EXPECT_LE(relative(got.at(name), tensor), 1e-10)
          << name << (grouped ? ", with a group" : ", without a group");
    }
  }
}

}  // namespace
}  // namespace meshrun
