// Matrix products and linear layers: rows that are cut stay where they are, and where the
// contracted dimension is cut in both operands each rank has a summand of the result.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/Functions.h"
#include "ATen/WrapDimUtils.h"
#include "ATen/core/DimVector.h"
#include "ATen/core/LegacyTypeDispatch.h"
#include "parallel/shard/dispatch/cast_policy.h"
#include "parallel/shard/dispatch/operator_table.h"
#include "parallel/shard/operators/assign.h"
#include "parallel/shard/operators/product.h"
#include "parallel/shard/tensor/shard_tensor_impl.h"

namespace meshrun {
namespace {

using Labels = ProductLabels;

// Rows of the left operand, columns of the right one, what is contracted, the batch. Batch
// dimensions of matmul and linear count on from kBatch.
enum Label : int { kRow, kColumn, kInner, kBatch };

at::Scalar or_zero(const at::Scalar& beta, bool adds) { return adds ? beta : at::Scalar(0); }

void check_dims(const char* name,
                std::initializer_list<std::pair<const at::Tensor*, int64_t>> dims) {
  for (const auto& [tensor, ndim] : dims) {
    TORCH_CHECK_VALUE(tensor->dim() == ndim, name, " takes a tensor of ", ndim, " dimensions, not ",
                      tensor->sizes());
  }
}

const FixedProduct kMm = {"mm", {kRow, kInner}, {kInner, kColumn}, {kRow, kColumn}};
const FixedProduct kBmm = {
    "bmm", {kBatch, kRow, kInner}, {kBatch, kInner, kColumn}, {kBatch, kRow, kColumn}};
const FixedProduct kMv = {"mv", {kRow, kInner}, {kInner}, {kRow}};
const FixedProduct kDot = {"dot", {kInner}, {kInner}, {}};

at::Tensor mm(const at::Tensor& self, const at::Tensor& mat2) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  check_dims("mm", {{&self, 2}, {&mat2, 2}});
  return fixed_product(kMm, self, mat2, &at::mm);
}

at::Tensor bmm(const at::Tensor& self, const at::Tensor& mat2) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  check_dims("bmm", {{&self, 3}, {&mat2, 3}});
  return fixed_product(kBmm, self, mat2, &at::bmm);
}

at::Tensor mv(const at::Tensor& self, const at::Tensor& vec) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  check_dims("mv", {{&self, 2}, {&vec, 1}});
  return fixed_product(kMv, self, vec, &at::mv);
}

template <auto Dot>
at::Tensor dot(const at::Tensor& self, const at::Tensor& tensor) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  check_dims("dot", {{&self, 1}, {&tensor, 1}});
  return fixed_product(kDot, self, tensor, Dot);
}

// beta * self + alpha * (a product): `Op` is LibTorch's operator of that form.
template <auto Op>
at::Tensor added_product(const char* name, const at::Tensor& self, const at::Tensor& a,
                         const at::Tensor& b, const Labels& of_a, const Labels& of_b,
                         const Labels& result, at::IntArrayRef extents, const at::Scalar& beta,
                         const at::Scalar& alpha) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  return product_below_autograd(
      {name, {a, b, self}, {of_a, of_b, trailing_labels(self, result, extents)}, result, 2},
      [&](at::TensorList local, bool adds) {
        return Op(local[2], local[0], local[1], or_zero(beta, adds), alpha);
      });
}

using AddedProduct = at::Tensor (*)(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                    const at::Scalar&, const at::Scalar&);
constexpr AddedProduct kAddmm = &at::addmm;
constexpr AddedProduct kAddmv = &at::addmv;
constexpr AddedProduct kAddr = &at::addr;
constexpr AddedProduct kBaddbmm = &at::baddbmm;
constexpr AddedProduct kAddbmm = &at::addbmm;

at::Tensor addmm(const at::Tensor& self, const at::Tensor& mat1, const at::Tensor& mat2,
                 const at::Scalar& beta, const at::Scalar& alpha) {
  check_dims("addmm", {{&mat1, 2}, {&mat2, 2}});
  return added_product<kAddmm>("addmm", self, mat1, mat2, {kRow, kInner}, {kInner, kColumn},
                               {kRow, kColumn}, {mat1.size(0), mat2.size(1)}, beta, alpha);
}

