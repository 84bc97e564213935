#include "parallel/shard/attention/fused_attention.h"

#include <exception>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "ATen/Context.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/_scaled_dot_product_efficient_attention.h"
#include "ATen/ops/_scaled_dot_product_efficient_attention_backward.h"
#include "ATen/ops/_scaled_dot_product_flash_attention.h"
#include "ATen/ops/_scaled_dot_product_flash_attention_backward.h"
#include "ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h"
#include "ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h"
#include "ATen/ops/arange.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/constant_pad_nd.h"
#include "ATen/ops/empty.h"
#include "c10/core/DeviceGuard.h"
#include "c10/util/Exception.h"
#include "fmt/format.h"
#include "parallel/shard/attention/attention_arguments.h"

namespace meshrun {
namespace {

using at::Tensor;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The kernels read rows as runs of memory, whatever the last stride says; LibTorch looks at that
// before it chooses a kernel.
Tensor with_runs(const Tensor& tensor) {
  return tensor.size(3) <= 1 || tensor.stride(3) == 1 ? tensor : tensor.contiguous();
}

// The same with rows that begin at multiples of 16 bytes, as kernels of GPUs want them.
Tensor with_aligned_runs(const Tensor& tensor) {
  const int64_t numbers = 16 / static_cast<int64_t>(tensor.element_size());
  bool is_aligned = tensor.storage_offset() % numbers == 0;
  for (int64_t dim = 0; dim < 3; ++dim) is_aligned &= tensor.stride(dim) % numbers == 0;
  return is_aligned ? with_runs(tensor) : tensor.clone(at::MemoryFormat::Contiguous);
}

class CpuFlash : public FusedAttention {
 public:
  bool takes(at::ScalarType /*dtype*/, int64_t extent, bool /*has_bias*/) const override {
    return extent > 0;
  }

  std::tuple<Tensor, Tensor> attend(const TileOperands& tile) const override {
    const std::optional<Tensor> bias = bias_of(tile);
    auto [output, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
        with_runs(tile.query), with_runs(tile.key), with_runs(tile.value), 0.0,
        tile.is_causal && !bias, bias, tile.scale);
    if (bias) {
      // It reports 0 for a row without an allowed key.
      logsumexp = logsumexp.masked_fill(bias->amax({-1}) == -kInfinity, -kInfinity);
    }
    return {output, logsumexp};
  }

  TileGradients gradients(const TileOperands& tile, const Tensor& grad_output, const Tensor& output,
                          const Tensor& logsumexp) const override {
    const std::optional<Tensor> bias = bias_of(tile);
    auto [query, key, value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        with_runs(grad_output), with_runs(tile.query), with_runs(tile.key), with_runs(tile.value),
        with_runs(output), logsumexp, 0.0, tile.is_causal && !bias, bias, tile.scale);
    return {std::move(query), std::move(key), std::move(value), {}};
  }

 private:
  // The kernel takes a triangle of its own only where there is no bias: it cannot tell a row that
  // both together leave without keys.
  static std::optional<Tensor> bias_of(const TileOperands& tile) {
    if (!tile.bias.defined()) return std::nullopt;
    return bias_with_triangle(tile);
  }
};

class CudaFlash : public FusedAttention {
 public:
  bool takes(at::ScalarType dtype, int64_t extent, bool has_bias) const override {
    return (dtype == at::kHalf || dtype == at::kBFloat16) && extent > 0 && extent % 8 == 0 &&
           extent <= 256 && !has_bias;
  }

  std::tuple<Tensor, Tensor> attend(const TileOperands& tile) const override {
    if (!is_square(tile)) {
      const auto [triangle, rest] = parted(tile);
      const auto [upper, upper_sum] = attend(triangle);
      const auto [lower, lower_sum] = attend(rest);
      return {at::cat({upper, lower}, 2), at::cat({upper_sum, lower_sum}, 2)};
    }
    const auto results = at::_scaled_dot_product_flash_attention(
        in(tile.dtype, tile.query), in(tile.dtype, tile.key), in(tile.dtype, tile.value), 0.0,
        tile.is_causal, /*return_debug_mask=*/false, tile.scale);
    return {std::get<0>(results).to(at::kFloat), std::get<1>(results)};
  }

