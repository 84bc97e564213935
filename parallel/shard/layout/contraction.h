// Where the operands of a product with contracted dimensions must lie so that each rank computes
// its part alone, and where the result lies then: matrix products, linear layers, einsum.
//
// Dimensions are named by labels, as in einsum. An axis of the mesh cuts one label: in every
// operand that has it, and in the result, which is Partial(sum) there where the label is
// contracted. An operand that lies otherwise moves; the largest one decides. One Partial(sum)
// operand an axis may stay so, since the product is linear in each.
//
// Pure, without LibTorch. Errors: ShardLayoutError where extents of one label differ.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/shard/layout/shard_layout.h"

namespace meshrun {

// A dimension of extent 1 that is broadcast: always whole.
inline constexpr int kBroadcastLabel = -1;

struct Factor {
  // Null: a plain tensor, which counts as Replicate.
  const ShardLayout* layout = nullptr;
  std::vector<int64_t> shape;
  std::vector<int> labels;  // one for each dimension
  bool is_summand = false;  // it is added to the product of the others
};

struct ContractionLayout {
  std::vector<ShardLayout> factors;
  // Layouts of the gradients that the ranks compute for their factors: Partial(sum) where a factor
  // was whole and the computation was not.
  std::vector<ShardLayout> gradients;
  ShardLayout result;
};

// `whole`: labels that are never cut.
ContractionLayout contraction(const std::vector<int64_t>& mesh_shape,
                              const std::vector<Factor>& factors,
                              const std::vector<int>& result_labels,
                              const std::vector<int>& whole = {});

}  // namespace meshrun