at::Tensor addmv(const at::Tensor& self, const at::Tensor& mat, const at::Tensor& vec,
                 const at::Scalar& beta, const at::Scalar& alpha) {
  check_dims("addmv", {{&mat, 2}, {&vec, 1}});
  return added_product<kAddmv>("addmv", self, mat, vec, {kRow, kInner}, {kInner}, {kRow},
                               {mat.size(0)}, beta, alpha);
}

at::Tensor addr(const at::Tensor& self, const at::Tensor& vec1, const at::Tensor& vec2,
                const at::Scalar& beta, const at::Scalar& alpha) {
  check_dims("addr", {{&vec1, 1}, {&vec2, 1}});
  return added_product<kAddr>("addr", self, vec1, vec2, {kRow}, {kColumn}, {kRow, kColumn},
                              {vec1.size(0), vec2.size(0)}, beta, alpha);
}

at::Tensor baddbmm(const at::Tensor& self, const at::Tensor& batch1, const at::Tensor& batch2,
                   const at::Scalar& beta, const at::Scalar& alpha) {
  check_dims("baddbmm", {{&batch1, 3}, {&batch2, 3}});
  return added_product<kBaddbmm>("baddbmm", self, batch1, batch2, {kBatch, kRow, kInner},
                                 {kBatch, kInner, kColumn}, {kBatch, kRow, kColumn},
                                 {batch1.size(0), batch1.size(1), batch2.size(2)}, beta, alpha);
}

at::Tensor addbmm(const at::Tensor& self, const at::Tensor& batch1, const at::Tensor& batch2,
                  const at::Scalar& beta, const at::Scalar& alpha) {
  check_dims("addbmm", {{&batch1, 3}, {&batch2, 3}});
  return added_product<kAddbmm>("addbmm", self, batch1, batch2, {kBatch, kRow, kInner},
                                {kBatch, kInner, kColumn}, {kRow, kColumn},
                                {batch1.size(1), batch2.size(2)}, beta, alpha);
}

template <auto Op>
at::Tensor& in_place(at::Tensor& self, const at::Tensor& a, const at::Tensor& b,
                     const at::Scalar& beta, const at::Scalar& alpha) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  return assign(self, Op(self, a, b, beta, alpha));
}

template <auto Op>
at::Tensor& into(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b,
                 const at::Scalar& beta, const at::Scalar& alpha, at::Tensor& out) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  return assign(out, Op(self, a, b, beta, alpha));
}

template <auto Op>
at::Tensor& product_into(const at::Tensor& self, const at::Tensor& other, at::Tensor& out) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  return assign(out, Op(self, other));
}

// The bias, zero where another rank adds it; its gradient is zero there too.
at::Tensor masked_bias(const at::Tensor& bias, bool adds) {
  return adds ? bias : at::masked_fill(bias, at::ones({}, bias.options().dtype(at::kBool)), 0);
}

// Labels of the leading dimensions of a layer's input.
Labels leading_labels(const at::Tensor& input) {
  Labels labels;
  for (int64_t d = 0; d + 1 < input.dim(); ++d) labels.push_back(kBatch + static_cast<int>(d));
  return labels;
}

const char kLinearRule = 0;

at::Tensor linear(const at::Tensor& input, const at::Tensor& weight,
                  const std::optional<at::Tensor>& bias) {
  TORCH_CHECK_VALUE(input.dim() >= 1 && (weight.dim() == 1 || weight.dim() == 2),
                    "linear takes an input with dimensions and a weight of one or two, not ",
                    input.sizes(), " and ", weight.sizes());
  Product product{"linear", {input, weight}, {}, leading_labels(input)};
  product.rule = &kLinearRule;
  Labels of_input = product.result;
  of_input.push_back(kInner);
  if (weight.dim() == 2) product.result.push_back(kColumn);
  product.labels = {std::move(of_input),
                    weight.dim() == 2 ? Labels{kColumn, kInner} : Labels{kInner}};
  const bool has_bias = bias.has_value() && bias->defined();
  if (has_bias) {
    product.operands.push_back(*bias);
    at::DimVector extents(input.sizes().slice(0, input.sizes().size() - 1));
    if (weight.dim() == 2) extents.push_back(weight.size(0));
    product.labels.push_back(trailing_labels(*bias, product.result, extents));
    product.summand = 2;
  }
  return product_above_autograd(product, [&](at::TensorList local, bool adds) {
    return at::linear(local[0], local[1],
                      has_bias ? std::optional(masked_bias(local[2], adds)) : std::nullopt);
  });
}

