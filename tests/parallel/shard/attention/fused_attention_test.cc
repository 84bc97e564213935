#include "parallel/shard/attention/fused_attention.h"

#include <gtest/gtest.h>

#include <limits>
#include <stdexcept>
#include <string>

#include "ATen/ATen.h"

namespace meshrun {
namespace {

using at::Tensor;

const c10::Device kCpu(c10::kCPU);

const FusedAttention& kernel_of_cpu() { return *fused_attention(kCpu, at::kFloat, 16, false); }

TEST(FusedAttentionTest, TheCpusKernelComputesAsProductsDo) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16}) {
    for (const int64_t extent : {1, 8, 40}) {
      SCOPED_TRACE(c10::str(dtype, " ", extent));
      EXPECT_EQ(difference_from_products(kernel_of_cpu(), kCpu, dtype, extent), "");
    }
  }
}

TEST(FusedAttentionTest, TakesWhatItsDeviceComputes) {
  EXPECT_NE(fused_attention(kCpu, at::kDouble, 5, true), nullptr);
  EXPECT_EQ(fused_attention(kCpu, at::kDouble, 0, true), nullptr);
  EXPECT_EQ(fused_attention(c10::Device(c10::kMeta), at::kFloat, 16, false), nullptr);
}

// The kernel of the CPU with one fault.
class Wrong : public FusedAttention {
 public:
  enum class Fault {
    kTriangleFromTheEnd,
    kPaddedSum,
    kSumOfTwos,
    kGradientOfThisBlockAlone,
    kKeysWithoutScale,
    kValues,
    kNaN,
    kRaises
  };
  explicit Wrong(Fault fault) : fault_(fault) {}

  bool takes(at::ScalarType, int64_t, bool) const override { return true; }

  std::tuple<Tensor, Tensor> attend(const TileOperands& given) const override {
    if (fault_ == Fault::kRaises) throw std::runtime_error("no kernel image");
    TileOperands tile = given;
    const int64_t more = tile.query.size(2) - tile.key.size(2);
    if (fault_ == Fault::kTriangleFromTheEnd && tile.is_causal) {
      tile.bias = at::full({tile.query.size(2), tile.key.size(2)}, -1e9, tile.query.options())
                      .triu_(1 - more);
      tile.is_causal = false;
    }
    auto [output, sum] = kernel_of_cpu().attend(tile);
    if (fault_ == Fault::kPaddedSum) sum = at::constant_pad_nd(sum, {0, 21});
    if (fault_ == Fault::kSumOfTwos) sum = sum * 1.4426950408889634;
    if (fault_ == Fault::kNaN) output = output * std::numeric_limits<double>::quiet_NaN();
    return {output, sum};
  }

  TileGradients gradients(const TileOperands& tile, const Tensor& grad_output, const Tensor& output,
                          const Tensor& logsumexp) const override {
    const Tensor sum = fault_ == Fault::kGradientOfThisBlockAlone
                           ? std::get<1>(kernel_of_cpu().attend(tile))
                           : logsumexp;
    TileGradients gradients = kernel_of_cpu().gradients(tile, grad_output, output, sum);
    if (fault_ == Fault::kKeysWithoutScale) gradients.key.div_(tile.scale);
    if (fault_ == Fault::kValues) gradients.value.mul_(1.1);
    return gradients;
  }

 private:
  const Fault fault_;
};

TEST(FusedAttentionTest, AKernelThatDiffersIsFoundOut) {
  const auto difference = [](Wrong::Fault fault) {
    return difference_from_products(Wrong(fault), kCpu, at::kBFloat16, 16);
  };
  EXPECT_EQ(difference(Wrong::Fault::kTriangleFromTheEnd), "causal values");
  EXPECT_EQ(difference(Wrong::Fault::kPaddedSum), "logsumexp");
  EXPECT_EQ(difference(Wrong::Fault::kSumOfTwos), "logsumexp");
  EXPECT_EQ(difference(Wrong::Fault::kGradientOfThisBlockAlone), "gradient of the queries");
  EXPECT_EQ(difference(Wrong::Fault::kKeysWithoutScale), "gradient of the keys");
  EXPECT_EQ(difference(Wrong::Fault::kValues), "gradient of the values");
  EXPECT_EQ(difference(Wrong::Fault::kNaN), "values");
  EXPECT_THROW(difference(Wrong::Fault::kRaises), std::runtime_error);
}

}  // namespace
}  // namespace meshrun
