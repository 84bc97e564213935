// LibTorch's fused kernels on a GPU pass their trial, and attention by them is that of products.
#include <gtest/gtest.h>

#include "ATen/ATen.h"
#include "parallel/manager/device_choice.h"
#include "parallel/shard/attention/fused_attention.h"
#include "parallel/shard/attention/ring_attention.h"

namespace meshrun {
namespace {

using at::Tensor;

class FusedAttentionCudaTest : public testing::Test {
 protected:
  void SetUp() override {
    if (gpu_count() == 0) GTEST_SKIP() << "this process sees no GPU (nvidia-smi -L lists them)";
  }
};

TEST_F(FusedAttentionCudaTest, KernelsPassTheirTrial) {
  const c10::Device gpu(c10::kCUDA, 0);
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    for (const int64_t extent : {8, 40, 64, 128, 256}) {
      SCOPED_TRACE(c10::str(dtype, " ", extent));
      // What differs is in the warning.
      EXPECT_NE(fused_attention(gpu, dtype, extent, false), nullptr);
    }
  }
}

TEST_F(FusedAttentionCudaTest, AttentionIsThatOfTheCpu) {
  const c10::Device gpu(c10::kCUDA, 0);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const bool is_causal : {false, true}) {
      SCOPED_TRACE(c10::str(dtype, is_causal ? " causal" : ""));
      at::manual_seed(3);
      const Tensor whole = at::randn({3, 2, 4, 333, 64}).to(dtype).to(at::kDouble);
      const auto attend = [&](const Tensor& operands) {
        const Tensor leaf = operands.detach().requires_grad_();
        const Tensor output =
            whole_keys_attention(leaf[0], leaf[1], leaf[2], {.is_causal = is_causal});
        (output.to(at::kDouble) * 0.3).sin().sum().backward();
        return at::cat({output.detach().flatten(), leaf.grad().flatten()}).to(at::kDouble).cpu();
      };
      const Tensor expected = attend(whole);
      const Tensor computed = attend(whole.to(gpu, dtype));
      const double off = ((computed - expected).norm() / expected.norm()).item<double>();
      EXPECT_LE(off, dtype == at::kFloat ? 3e-3 : 3e-2);
    }
  }
}

}  // namespace
}  // namespace meshrun
