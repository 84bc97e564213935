#include <cmath>
#include <string>

#include "ATen/ATen.h"
#include "parallel/shard/tensor/shard_tensor_impl.h"
#include "tests/parallel/shard/operator_cases.h"
#include "tests/parallel/shard/raising_call.h"

namespace meshrun {
namespace {

using Lengths = std::vector<int64_t>;

Lengths shape_of(Draw& draw) { return {draw.extent(), draw.extent(), draw.extent()}; }

at::Tensor permutation(Draw& draw, int64_t extent) {
  at::Tensor order = at::arange(extent);
  auto* data = order.mutable_data_ptr<int64_t>();
  for (int64_t i = extent - 1; i > 0; --i) std::swap(data[i], data[draw.integer(0, i)]);
  return order;
}

void maybe_plain(Draw& draw, OperatorCase& drawn, size_t input) {
  if (draw.chance(0.4)) drawn.plain = {input};
}

OperatorCase rows(Draw& draw) {
  const at::Tensor x = draw.normal(shape_of(draw));
  const int64_t dim = draw.integer(0, 2);
  OperatorCase drawn{
      "index_select, index",
      {draw.integers({draw.integer(0, 9)}, 0, x.size(dim) - 1), x},
      [=](const Tensors& t) {
        return Tensors{at::index_select(t[1], dim, t[0]), t[1].transpose(0, dim).index({t[0]})};
      }};
  drawn.equality = Equality::kBits;
  maybe_plain(draw, drawn, 0);
  return drawn;
}

OperatorCase gather(Draw& draw) {
  const at::Tensor x = draw.normal(shape_of(draw));
  const int64_t dim = draw.integer(0, 2);
  Lengths shape = x.sizes().vec();
  shape[static_cast<size_t>(dim)] = draw.extent();
  if (draw.chance(0.3)) {
    int64_t& other = shape[static_cast<size_t>((dim + 1) % 3)];
    other = draw.integer(1, other);
  }
  OperatorCase drawn{"gather",
                     {draw.integers(shape, 0, x.size(dim) - 1), x},
                     [=](const Tensors& t) { return Tensors{at::gather(t[1], dim, t[0])}; }};
  if (draw.chance(0.3)) {
    const at::Tensor order = x.argsort(int64_t{1}, false);
    return {"take_along_dim",
            {order, x},
            [](const Tensors& t) { return Tensors{at::take_along_dim(t[1], t[0], 1)}; },
            Equality::kBits};
  }
  drawn.equality = Equality::kBits;
  maybe_plain(draw, drawn, 0);
  return drawn;
}

OperatorCase embedding(Draw& draw) {
  const int64_t rows = draw.extent();
  const int64_t padding = draw.integer(-1, rows - 1);
  const bool by_frequency = draw.chance(0.2);
  OperatorCase drawn{"embedding",
                     {draw.integers({draw.extent(), draw.extent()}, 0, rows - 1),
                      draw.normal({rows, draw.extent()})},
                     [=](const Tensors& t) {
                       return Tensors{at::embedding(t[1], t[0], padding, by_frequency),
                                      at::one_hot(t[0], rows), at::one_hot(t[0])};
                     },
                     Equality::kBits};
  maybe_plain(draw, drawn, 0);
  return drawn;
}

// Places of one row do not repeat, except where they are added.
OperatorCase scatter(Draw& draw) {
  const at::Tensor x = draw.normal(shape_of(draw));
  const int64_t dim = draw.integer(0, 2);
  Lengths shape = x.sizes().vec();
  shape[static_cast<size_t>(dim)] = draw.integer(1, x.size(dim));
  if (draw.chance(0.3)) {
    int64_t& other = shape[static_cast<size_t>((dim + 1) % 3)];
    other = draw.integer(1, other);
  }
  const at::Tensor order =
      permutation(draw, x.size(dim)).narrow(0, 0, shape[static_cast<size_t>(dim)]);
  Lengths vector(3, 1);
  vector[static_cast<size_t>(dim)] = order.numel();
  const at::Tensor places = order.view(vector).expand(shape).contiguous();
  return {"scatter",
          {places, draw.normal(shape), x},
          [=](const Tensors& t) {
            at::Tensor y = t[2] * 1;
            y.scatter_(dim, t[0], t[1]);
            at::Tensor z = t[2] * 1;
            z.scatter_reduce_(dim, t[0], t[1], "amax");
            return Tensors{at::scatter(t[2], dim, t[0], t[1]), at::scatter(t[2], dim, t[0], 0.5), y,
                           at::scatter_reduce(t[2], dim, t[0], t[1], "amax"), z};
          },
          Equality::kBits};
}

OperatorCase scatter_add(Draw& draw) {
  const at::Tensor x = draw.normal(shape_of(draw));
  const int64_t dim = draw.integer(0, 2);
  Lengths shape = x.sizes().vec();
  shape[static_cast<size_t>(dim)] = draw.integer(1, 9);
  const at::Tensor places = draw.integers(shape, 0, x.size(dim) - 1);
  return {"scatter_add", {places, draw.normal(shape), x}, [=](const Tensors& t) {
            at::Tensor y = t[2] * 1;
            y.scatter_add_(dim, t[0], t[1]);
            return Tensors{at::scatter_add(t[2], dim, t[0], t[1]), y};
          }};
}

// For a reduction: ties where elements are compared, one zero where they are multiplied, or one NaN
// that belongs to the gradient of one row alone. Summands of quarters add up exactly.
at::Tensor reduced_values(Draw& draw, at::Tensor values, const std::string& reduce) {
  if (values.numel() == 0) return values;
  if (reduce == "prod") {
    if (draw.chance(0.3)) values.view(-1)[draw.integer(0, values.numel() - 1)] = 0;
    return values;
  }
  if (draw.chance(0.3)) values = (values * 4).round() / 4;
  if (draw.chance(0.15)) {
    values.view(-1)[draw.integer(0, values.numel() - 1)] = std::nan("");
  }
  return values;
}

OperatorCase scatter_reduce(Draw& draw) {
  const at::Tensor x = draw.normal(shape_of(draw));
  const int64_t dim = draw.integer(-3, 2);
  Lengths shape = x.sizes().vec();
  shape[static_cast<size_t>(dim < 0 ? dim + 3 : dim)] = draw.integer(1, 9);
  const at::Tensor places = draw.integers(shape, 0, x.size(dim) - 1);
  const std::string reduce = draw.one_of<std::string>({"sum", "prod", "mean", "amax", "amin"});
  const bool include_self = draw.chance(0.5);
  return {
      "scatter_reduce " + reduce,
      {places, reduced_values(draw, draw.normal(shape), reduce), reduced_values(draw, x, reduce)},
      [=](const Tensors& t) {
        at::Tensor y = t[2] * 1;
        y.scatter_reduce_(dim, t[0], t[1], reduce, include_self);
        return Tensors{at::scatter_reduce(t[2], dim, t[0], t[1], reduce, include_self), y};
      }};
}

OperatorCase index_reduce(Draw& draw) {
  Lengths shape(static_cast<size_t>(draw.one_of<int64_t>({0, 1, 1, 2, 2, 3})));
  for (int64_t& extent : shape) extent = draw.extent();
  const auto ndim = static_cast<int64_t>(shape.size());
  const int64_t dim = ndim == 0 ? -draw.integer(0, 1) : draw.integer(-ndim, ndim - 1);
  const std::string reduce = draw.one_of<std::string>({"prod", "mean", "amax", "amin"});
  const bool include_self = draw.chance(0.5);
  at::Tensor x = reduced_values(draw, draw.normal(shape), reduce);
  const int64_t extent = ndim == 0 ? 1 : x.size(dim);
  const int64_t count = ndim == 0 ? 1 : draw.integer(0, 9);
  if (ndim > 0) shape[static_cast<size_t>(dim < 0 ? dim + ndim : dim)] = count;
  at::Tensor source = reduced_values(draw, draw.normal(shape), reduce);
  at::Tensor index = draw.integers({count}, 0, extent - 1);
  if (count == 1 && draw.chance(0.5)) index = index.squeeze();
  // LibTorch's gradient without the tensor itself takes int64 alone.
  if (include_self && draw.chance(0.3)) index = index.to(at::kInt);
  if (draw.chance(0.1)) {
    const at::ScalarType type = draw.one_of<at::ScalarType>({at::kFloat, at::kLong, at::kByte});
    x = at::nan_to_num(x * 4).to(type);
    source = at::nan_to_num(source * 4).to(type);
  }
  OperatorCase drawn{
      "index_reduce " + reduce, {index, source, x}, [=](const Tensors& t) {
        const auto call = [&](const at::Tensor& to, const at::Tensor& rows,
                              const at::Tensor& values) {
          return at::index_reduce(to, dim, rows, values, reduce, include_self);
        };
        at::Tensor y = t[2] * 1;
        y.index_reduce_(dim, t[0], t[1], reduce, include_self);
        at::Tensor z = at::zeros_like(t[2].detach());
        at::index_reduce_out(z, t[2].detach(), dim, t[0], t[1].detach(), reduce, include_self);
        at::Tensor narrow = at::zeros_like(z, at::kShort);
        return Tensors{call(t[2], t[0], t[1]),
                       y,
                       z,
                       raises([&] { at::index_reduce(t[2], dim, t[0], t[1], "sum"); }),
                       raises([&] { at::index_reduce(t[2], ndim + 1, t[0], t[1], reduce); }),
                       raises([&] {
                         call(t[2], t[0].reshape({1, -1}), t[1]);
                       }),
                       raises([&] { call(t[2], t[0].to(at::kDouble), t[1]); }),
                       raises([&] { call(t[2], t[0], t[1].to(at::kShort)); }),
                       raises([&] { call(t[2], t[0], t[1].unsqueeze(0)); }),
                       raises([&] { call(t[2] > 0, t[0], t[1] > 0); }),
                       raises([&] {
                         at::index_reduce_out(narrow, t[2].detach(), dim, t[0], t[1].detach(),
                                              reduce);
                       })};
      }};
  if (draw.chance(0.4)) drawn.plain = {static_cast<size_t>(draw.integer(0, 1))};
  return drawn;
}

OperatorCase index_rows(Draw& draw) {
  const at::Tensor x = draw.normal(shape_of(draw));
  const int64_t dim = draw.integer(0, 2);
  const int64_t count = draw.integer(1, x.size(dim));
  Lengths shape = x.sizes().vec();
  shape[static_cast<size_t>(dim)] = count;
  const at::Tensor unique = permutation(draw, x.size(dim)).narrow(0, 0, count).contiguous();
  OperatorCase drawn{"index_add, index_copy, index_fill",
                     {unique, draw.integers({count}, 0, x.size(dim) - 1), draw.normal(shape), x},
                     [=](const Tensors& t) {
                       at::Tensor y = t[3] * 1;
                       y.index_add_(dim, t[1], t[2], 2).index_fill_(dim, t[0].slice(0, 0, 1), 1);
                       return Tensors{at::index_add(t[3], dim, t[1], t[2]),
                                      at::index_copy(t[3], dim, t[0], t[2]),
                                      at::index_fill(t[3], dim, t[0], 3), y};
                     }};
  maybe_plain(draw, drawn, 0);
  return drawn;
}

// A plain index may lie on the CPU beside a tensor on a GPU.
at::Tensor on_cpu(const at::Tensor& index) { return is_shard_tensor(index) ? index : index.cpu(); }

OperatorCase advanced(Draw& draw) {
  const at::Tensor x = draw.normal(shape_of(draw));
  const int64_t count = draw.extent();
  const at::Tensor i = draw.integers({count}, -x.size(0), x.size(0) - 1);
  const at::Tensor j = draw.integers({2, count}, 0, x.size(1) - 1);
  const at::Tensor k = draw.integers({count}, 0, x.size(2) - 1);
  using at::indexing::None;
  using at::indexing::Slice;
  OperatorCase drawn{
      "advanced indexing", {i, j, k, x, draw.normal({count, x.size(2)})}, [=](const Tensors& t) {
        at::Tensor y = t[3] * 1;
        y.index_put_({t[0], t[1][0]}, t[4], true);
        at::Tensor z = t[3] * 1;
        // A number would take index.view({-1}) since LibTorch 2.15 (docs/shard_tensor.md).
        z.index_put_({Slice(), t[1]}, at::full({}, 0.5, z.options()));
        z.index_put_({z > 1}, 0.25);
        return Tensors{t[3].index({t[0], t[1]}),
                       t[3].index({on_cpu(t[0]), Slice(), t[2]}),
                       t[3].index({Slice(), t[1]}),
                       t[3].index({Slice(), t[1][0], t[2]}),
                       t[3].index({t[0], None, Slice(0, 2)}),
                       t[3].index({t[3].select(2, 0) > 0}),
                       y,
                       z};
      }};
  maybe_plain(draw, drawn, static_cast<size_t>(draw.integer(0, 2)));
  return drawn;
}

OperatorCase masked(Draw& draw) {
  const Lengths shape = shape_of(draw);
  return {"masked_select, nonzero",
          {draw.integers(shape, 0, 1), draw.normal(shape)},
          [](const Tensors& t) {
            return Tensors{at::masked_select(t[1], t[0] > 0), at::nonzero(t[0])};
          },
          Equality::kBits};
}

OperatorCase ordered(Draw& draw) {
  const at::Tensor x = draw.normal(shape_of(draw));
  const int64_t dim = draw.integer(-3, 2);
  const int64_t k = draw.integer(1, x.size(dim));
  return {"cumsum, sort, topk", {x}, [=](const Tensors& t) {
            at::Tensor written = t[0] * 1;
            written.cumprod_(dim);
            const auto [values, order] = at::sort(t[0], dim, true);
            const auto [top, places] = at::topk(t[0], k, dim);
            return Tensors{at::cumsum(t[0], dim),
                           at::cumprod(t[0], dim),
                           values,
                           top,
                           std::get<0>(at::kthvalue(t[0], k, dim)),
                           std::get<0>(at::cummax(t[0], dim)),
                           std::get<0>(at::cummin(t[0], dim)),
                           at::logcumsumexp(t[0], dim),
                           written};
          }};
}

const bool kRegistered = register_operator_cases("indexing", [](Draw& draw) {
  using Drawn = OperatorCase (*)(Draw&);
  return draw.one_of<Drawn>({&rows, &gather, &embedding, &scatter, &scatter_add, &scatter_reduce,
                             &index_reduce, &index_rows, &advanced, &masked, &ordered})(draw);
});

}  // namespace
}  // namespace meshrun
