#include "parallel/nn/afno_functions.h"

#include <vector>

#include "ATen/ATen.h"
#include "ATen/OpMathType.h"

namespace meshrun::detail {
namespace {

using at::Tensor;

// Real [blocks, 2 i, 2 o] that multiplies rows (re, im, re, im, ...) as the complex [2, blocks, i,
// o] would.
Tensor real_matrix(const Tensor& w) {
  const Tensor re = w.select(0, 0), im = w.select(0, 1);
  const Tensor from_re = at::stack({re, im}, -1), from_im = at::stack({-im, re}, -1);
  return at::stack({from_re, from_im}, 2).flatten(3).flatten(1, 2);
}

// Real [blocks, 1, 2 o].
Tensor real_row(const Tensor& b) {
  return at::stack({b.select(0, 0), b.select(0, 1)}, -1).flatten(1).unsqueeze(1);
}

}  // namespace

Tensor patches_of(const Tensor& image, int64_t p, int64_t q) {
  const int64_t rows = image.size(2) / p, columns = image.size(3) / q;
  return image.reshape({image.size(0), image.size(1), rows, p, columns, q})
      .permute({0, 2, 4, 1, 3, 5})
      .reshape({image.size(0), rows, columns, image.size(1) * p * q});
}

Tensor image_of(const Tensor& patches, int64_t p, int64_t q) {
  const int64_t rows = patches.size(1), columns = patches.size(2);
  const int64_t chans = patches.size(3) / (p * q);
  return patches.reshape({patches.size(0), rows, columns, p, q, chans})
      .permute({0, 5, 1, 3, 2, 4})
      .reshape({patches.size(0), chans, rows * p, columns * q});
}

Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
                  const ChannelGroup& channels) {
  if (channels.size() == 1) return at::layer_norm(x, weight.sizes(), weight, bias, eps);
  const at::ScalarType type = at::toOpMathType(x.scalar_type());
  const Tensor wide = x.to(type);
  const auto [own_variance, own_mean] =
      at::var_mean(wide, at::IntArrayRef{-1}, /*correction=*/at::Scalar(0), /*keepdim=*/true);
  const Tensor all =
      channels.all_gather(at::stack({own_mean, own_variance}).unsqueeze(0), 0, channels.size());
  const Tensor means = all.select(1, 0), variances = all.select(1, 1);
  const Tensor mean = means.mean(0);
  const Tensor variance = (variances + (means - mean).square()).mean(0);
  const Tensor normal = (wide - mean) * (variance + eps).rsqrt();
  return at::addcmul(bias.to(type), normal, weight.to(type)).to(x.scalar_type());
}

Tensor mix_modes(const Tensor& x, const Tensor& w1, const Tensor& b1, const Tensor& w2,
                 const Tensor& b2, double sparsity_threshold) {
  const int64_t blocks = w1.size(1), width = w1.size(2);
  const int64_t modes = x.size(0) * x.size(1) * x.size(2);
  const Tensor rows = at::view_as_real(x);
  const at::ScalarType type = rows.scalar_type();
  const Tensor input = rows.reshape({modes, blocks, 2 * width}).transpose(0, 1);
  const auto layer = [&](const Tensor& in, const Tensor& w, const Tensor& b) {
    return at::baddbmm(real_row(b.to(type)), in, real_matrix(w.to(type)));
  };
  const Tensor output = layer(at::relu(layer(input, w1, b1)), w2, b2);
  return at::softshrink(output, sparsity_threshold).transpose(0, 1).reshape(rows.sizes());
}

Tensor dropout(const Tensor& x, double p, bool training, const PieceOf& columns,
               const PieceOf& channels) {
  if (!training || p == 0) return x;
  if (p == 1) return x * 0;
  const Tensor mask =
      at::empty({x.size(0), x.size(1), columns.extent, channels.extent}, x.options())
          .bernoulli_(1 - p)
          .div_(1 - p);
  return x * mask.narrow(2, columns.own.begin, columns.own.size())
                 .narrow(3, channels.own.begin, channels.own.size());
}

Tensor drop_path(const Tensor& x, double p, bool training) {
  if (!training || p == 0) return x;
  if (p == 1) return x * 0;
  return x * at::empty({x.size(0), 1, 1, 1}, x.options()).bernoulli_(1 - p).div_(1 - p);
}

}  // namespace meshrun::detail
