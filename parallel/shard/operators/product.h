// Products with contracted dimensions on sharded tensors: operands go where layout/contraction.h
// says, the local operator runs, and what is left to add between ranks is a Partial.
//
// Internal to parallel/shard. All ranks of the mesh call alike. Errors: ShardTensorError (extents
// that do not fit, two meshes), and the local operator's.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "parallel/shard/layout/contraction.h"

namespace meshrun {

struct Product {
  const char* name = "";
  std::vector<at::Tensor> operands;  // sharded and plain ones; undefined ones are left out
  std::vector<std::vector<int>> labels;
  std::vector<int> result;
  // The operand that is added to the product of the others; -1: none.
  int summand = -1;
  std::vector<int> whole = {};
};

// `adds`: whether this rank is the one that adds the summand, where ranks have a Partial.
using LocalProduct = std::function<at::Tensor(const std::vector<at::Tensor>& locals, bool adds)>;

// On tensors without history.
at::Tensor product_below_autograd(const Product& product, const LocalProduct& local);
// LibTorch's autograd records the local operator.
at::Tensor product_above_autograd(const Product& product, const LocalProduct& local);

// A product of two operands whose labels are always the same, a matrix product say: one static
// value of each, since the layouts of a call are kept under its address.
struct FixedProduct {
  const char* name = "";
  std::vector<int> of_a;
  std::vector<int> of_b;
  std::vector<int> result;
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
std::vector<int> trailing_labels(const at::Tensor& operand, const std::vector<int>& labels,
                                 const std::vector<int64_t>& extents);

}  // namespace meshrun
