// What the tests of sharded tensors draw at random: numbers, values, layouts, and the parts of a
// whole tensor under them. All ranks that start from one seed draw the same.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "parallel/shard/tensor/shard_tensor_spec.h"

namespace meshrun {

class Draw {
 public:
  explicit Draw(uint64_t seed) : engine_(seed) {}

  // In [low, high].
  int64_t integer(int64_t low, int64_t high);
  // Extent of a dimension: small, often uneven for two to four ranks, sometimes fewer than ranks.
  int64_t extent() { return integer(1, 9); }
  bool chance(double probability);
  template <typename T>
  T one_of(const std::vector<T>& choices) {
    return choices[static_cast<size_t>(integer(0, static_cast<int64_t>(choices.size()) - 1))];
  }
  // float64 numbers from the standard normal distribution; positive ones are at least 0.1.
  at::Tensor normal(at::IntArrayRef shape);
  at::Tensor positive(at::IntArrayRef shape);
  // int64 in [low, high].
  at::Tensor integers(at::IntArrayRef shape, int64_t low, int64_t high);

 private:
  std::mt19937_64 engine_;
};

// `extent` in `pieces`, each of any size.
std::vector<int64_t> uneven(Draw& draw, int64_t extent, int64_t pieces);
// `layout` with pieces of any sizes.
ShardLayout with_uneven_cuts(Draw& draw, const ShardLayout& layout);
// A layout of that shape: any placement on each axis, by the split rule or cut anyhow.
ShardLayout draw_layout(Draw& draw, const std::vector<int64_t>& mesh_shape,
                        const std::vector<int64_t>& shape, bool may_be_partial, bool may_be_cut);

// This rank's part, in memory of its own. The summands of a Partial differ, and none is the whole;
// of an average likewise.
at::Tensor part_of(const at::Tensor& whole, const ShardTensorSpec& spec);

// The mesh of that shape of all ranks of the manager's world.
ShardMesh::Ptr mesh_of_world(const std::vector<int64_t>& shape);

}  // namespace meshrun