at::Tensor bilinear(const at::Tensor& input1, const at::Tensor& input2, const at::Tensor& weight,
                    const std::optional<at::Tensor>& bias) {
  check_dims("bilinear", {{&weight, 3}, {&input2, input1.dim()}});
  constexpr int kInner2 = -2;
  Product product{"bilinear", {input1, input2, weight}, {}, leading_labels(input1)};
  Labels of_input1 = product.result;
  of_input1.push_back(kInner);
  Labels of_input2 = product.result;
  of_input2.push_back(kInner2);
  product.labels = {std::move(of_input1), std::move(of_input2), {kColumn, kInner, kInner2}};
  product.result.push_back(kColumn);
  const bool has_bias = bias.has_value() && bias->defined();
  if (has_bias) {
    product.operands.push_back(*bias);
    product.labels.push_back({kColumn});
    product.summand = 3;
  }
  return product_above_autograd(product, [&](at::TensorList local, bool adds) {
    // Not at::bilinear, which flattens: that is ambiguous without elements.
    // As the first operand, also where autocast makes products of some ranks' extents bfloat16.
    const at::Tensor result = at::einsum("...a,...b,oab->...o", {local[0], local[1], local[2]})
                                  .to(local[0].scalar_type());
    return has_bias ? result + masked_bias(local[3], adds) : result;
  });
}

at::Tensor outer(const at::Tensor& self, const at::Tensor& vec2) {
  check_dims("outer", {{&self, 1}, {&vec2, 1}});
  return product_above_autograd(
      {"outer", {self, vec2}, {{kRow}, {kColumn}}, {kRow, kColumn}},
      [](at::TensorList local, bool) { return at::outer(local[0], local[1]); });
}

// Batch dimensions from the back, which broadcast.
Labels batch_labels(const at::Tensor& operand, const at::Tensor& other) {
  Labels labels;
  const int64_t count = operand.dim() - 2;
  for (int64_t d = 0; d < count; ++d) {
    const int64_t from_back = count - d;
    const int64_t opposite = other.dim() - 2 - from_back;
    const bool broadcasts = operand.size(d) == 1 && opposite >= 0 && other.size(opposite) != 1;
    labels.push_back(broadcasts ? kBroadcastLabel : kBatch + static_cast<int>(from_back));
  }
  return labels;
}

at::Tensor matmul(const at::Tensor& self, const at::Tensor& other) {
  TORCH_CHECK_VALUE(self.dim() >= 1 && other.dim() >= 1,
                    "matmul takes tensors with dimensions, not ", self.sizes(), " and ",
                    other.sizes());
  if (is_shard_tensor(self) && is_shard_tensor(other)) {
    if (self.dim() == 2 && other.dim() == 2) return at::mm(self, other);
    if (self.dim() == 2 && other.dim() == 1) return at::mv(self, other);
    if (self.dim() == 1 && other.dim() == 1) return at::dot(self, other);
  }
  Labels of_self = batch_labels(self, other);
  Labels of_other = batch_labels(other, self);
  Labels result;
  for (size_t from_back = std::max(of_self.size(), of_other.size()); from_back > 0; --from_back) {
    result.push_back(kBatch + static_cast<int>(from_back));
  }
  if (self.dim() > 1) {
    of_self.push_back(kRow);
    result.push_back(kRow);
  }
  of_self.push_back(kInner);
  of_other.push_back(kInner);
  if (other.dim() > 1) {
    of_other.push_back(kColumn);
    result.push_back(kColumn);
  }
  return product_above_autograd(
      {"matmul", {self, other}, {of_self, of_other}, result},
      [](at::TensorList local, bool) { return at::matmul(local[0], local[1]); });
}

