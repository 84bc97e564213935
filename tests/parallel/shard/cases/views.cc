#include <gtest/gtest.h>

#include "ATen/ATen.h"
#include "parallel/shard/redistribute/redistribute.h"
#include "parallel/shard/shard_tensor.h"
#include "tests/parallel/shard/operator_cases.h"

namespace meshrun {
namespace {

using Lengths = std::vector<int64_t>;
using Call = std::function<Tensors(const Tensors&)>;

Lengths shape_of(Draw& draw, int64_t ndim) {
  Lengths shape;
  for (int64_t i = 0; i < ndim; ++i) shape.push_back(draw.chance(0.15) ? 1 : draw.extent());
  return shape;
}

// The same elements, dimensions taken apart and put together anyhow.
OperatorCase reshape(Draw& draw) {
  Lengths parts;
  const int64_t count = draw.integer(1, 5);
  for (int64_t i = 0; i < count; ++i) {
    parts.push_back(draw.one_of<int64_t>({1, 2, 2, 3, 4, 4, 5, 6, 8}));
  }
  if (draw.chance(0.05)) parts[0] = 0;
  const auto grouped = [&] {
    Lengths shape;
    for (const int64_t part : parts) {
      if (!shape.empty() && draw.chance(0.5)) {
        shape.back() *= part;
      } else {
        shape.push_back(part);
      }
    }
    if (draw.chance(0.2)) shape.insert(shape.begin() + draw.integer(0, 1), 1);
    return shape;
  };
  const Lengths from = grouped();
  const Lengths to = grouped();
  const bool turned = draw.chance(0.3);
  return {"reshape",
          {draw.normal(from)},
          [=](const Tensors& x) {
            const at::Tensor y =
                turned ? x[0].transpose(0, -1).contiguous().transpose(0, -1) : x[0];
            return Tensors{y.reshape(to), y.flatten(), y.ravel(), y.unflatten(0, {y.size(0), 1})};
          },
          Equality::kBits};
}

OperatorCase heads(Draw& draw) {
  const int64_t heads = draw.integer(1, 4);
  const at::Tensor x = draw.normal({draw.extent(), draw.extent(), 3 * heads * 2});
  return {"heads of attention", {x}, [=](const Tensors& t) {
            const at::Tensor qkv =
                t[0].reshape({x.size(0), x.size(1), 3, heads, 2}).permute({2, 0, 3, 1, 4});
            const auto parts = qkv.unbind(0);
            const at::Tensor joined = (parts[0] * parts[1] + parts[2]).transpose(1, 2);
            return Tensors{joined.reshape({x.size(0), x.size(1), heads * 2})};
          }};
}

OperatorCase order(Draw& draw) {
  const Lengths shape = shape_of(draw, 3);
  const auto dims = draw.one_of<Lengths>({{0, 1, 2}, {1, 0, 2}, {2, 0, 1}, {-1, 1, 0}});
  return {"permute, transpose, t, unsqueeze",
          {draw.normal(shape), draw.normal(shape_of(draw, 2))},
          [=](const Tensors& x) {
            return Tensors{
                x[0].permute(dims),       x[0].transpose(dims[0], 1), x[1].t(),
                x[0].unsqueeze(dims[0]),  x[0].movedim(0, -1),        at::swapaxes(x[0], 0, 2).mT(),
                x[1].t().unsqueeze(0) * 2};
          },
          Equality::kBits};
}

OperatorCase squeezed(Draw& draw) {
  Lengths shape = shape_of(draw, 3);
  shape[static_cast<size_t>(draw.integer(0, 2))] = 1;
  return {"squeeze",
          {draw.normal(shape)},
          [](const Tensors& x) {
            return Tensors{x[0].squeeze(), x[0].squeeze(0), x[0].squeeze(Lengths{0, -1}),
                           x[0].squeeze(1).unsqueeze(1)};
          },
          Equality::kBits};
}

OperatorCase expanded(Draw& draw) {
  Lengths shape = shape_of(draw, 2);
  const int64_t dim = draw.integer(0, 1);
  shape[static_cast<size_t>(dim)] = 1;
  Lengths wider = shape;
  wider[static_cast<size_t>(dim)] = draw.extent();
  wider.insert(wider.begin(), draw.integer(1, 3));
  return {"expand", {draw.normal(shape), draw.normal(wider)}, [=](const Tensors& x) {
            return Tensors{x[0].expand(wider), x[0].expand({2, -1, -1}) * 2,
                           at::broadcast_to(x[0], wider) + x[1]};
          }};
}

OperatorCase parts(Draw& draw) {
  const at::Tensor x = draw.normal(shape_of(draw, 3));
  const int64_t dim = draw.integer(0, 2);
  const int64_t extent = x.size(dim);
  const int64_t index = draw.integer(-extent, extent - 1);
  const int64_t start = draw.integer(0, extent);
  const int64_t end = draw.integer(start, extent);
  const int64_t step = draw.integer(1, 3);
  const int64_t size = draw.integer(1, extent);
  switch (draw.integer(0, 3)) {
    case 0:
      return {"select, slice, narrow",
              {x},
              [=](const Tensors& t) {
                return Tensors{t[0].select(dim, index),
                               t[0].slice(dim, start, end, step),
                               t[0].narrow(dim, start, end - start) * 2,
                               t[0].slice(dim, start - extent - 1),
                               (t[0] > 0.25).select(dim, index),
                               (t[0] * 4).to(at::kLong).select(dim, index),
                               t[0].to(at::kBFloat16).select(dim, index)};
              },
              Equality::kBits};
    case 1:
      return {"split",
              {x},
              [=](const Tensors& t) {
                const auto pieces = t[0].split(size, dim);
                return Tensors(
                    pieces.begin(),
                    pieces.begin() + 1 + (index & 1) * (static_cast<int64_t>(pieces.size()) - 1));
              },
              Equality::kBits};
    case 2:
      return {"split_with_sizes, chunk",
              {x},
              [=](const Tensors& t) {
                Tensors all = t[0].split_with_sizes({start, end - start, extent - end}, dim);
                for (const at::Tensor& piece : t[0].chunk(size, dim)) all.push_back(piece * 2);
                for (const at::Tensor& piece : at::unsafe_split(t[0], size, dim)) {
                  all.push_back(piece * 3);
                }
                const Lengths sizes = {start, extent - start};
                for (const at::Tensor& piece : at::unsafe_split_with_sizes(t[0], sizes, dim)) {
                  all.push_back(piece * 4);
                }
                return all;
              },
              Equality::kBits};
    default:
      return {"unbind", {x}, [=](const Tensors& t) { return t[0].unbind(dim); }, Equality::kBits};
  }
}

OperatorCase diagonal(Draw& draw) {
  const at::Tensor x = draw.normal(shape_of(draw, 3));
  const int64_t offset = draw.integer(-3, 3);
  OperatorCase drawn{"diagonal",
                     {x.select(0, 0)},
                     [=](const Tensors& t) {
                       // One of the two stays whole.
                       const at::Tensor stack = t[0].unsqueeze(1).expand({-1, 5, -1});
                       return Tensors{stack.diagonal(offset, 0, 1), stack.diagonal(offset, 1, 2),
                                      stack.diagonal(offset, 1, 0)};
                     },
                     Equality::kRounding};
  return drawn;
}

OperatorCase complex(Draw& draw) {
  const Lengths shape = shape_of(draw, 2);
  return {"complex", {draw.normal(shape)}, [](const Tensors& x) {
            const at::Tensor pair = at::arange(1, 3, x[0].options());
            const at::Tensor z = at::view_as_complex(x[0].unsqueeze(-1) * pair);
            return Tensors{at::view_as_real(z * z), at::real(z) + at::imag(z),
                           at::real(z * z.conj()), at::imag(z.conj())};
          }};
}

// Writes through views are seen by the tensor that they are views of.
OperatorCase in_place(Draw& draw) {
  const at::Tensor x = draw.normal(shape_of(draw, 2));
  const int64_t row = draw.integer(0, x.size(0) - 1);
  const int64_t column = draw.integer(0, x.size(1) - 1);
  static const std::vector<
      std::pair<std::string, std::function<void(at::Tensor&, int64_t, int64_t)>>>
      kWrites = {
          {"select add_", [](at::Tensor& y, int64_t i, int64_t) { y.select(0, i).add_(1); }},
          {"select copy_",
           [](at::Tensor& y, int64_t i, int64_t j) { y.select(0, i).copy_(y.select(1, j).sum()); }},
          {"select mul_",
           [](at::Tensor& y, int64_t i, int64_t j) {
             y.select(0, i).mul_(3);
             y.select(1, j).zero_();
           }},
          {"slice mul_",
           [](at::Tensor& y, int64_t i, int64_t j) {
             y.slice(0, i).mul_(2);
             y.slice(1, 0, j + 1, 2).exp_();
           }},
          {"t add_",
           [](at::Tensor& y, int64_t, int64_t j) {
             y.t().add_(1);
             y.t().select(0, j).mul_(y.t().select(0, j) * 1);
           }},
          {"of views",
           [](at::Tensor& y, int64_t i, int64_t j) {
             y.unsqueeze(0).slice(1, i).select(2, j).sub_(2);
             y.view({1, y.size(0), y.size(1), 1}).mul_(0.5);
           }},
          {"of its own",
           [](at::Tensor& y, int64_t i, int64_t) {
             y.slice(0, 0, i + 1).add_(y.select(0, i).clone());
             y.narrow(0, i, 1).fill_(0.25);
           }},
      };
  const auto [name, write] = draw.one_of(kWrites);
  return {name, {x}, [write = write, row, column](const Tensors& t) {
            at::Tensor y = t[0] * 1;
            const at::Tensor seen = y.unsqueeze(-1);
            write(y, row, column);
            return Tensors{y, seen, y * y};
          }};
}

OperatorCase windows(Draw& draw) {
  const at::Tensor x = draw.normal({draw.extent(), draw.extent() + 2});
  const int64_t size = draw.integer(1, 3);
  const int64_t step = draw.integer(1, 3);
  // The unfolded dimension is a new one, which is whole.
  return {"unfold", {x}, [=](const Tensors& t) {
            return Tensors{t[0].unsqueeze(0).expand({4, -1, -1}).unfold(0, size, step) * 2};
          }};
}

// The metadata of a tensor of its own changes; bits are seen as integers.
OperatorCase same_memory(Draw& draw) {
  const Lengths shape = shape_of(draw, 2);
  return {
      "unsqueeze_, squeeze_, transpose_, view.dtype", {draw.normal(shape)}, [](const Tensors& t) {
        at::Tensor y = t[0] * 1;
        y.unsqueeze_(1).transpose_(0, 2).squeeze_(1);
        const at::Tensor values = t[0].detach().abs() + 1;
        // Integers of the same size: any cut bears them.
        const at::ScalarType bits = values.element_size() == 8 ? at::kLong : at::kInt;
        return Tensors{y * 2, values.view(bits), y.t_() + 0};
      }};
}

// Elements of half the size fit everywhere; back again none lies on two ranks.
OperatorCase other_elements(Draw& draw) {
  const Lengths shape = shape_of(draw, 2);
  OperatorCase drawn{"view.dtype", {draw.normal(shape)}, [](const Tensors& t) {
                       const at::Tensor values = t[0].detach().abs() + 1;
                       const bool is_wide = values.element_size() == 8;
                       const at::Tensor halves = values.view(is_wide ? at::kInt : at::kShort);
                       return Tensors{halves, halves.view(values.scalar_type())};
                     }};
  drawn.equality = Equality::kBits;
  drawn.no_partial = true;
  return drawn;
}

// What has no meaning without the global memory raises, and says what to do.
OperatorCase refused(Draw& draw) {
  return {"as_strided, view", {draw.normal({3, 4})}, [](const Tensors& t) {
            if (!is_shard_tensor(t[0])) return Tensors{t[0] * 1};
            EXPECT_THROW(t[0].as_strided({2}, {1}), ShardTensorError);
            if (spec_of(t[0])->is_sharded(1)) {
              try {
                t[0].view({12});
              } catch (const ShardTensorError& error) {
                EXPECT_NE(std::string(error.what()).find("use reshape"), std::string::npos);
              }
            }
            EXPECT_THROW(t[0].view({5, 5}), c10::Error);
            EXPECT_THROW(t[0].select(0, 3), c10::Error);
            EXPECT_THROW(t[0].permute({0, 0}), c10::Error);
            return Tensors{t[0] * 1};
          }};
}

// A gradient lies where its tensor does: nobody holds the rows of others.
OperatorCase row_gradients(Draw& draw) {
  const at::Tensor x = draw.normal({draw.extent(), draw.extent()});
  const int64_t row = draw.integer(0, x.size(0) - 1);
  return {"the gradient of a row", {x}, [=](const Tensors& t) {
            const at::Tensor y = t[0] * 1;
            if (is_shard_tensor(y)) {
              const SpecPtr spec = gradient_spec(spec_of(y));
              y.register_hook([spec](const at::Tensor& gradient) {
                EXPECT_TRUE(!spec->is_sharded(0) || *spec_of(gradient) == *spec);
                return gradient;
              });
            }
            return Tensors{y.select(0, row) * 2 + y.slice(0, row, row + 1).sum(0)};
          }};
}

const bool kRegistered = register_operator_cases("views", [](Draw& draw) {
  using Drawn = OperatorCase (*)(Draw&);
  return draw.one_of<Drawn>({&reshape, &heads, &order, &squeezed, &expanded, &parts, &parts,
                             &diagonal, &complex, &windows, &same_memory, &other_elements, &refused,
                             &row_gradients, &in_place, &in_place})(draw);
});

}  // namespace
}  // namespace meshrun
