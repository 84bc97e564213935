// Plain tensors that sharded ones are written into. The plain tensor is zeros, or has the history
// of a sharded leaf; its results are plain.
#include <algorithm>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "parallel/shard/shard_tensor.h"
#include "tests/parallel/shard/operator_cases.h"

namespace meshrun {
namespace {

using at::indexing::Slice;
using Lengths = std::vector<int64_t>;

// A plain tensor of its own memory with the history of `tensor`.
at::Tensor plain_from(const at::Tensor& tensor) {
  return (is_shard_tensor(tensor) ? ShardTensor(tensor).full_tensor() : tensor) * 1;
}

at::Tensor zeros_for(const at::Tensor& tensor, at::IntArrayRef shape) {
  return at::zeros(shape, at::TensorOptions(tensor.scalar_type()).device(tensor.device()));
}

// Two corners, which may overlap, of what a neural operator multiplies.
OperatorCase corners(Draw& draw) {
  const int64_t batch = draw.integer(1, 3);
  const int64_t height = draw.extent();
  const int64_t width = draw.extent();
  const int64_t rows = draw.integer(1, height);
  const int64_t columns = draw.integer(1, width);
  const bool twice = draw.chance(0.5);
  OperatorCase drawn{"corners of a plain tensor",
                     {draw.normal({2, 2, 3, rows, columns}), draw.normal({batch, 3, height, width}),
                      draw.normal({batch, 2, height, width})},
                     [=](const Tensors& t) {
                       at::Tensor out = zeros_for(t[1], {batch, 2, height, width});
                       const auto low = [&](const at::Tensor& x) {
                         return x.index({Slice(), Slice(), Slice(0, rows), Slice(0, columns)});
                       };
                       const auto high = [&](const at::Tensor& x) {
                         return x.index({Slice(), Slice(), Slice(-rows), Slice(0, columns)});
                       };
                       low(out).copy_(at::einsum("bixy,oixy->boxy", {low(t[1]), t[0][0]}));
                       const at::Tensor before = out * 2 + t[2];
                       if (twice)
                         high(out).copy_(at::einsum("bixy,oixy->boxy", {high(t[1]), t[0][1]}));
                       return Tensors{out, before, out * t[2], out.sum({2, 3})};
                     }};
  if (draw.chance(0.4)) drawn.plain = {0};
  return drawn;
}

// A spectrum whose kept frequencies are written into zeros.
OperatorCase spectrum(Draw& draw) {
  const int64_t height = draw.integer(2, 9);
  const int64_t width = draw.integer(2, 9);
  const int64_t rows = draw.integer(1, height / 2);
  const int64_t columns = draw.integer(1, width / 2);
  return {"kept frequencies",
          {draw.normal({2, 3, height, width}), draw.normal({3, 1, 1})},
          [=](const Tensors& t) {
            const at::Tensor spectrum = at::fft_rfft2(t[0]);
            at::Tensor out =
                at::zeros(spectrum.sizes(),
                          at::TensorOptions(spectrum.scalar_type()).device(spectrum.device()));
            for (const auto& of_rows : {Slice(0, rows), Slice(-rows)}) {
              out.index_put_({Slice(), Slice(), of_rows, Slice(0, columns)},
                             spectrum.index({Slice(), Slice(), of_rows, Slice(0, columns)}) * t[1]);
            }
            const Lengths shape = {height, width};
            const at::Tensor field = at::fft_irfft2(out, shape);
            return Tensors{field, at::gelu(field + t[0])};
          }};
}

OperatorCase pointwise(Draw& draw) {
  const Lengths shape = {draw.extent(), draw.extent(), draw.extent()};
  const bool from_zeros = draw.chance(0.3);
  const int64_t dim = draw.integer(0, 2);
  OperatorCase drawn{
      "in place on a plain tensor",
      {draw.normal({shape[2]}), draw.normal(shape), draw.positive(shape), draw.normal(shape)},
      [=](const Tensors& t) {
        const auto target = [&] { return from_zeros ? zeros_for(t[1], shape) : plain_from(t[3]); };
        at::Tensor sum = target();
        sum.add_(t[1], 2).sub_(t[0]).add_(t[1].sum());
        at::Tensor product = target();
        product.mul_(t[1]);
        product.div_(t[2]).add_(1).mul_(t[0]);
        at::Tensor several = target();
        several.addcmul_(t[1], t[2], 0.5).addcdiv_(t[1], t[2]).lerp_(t[1], 0.3);
        at::Tensor chosen = target();
        chosen.masked_fill_(t[1] > 0, 0.25).clamp_(t[1] - 1, t[1] + t[2]);
        at::Tensor copied = target();
        copied.copy_(t[0]).atan2_(t[2]).fill_(t[1].sum());
        at::Tensor whole = target();
        at::Tensor parts = target().transpose(0, dim);
        at::_foreach_add_({whole, parts}, {t[1], t[2].transpose(0, dim)}, 2);
        return Tensors{sum, product, several, chosen, copied, whole, parts};
      }};
  if (draw.chance(0.3)) drawn.plain = {0};
  return drawn;
}

// Writes through views, in a loop too, and views that are older than a write.
OperatorCase views(Draw& draw) {
  const Lengths shape = {draw.extent(), draw.extent(), draw.extent()};
  const int64_t begin = draw.integer(0, shape[1] - 1);
  const bool from_zeros = draw.chance(0.5);
  return {
      "views of a plain tensor", {draw.normal(shape), draw.normal(shape)}, [=](const Tensors& t) {
        at::Tensor out = from_zeros ? zeros_for(t[0], shape) : plain_from(t[1]);
        const at::Tensor older = out.narrow(1, begin, shape[1] - begin);
        const at::Tensor before = (older + t[1].narrow(1, begin, shape[1] - begin)).square();
        for (int64_t i = 0; i < shape[0]; ++i) out.index_put_({i}, t[0][i] * 2);
        const at::Tensor after = (older + t[1].narrow(1, begin, shape[1] - begin)).square();
        out.transpose(0, 2).select(0, 0).add_(t[1].transpose(0, 2).select(0, 0));
        const int64_t length = std::min(shape[0], shape[1]);
        out.diagonal(0, 0, 1).mul_(t[0].select(1, 0).narrow(0, 0, length).transpose(0, 1));
        out.narrow(1, begin, 1).squeeze(1).copy_(t[1].narrow(1, begin, 1).squeeze(1));
        return Tensors{out, before, after, older + 0.5,
                       older * t[0].narrow(1, begin, shape[1] - begin)};
      }};
}

OperatorCase places(Draw& draw) {
  const Lengths shape = {draw.extent(), draw.extent(), draw.extent()};
  const int64_t dim = draw.integer(0, 2);
  const auto d = static_cast<size_t>(dim);
  const int64_t count = draw.extent();
  Lengths of_source = shape;
  of_source[d] = count;
  Lengths of_rows = shape;
  of_rows[d] = 1;
  const bool from_zeros = draw.chance(0.5);
  const auto reduce = draw.one_of<std::string>({"sum", "amax", "mean"});
  OperatorCase drawn{
      "places of a plain tensor",
      {draw.integers({count}, 0, shape[d] - 1), draw.integers(of_source, 0, shape[d] - 1),
       draw.integers({1}, 0, shape[d] - 1), draw.normal(of_source), draw.normal(of_rows),
       draw.normal(shape)},
      [=](const Tensors& t) {
        const auto target = [&] { return from_zeros ? zeros_for(t[3], shape) : plain_from(t[5]); };
        at::Tensor rows = target();
        rows.index_add_(dim, t[0], t[3]).index_add_(dim, t[0], t[3], 0.5);
        at::Tensor copied = target();
        copied.index_copy_(dim, t[2], t[4]);
        at::Tensor filled = target();
        filled.index_fill_(dim, t[0], 2).index_fill_(dim, t[2], t[3].sum());
        at::Tensor added = target();
        added.scatter_add_(dim, t[1], t[3]);
        at::Tensor scattered = target();
        scattered.scatter_(dim, t[1], 0.5).scatter_(dim, t[1].narrow(dim, 0, 1), t[4]);
        at::Tensor reduced = target();
        reduced.scatter_reduce_(dim, t[1], t[3], reduce);
        at::Tensor put = target().transpose(0, dim);
        put.index_put_({t[0]}, t[3].transpose(0, dim), true);
        put.index_put_({t[2]}, t[4].transpose(0, dim));
        at::Tensor masked = target();
        masked.index_put_({t[5] > 1}, 0.25);
        masked.masked_scatter_(t[5] < 0, t[5] * 2);
        at::Tensor flat = target();
        flat.put_(t[1] % flat.numel(), t[3], true);
        return Tensors{rows, copied, filled, added, scattered, reduced, put, masked, flat};
      }};
  if (draw.chance(0.3)) drawn.plain = {0};
  return drawn;
}

OperatorCase outs(Draw& draw) {
  const int64_t rows = draw.extent();
  const int64_t inner = draw.extent();
  const int64_t columns = draw.extent();
  OperatorCase drawn{"out of a plain tensor",
                     {draw.normal({columns}), draw.normal({rows, inner}),
                      draw.normal({rows, inner}), draw.normal({inner, columns})},
                     [=](const Tensors& t) {
                       const auto target = [&](Lengths shape) { return zeros_for(t[1], shape); };
                       at::Tensor sum = target({rows, inner});
                       at::add_out(sum, t[1], t[2], 2);
                       at::Tensor grown = target({0});
                       at::exp_out(grown, t[1]);
                       at::Tensor product = target({rows, columns});
                       at::mm_out(product, t[1], t[3]);
                       at::Tensor composite = target({rows, columns});
                       at::matmul_out(composite, t[1], t[3]);
                       at::Tensor with_bias = target({rows, columns});
                       at::addmm_out(with_bias, t[0], t[1], t[3]);
                       at::Tensor joined = target({2 * rows, inner});
                       at::cat_out(joined, {t[1], t[2]}, 0);
                       at::Tensor sums = target({inner});
                       at::sum_out(sums, t[1], 0);
                       at::Tensor largest = target({rows});
                       at::Tensor where = at::zeros({rows}, sums.options().dtype(at::kLong));
                       at::max_out(largest, where, t[1], 1);
                       at::Tensor chosen = target({rows, inner});
                       at::where_out(chosen, t[1] > 0, t[1], t[2]);
                       return Tensors{sum,    grown, product, composite, with_bias,
                                      joined, sums,  largest, where,     chosen};
                     }};
  drawn.differentiable = false;
  if (draw.chance(0.3)) drawn.plain = {0};
  return drawn;
}

const bool kRegistered = register_operator_cases("plain targets", [](Draw& draw) {
  using Drawn = OperatorCase (*)(Draw&);
  return draw.one_of<Drawn>({&corners, &spectrum, &pointwise, &views, &places, &outs})(draw);
});

}  // namespace
}  // namespace meshrun