at::Tensor tensordot(const at::Tensor& self, const at::Tensor& other, at::IntArrayRef dims_self,
                     at::IntArrayRef dims_other) {
  TORCH_CHECK_VALUE(dims_self.size() == dims_other.size(), "tensordot contracts ", dims_self.size(),
                    " dimensions of one tensor and ", dims_other.size(), " of the other");
  constexpr int kOther = 1000;
  Labels of_self;
  Labels of_other;
  for (int d = 0; d < self.dim(); ++d) of_self.push_back(d);
  for (int d = 0; d < other.dim(); ++d) of_other.push_back(kOther + d);
  std::vector<bool> gone_self(of_self.size());
  std::vector<bool> gone_other(of_other.size());
  for (size_t i = 0; i < dims_self.size(); ++i) {
    const auto a = static_cast<size_t>(at::maybe_wrap_dim(dims_self[i], self.dim()));
    const auto b = static_cast<size_t>(at::maybe_wrap_dim(dims_other[i], other.dim()));
    gone_self[a] = gone_other[b] = true;
    const int64_t extent_a = self.size(static_cast<int64_t>(a));
    const int64_t extent_b = other.size(static_cast<int64_t>(b));
    if (extent_a != extent_b && extent_a == 1) {
      of_self[a] = kBroadcastLabel;
    } else if (extent_a != extent_b && extent_b == 1) {
      of_other[b] = kBroadcastLabel;
    } else {
      of_other[b] = of_self[a];
    }
  }
  Labels result;
  for (size_t d = 0; d < of_self.size(); ++d) {
    if (!gone_self[d]) result.push_back(of_self[d]);
  }
  for (size_t d = 0; d < of_other.size(); ++d) {
    if (!gone_other[d]) result.push_back(of_other[d]);
  }
  // Under autocast by the whole result: LibTorch's sum for one element is not cast.
  std::optional<at::ScalarType> dtype;
  if (any_autocast()) {
    dtype = at::tensordot(small_stand_in(self), small_stand_in(other), dims_self, dims_other)
                .scalar_type();
  }
  return product_above_autograd(
      {"tensordot", {self, other}, {of_self, of_other}, result}, [&](at::TensorList local, bool) {
        const at::Tensor own = at::tensordot(local[0], local[1], dims_self, dims_other);
        return dtype ? own.to(*dtype) : own;
      });
}

const Movement kProduct = {
    "any Shard that the other operand has too or where it is Replicate; one Partial(sum)",
    "where two cuts meet on one axis, the smaller operand; a cut contracted dimension becomes "
    "Partial(sum)",
    "what is Partial, where it is used; the gradient of a Replicate operand becomes Partial(sum)"};

const bool kRegistered =
    OperatorFamily("matrix products")
        .below_autograd("aten::mm", &mm, kProduct)
        .below_autograd("aten::mm.out", &product_into<&mm>, kProduct)
        .below_autograd("aten::bmm", &bmm, kProduct)
        .below_autograd("aten::bmm.out", &product_into<&bmm>, kProduct)
        .below_autograd("aten::mv", &mv, kProduct)
        .below_autograd(
            "aten::dot",
            &dot<static_cast<at::Tensor (*)(const at::Tensor&, const at::Tensor&)>(&at::dot)>,
            kProduct)
        .below_autograd(
            "aten::vdot",
            &dot<static_cast<at::Tensor (*)(const at::Tensor&, const at::Tensor&)>(&at::vdot)>,
            kProduct)
        .below_autograd("aten::addmm", &addmm, kProduct)
        .below_autograd("aten::addmm_", &in_place<&addmm>, kProduct)
        .below_autograd("aten::addmm.out", &into<&addmm>, kProduct)
        .below_autograd("aten::addmv", &addmv, kProduct)
        .below_autograd("aten::addmv_", &in_place<&addmv>, kProduct)
        .below_autograd("aten::addr", &addr, kProduct)
        .below_autograd("aten::addr_", &in_place<&addr>, kProduct)
        .below_autograd("aten::baddbmm", &baddbmm, kProduct)
        .below_autograd("aten::baddbmm_", &in_place<&baddbmm>, kProduct)
        .below_autograd("aten::addbmm", &addbmm, kProduct)
        .below_autograd("aten::addbmm_", &in_place<&addbmm>, kProduct)
        .above_autograd("aten::linear", &linear, kProduct)
        .above_autograd("aten::bilinear", &bilinear, kProduct)
        .above_autograd("aten::outer", &outer, kProduct)
        .above_autograd("aten::matmul", &matmul, kProduct)
        .above_autograd("aten::tensordot", &tensordot, kProduct)
        .registered();

}  // namespace
}  // namespace meshrun