  TileGradients gradients(const TileOperands& tile, const Tensor& grad_output, const Tensor& output,
                          const Tensor& logsumexp) const override {
    if (!is_square(tile)) {
      const auto [triangle, rest] = parted(tile);
      const int64_t upper = triangle.query.size(2);
      const int64_t lower = rest.query.size(2);
      TileGradients sums = gradients(triangle, grad_output.narrow(2, 0, upper),
                                     output.narrow(2, 0, upper), logsumexp.narrow(2, 0, upper));
      const TileGradients more =
          gradients(rest, grad_output.narrow(2, upper, lower), output.narrow(2, upper, lower),
                    logsumexp.narrow(2, upper, lower));
      return {at::cat({sums.query, more.query}, 2),
              sums.key.add_(more.key),
              sums.value.add_(more.value),
              {}};
    }
    // Where dropout begins to draw: there is none.
    const at::TensorOptions longs = tile.query.options().dtype(at::kLong);
    auto [query, key, value] = at::_scaled_dot_product_flash_attention_backward(
        in(tile.dtype, grad_output), in(tile.dtype, tile.query), in(tile.dtype, tile.key),
        in(tile.dtype, tile.value), in(tile.dtype, output), logsumexp.contiguous(), Tensor(),
        Tensor(), tile.query.size(2), tile.key.size(2), 0.0, tile.is_causal, at::empty({2}, longs),
        at::empty({}, longs), tile.scale);
    return {query.to(at::kFloat), key.to(at::kFloat), value.to(at::kFloat), {}};
  }

 private:
  static Tensor in(at::ScalarType dtype, const Tensor& tensor) {
    return tensor.to(dtype).contiguous();
  }
  // It counts a triangle from the last query and key.
  static bool is_square(const TileOperands& tile) {
    return !tile.is_causal || tile.query.size(2) == tile.key.size(2);
  }
  // A causal tile has at least as many queries as keys: the triangle, and the queries that see all.
  static std::pair<TileOperands, TileOperands> parted(const TileOperands& tile) {
    const int64_t keys = tile.key.size(2);
    TileOperands triangle = tile;
    triangle.query = tile.query.narrow(2, 0, keys);
    TileOperands rest = tile;
    rest.query = tile.query.narrow(2, keys, tile.query.size(2) - keys);
    rest.is_causal = false;
    return {std::move(triangle), std::move(rest)};
  }
};

class CudaEfficient : public FusedAttention {
 public:
  bool takes(at::ScalarType dtype, int64_t extent, bool has_bias) const override {
    return dtype == at::kFloat && extent > 0 && extent % 4 == 0 && !has_bias;
  }

  std::tuple<Tensor, Tensor> attend(const TileOperands& tile) const override {
    const auto results = at::_scaled_dot_product_efficient_attention(
        with_aligned_runs(tile.query), with_aligned_runs(tile.key), with_aligned_runs(tile.value),
        std::nullopt,
        /*compute_log_sumexp=*/true, 0.0, tile.is_causal, tile.scale);
    return {std::get<0>(results), std::get<1>(results).narrow(2, 0, tile.query.size(2))};
  }

