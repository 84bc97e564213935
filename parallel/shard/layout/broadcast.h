// Where the operands of a pointwise operator must lie so that each rank computes its part alone,
// and where the result lies then. Pure, without LibTorch.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/shard/layout/shard_layout.h"

namespace meshrun {

// What an operator does to summands: which Partial(sum) and Partial(avg) may stay so.
enum class Linearity : uint8_t {
  kNone,     // every Partial is reduced first
  kFirst,    // linear in the first operand: negation, division by the second
  kSum,      // linear in all together: addition
  kProduct,  // linear in each: multiplication
};

struct Operand {
  // Null: a plain tensor, which counts as Replicate.
  const ShardLayout* layout = nullptr;
  std::vector<int64_t> shape;
  // An out argument is written and never read: its summands take no part in the result.
  bool is_read = true;
};

struct BroadcastLayout {
  ShardLayout result;
  // Layout that each operand must have; a plain operand must be cut to its part of that layout.
  std::vector<ShardLayout> operands;
};

// `fixed`: the operand that is written in place, whose cuts the result has. -1: none; the largest
// operand then decides how a dimension is cut, and the first one among equals. Raises
// ShardLayoutError if the shapes do not broadcast.
BroadcastLayout broadcast(const std::vector<int64_t>& mesh_shape,
                          const std::vector<Operand>& operands, Linearity linearity,
                          int fixed = -1);

// The shape of the result alone.
std::vector<int64_t> broadcast_shape(const std::vector<Operand>& operands);

}  // namespace meshrun
