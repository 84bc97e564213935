// Products with contracted dimensions on sharded tensors: operands go where layout/contraction.h
// says, the local operator runs, and what is left to add between ranks is a Partial.
//
// Internal to parallel/shard. All ranks of the mesh call alike. Errors: ShardTensorError (extents
// that do not fit, two meshes), and the local operator's.
#pragma once

#include "ATen/core/Tensor.h"
#include "c10/util/ArrayRef.h"
#include "c10/util/FunctionRef.h"
#include "c10/util/SmallVector.h"
#include "parallel/shard/layout/contraction.h"

namespace meshrun {

// One for each dimension: layout/contraction.h.
using ProductLabels = c10::SmallVector<int, 6>;

struct Product {
  const char* name = "";
  c10::SmallVector<at::Tensor, 3> operands;  // sharded and plain ones; undefined ones are left out
  c10::SmallVector<ProductLabels, 3> labels;
  ProductLabels result;
  // The operand that is added to the product of the others; -1: none.
  int summand = -1;
  ProductLabels whole = {};
  // Where all labels follow from the operands' shapes: the address of a constant that stands for
  // how. The layouts of a call are then kept without its labels.
  const void* rule = nullptr;
};

// `adds`: whether this rank is the one that adds the summand, where ranks have a Partial.
using LocalProduct = c10::function_ref<at::Tensor(at::TensorList locals, bool adds)>;

// On tensors without history.
at::Tensor product_below_autograd(const Product& product, LocalProduct local);
// LibTorch's autograd records the local operator, where it records at all.
at::Tensor product_above_autograd(const Product& product, LocalProduct local);

// A product of two operands whose labels are always the same, a matrix product say: one static
// value of each, since the layouts of a call are kept under its address.
struct FixedProduct {
  const char* name = "";
  ProductLabels of_a;
  ProductLabels of_b;
  ProductLabels result;
};

using LocalFixedProduct = at::Tensor (*)(const at::Tensor& a, const at::Tensor& b);

// As product_below_autograd(), without its vectors where both operands are sharded.
at::Tensor fixed_product(const FixedProduct& product, const at::Tensor& a, const at::Tensor& b,
                         LocalFixedProduct local);

// A plain tensor of zeros with the operand's dtype, and its extents up to 2: what LibTorch's
// autocast makes of it is what it makes of the whole operand. It casts products, except sums of one
// term; a rank's extent may be 1 where the whole one is not.
at::Tensor small_stand_in(const at::Tensor& operand);

// Labels of the last dimensions of something that broadcasts to a result with these labels and
// extents.
ProductLabels trailing_labels(const at::Tensor& operand, c10::ArrayRef<int> labels,
                              at::IntArrayRef extents);

}  // namespace meshrun