  TileGradients gradients(const TileOperands& tile, const Tensor& grad_output, const Tensor& output,
                          const Tensor& logsumexp) const override {
    // Rows come in runs of 32; those beyond the last one have no weight.
    const int64_t rows = logsumexp.size(2);
    const Tensor padded = at::constant_pad_nd(logsumexp, {0, (32 - rows % 32) % 32}, kInfinity);
    const at::TensorOptions longs = tile.query.options().dtype(at::kLong);
    auto [query, key, value, bias] = at::_scaled_dot_product_efficient_attention_backward(
        with_aligned_runs(grad_output), with_aligned_runs(tile.query), with_aligned_runs(tile.key),
        with_aligned_runs(tile.value), Tensor(), with_aligned_runs(output), padded,
        at::empty({}, longs), at::empty({}, longs), 0.0, {true, true, true, false}, tile.is_causal,
        tile.scale);
    return {std::move(query), std::move(key), std::move(value), {}};
  }
};

// Numbers without a pattern that a wrong kernel could share. Drawn ones would change what the
// program draws next.
Tensor numbers(at::IntArrayRef shape, double frequency, const at::TensorOptions& options) {
  return at::arange(c10::multiply_integers(shape), options).mul_(frequency).sin_().view(shape);
}

bool is_near(const Tensor& computed, const Tensor& wanted, at::ScalarType dtype) {
  if (computed.sizes() != wanted.sizes()) return false;
  const double tolerance = dtype == at::kDouble ? 1e-10 : dtype == at::kFloat ? 3e-3 : 3e-2;
  // NaN is not near.
  return (computed - wanted).norm().item<double>() <= tolerance * wanted.norm().item<double>();
}

// A tile of more queries than keys, of a block that is not the only one.
std::string difference_on(const FusedAttention& kernel, const TileOperands& tile) {
  const char* form = tile.is_causal ? "causal " : "";
  const auto [wanted, wanted_sum] = attend_by_products(tile);
  const auto [output, logsumexp] = kernel.attend(tile);
  if (!is_near(output, wanted, tile.dtype)) return fmt::format("{}values", form);
  if (!is_near(logsumexp, wanted_sum, tile.dtype)) return fmt::format("{}logsumexp", form);
  const Tensor all = wanted * 0.5;
  const Tensor all_sum = wanted_sum + 0.7;
  const Tensor cotangent = numbers(wanted.sizes(), 0.37, wanted.options());
  const TileGradients expected = gradients_by_products(tile, cotangent, all, all_sum);
  const TileGradients gradients = kernel.gradients(tile, cotangent, all, all_sum);
  if (!is_near(gradients.query, expected.query, tile.dtype)) {
    return fmt::format("{}gradient of the queries", form);
  }
  if (!is_near(gradients.key, expected.key, tile.dtype)) {
    return fmt::format("{}gradient of the keys", form);
  }
  if (!is_near(gradients.value, expected.value, tile.dtype)) {
    return fmt::format("{}gradient of the values", form);
  }
  return "";
}

// Its trial, on a thread of its own: modes, autocast and hooks of the caller's are not there, and
// what the trial computes is in no program that is recorded.
std::string tried(const FusedAttention& kernel, c10::Device device, at::ScalarType dtype,
                  int64_t extent) {
  std::string difference;
  std::exception_ptr failure;
  std::thread([&] {
    try {
      const c10::NoGradGuard no_grad;
      const c10::DeviceGuard guard(device);
      difference = difference_from_products(kernel, device, dtype, extent);
    } catch (...) {
      failure = std::current_exception();
    }
  }).join();
  if (failure) std::rethrow_exception(failure);
  return difference;
}

// Whether a kernel may be used. What a trial finds is kept; one that raises (the memory is full, a
// stream is captured) is made again, a few times.
bool is_trusted(const FusedAttention& kernel, c10::Device device, at::ScalarType dtype,
                int64_t extent) {
  using Use = std::tuple<const FusedAttention*, c10::DeviceIndex, at::ScalarType, int64_t>;
  struct Found {
    bool is_known = false;
    bool is_right = false;
    int num_raised = 0;
  };
  static std::mutex mutex;
  static auto* all = new std::map<Use, Found>;
  constexpr int kMostTrials = 3;
  std::string difference;
  {
    const std::lock_guard lock(mutex);
    Found& found = (*all)[{&kernel, device.index(), dtype, extent}];
    if (found.is_known) return found.is_right;
    try {
      difference = tried(kernel, device, dtype, extent);
      found.is_known = true;
    } catch (const std::exception& error) {
      const std::string text = error.what();
      difference = text.substr(0, text.find('\n'));
      found.is_known = ++found.num_raised == kMostTrials;
    }
    found.is_right = difference.empty();
    if (found.is_right || !found.is_known) return found.is_right;
  }
  TORCH_WARN("ring attention computes ", dtype, " heads of ", extent,
             " by products of matrices: LibTorch's fused kernel on ", device, " differs (",
             difference, ")");
  return false;
}

}  // namespace

std::string difference_from_products(const FusedAttention& kernel, c10::Device device,
                                     at::ScalarType dtype, int64_t extent) {
  const auto options = at::TensorOptions().device(device).dtype(accumulating_dtype(dtype));
  // Rows of a longer piece. As the operands came: what a narrower kernel makes of them is exact.
  const auto operand = [&](int64_t rows, double frequency) {
    constexpr int64_t kMore = 5;
    return numbers({2, 3, rows + kMore, extent}, frequency, options)
        .to(dtype)
        .to(options.dtype())
        .narrow(2, kMore, rows);
  };
  struct Shape {
    int64_t queries;
    int64_t keys;
    bool is_causal;
  };
  for (const Shape& shape : {Shape{75, 41, false},
                             {75, 41, true},
                             {128, 128, false},
                             {128, 128, true},
                             {64, 384, false}}) {
    std::string difference = difference_on(kernel, {.query = operand(shape.queries, 0.71),
                                                    .key = operand(shape.keys, 1.3),
                                                    .value = operand(shape.keys, 0.53),
                                                    .is_causal = shape.is_causal,
                                                    .scale = 0.4,
                                                    .dtype = dtype});
    if (!difference.empty()) return difference;
  }
  return "";
}

const FusedAttention* fused_attention(c10::Device device, at::ScalarType dtype, int64_t extent,
                                      bool has_bias) {
  static const auto* cpu = new CpuFlash;
  static const auto* flash = new CudaFlash;
  static const auto* efficient = new CudaEfficient;
  if (device.is_cpu()) return cpu->takes(dtype, extent, has_bias) ? cpu : nullptr;
  if (!device.is_cuda()) return nullptr;
  for (const FusedAttention* kernel :
       {static_cast<const FusedAttention*>(flash), static_cast<const FusedAttention*>(efficient)}) {
    if (kernel->takes(dtype, extent, has_bias) && is_trusted(*kernel, device, dtype, extent)) {
      return kernel;
    }
  }
  return nullptr;
}

}  // namespace meshrun
