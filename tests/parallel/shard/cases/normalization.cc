#include "ATen/ATen.h"
#include "parallel/shard/tensor/shard_tensor_impl.h"
#include "tests/parallel/shard/operator_cases.h"

namespace meshrun {
namespace {

OperatorCase over_last_dims(Draw& draw) {
  const int64_t count = draw.integer(1, 2);
  const at::Tensor normal = draw.normal({draw.extent(), draw.extent(), draw.extent()});
  const auto shape = normal.sizes().slice(3 - count).vec();
  // One element is its own mean: what LibTorch then has in place of 0 is its rounding, of 1e-12
  // here.
  const at::Tensor x = c10::multiply_integers(shape) == 1 ? normal : normal + 100;
  const bool affine = draw.chance(0.7);
  OperatorCase drawn{
      "layer_norm, rms_norm", {x, draw.normal(shape), draw.normal(shape)}, [=](const Tensors& t) {
        if (!affine) {
          return Tensors{at::layer_norm(t[0], shape, {}, {}, 1e-3), at::rms_norm(t[0], shape),
                         t[1] * t[2]};
        }
        const auto [y, mean, scale] =
            at::native_layer_norm(t[0].detach(), shape, t[1].detach(), t[2].detach(), 1e-3);
        return Tensors{at::layer_norm(t[0], shape, t[1], t[2], 1e-3),
                       at::rms_norm(t[0], shape, t[1], 1e-3), y, mean, scale};
      }};
  if (draw.chance(0.3)) drawn.plain = {1, 2};
  return drawn;
}

std::vector<int64_t> image(Draw& draw, int64_t channels) {
  std::vector<int64_t> shape = {draw.integer(1, 5), channels};
  const int64_t spatial = draw.integer(1, 2);
  for (int64_t i = 0; i < spatial; ++i) shape.push_back(draw.integer(2, 7));
  return shape;
}

OperatorCase over_groups(Draw& draw) {
  const int64_t groups = draw.integer(1, 4);
  const int64_t channels = groups * draw.integer(1, 3);
  OperatorCase drawn{
      "group_norm, instance_norm",
      {draw.normal(image(draw, channels)) + 100, draw.normal({channels}), draw.normal({channels})},
      [=](const Tensors& t) {
        return Tensors{at::group_norm(t[0], groups, t[1], t[2], 1e-3),
                       at::group_norm(t[0], groups, {}, {}, 1e-3),
                       at::instance_norm(t[0], t[1], t[2], {}, {}, true, 0.1, 1e-3, false)};
      }};
  if (draw.chance(0.3)) drawn.plain = {1, 2};
  return drawn;
}

// With running statistics, plain ones and sharded ones.
OperatorCase over_batches(Draw& draw) {
  const int64_t channels = draw.extent();
  const bool training = draw.chance(0.6);
  const bool by_instance = draw.chance(0.4);
  OperatorCase drawn{
      by_instance ? "instance_norm with running statistics" : "batch_norm",
      {draw.normal(image(draw, channels)) + 10, draw.normal({channels}), draw.normal({channels}),
       draw.normal({channels}), draw.positive({channels})},
      [=](const Tensors& t) {
        at::Tensor mean = is_shard_tensor(t[3]) ? t[3].detach() * 1 : t[3].detach().clone();
        at::Tensor variance = t[4].detach() * 1;
        const at::Tensor y =
            by_instance
                ? at::instance_norm(t[0], t[1], t[2], mean, variance, training, 0.1, 1e-3, false)
                : at::batch_norm(t[0], t[1], t[2], mean, variance, training, 0.1, 1e-3, false);
        return Tensors{y, mean, variance};
      }};
  if (draw.chance(0.4)) drawn.plain = {1, 2, 3, 4};
  drawn.no_partial = true;
  return drawn;
}

// 16-bit elements far from zero, against float64.
OperatorCase far_from_zero(Draw& draw) {
  const at::Tensor x = (draw.normal({2, 4, 6, 5}) * 4 + 300).to(at::kBFloat16).to(at::kDouble);
  return {"group_norm and layer_norm in bfloat16",
          {x},
          [](const Tensors& t) {
            // The whole tensor is computed in float64, the sharded one in bfloat16.
            const bool sharded = is_shard_tensor(t[0]);
            const at::Tensor x = sharded ? t[0].detach().to(at::kBFloat16) : t[0].detach();
            const at::Tensor z = at::layer_norm(x, {6, 5});
            // On a GPU LibTorch's own keeps the means of 16-bit elements in 16 bits.
            const at::Tensor y = x.is_cuda() ? z : at::group_norm(x, 2);
            return sharded ? Tensors{y, z} : Tensors{y.to(at::kBFloat16), z.to(at::kBFloat16)};
          },
          Equality::kRounding,
          true,
          {},
          {},
          true};
}

const bool kRegistered = register_operator_cases("normalization", [](Draw& draw) {
  switch (draw.integer(0, 6)) {
    case 0:
    case 1:
      return over_last_dims(draw);
    case 2:
    case 3:
      return over_groups(draw);
    case 4:
      return far_from_zero(draw);
    default:
      return over_batches(draw);
  }
});

}  // namespace
}  // namespace meshrun
