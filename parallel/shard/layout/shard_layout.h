// Which rank of a mesh holds which part of a global tensor: every rank knows it of every other one,
// so nothing that follows from it needs a message.
//
// Dimension d of the tensor is cut by all axes that are placed Shard(d), the slowest axis first:
// with axes of sizes A and B into A * B consecutive pieces, piece a * B + b for coordinate (a, b).
// A rank's part is a box: one piece of every dimension. Pieces may be uneven and empty.
//
// Values; pure, without LibTorch. Errors: ShardLayoutError says what the caller did wrong; ranks
// that pass equal arguments get equal sentences.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "parallel/shard/layout/placement.h"

namespace meshrun {

struct ShardLayoutError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

// Half-open, per dimension.
struct Box {
  std::vector<int64_t> offsets;
  std::vector<int64_t> sizes;

  bool operator==(const Box&) const = default;
};

// The common part of two boxes; absent parts have a size of 0.
Box intersect(const Box& a, const Box& b);
int64_t numel(const Box& box);

// How one dimension is cut.
struct DimCut {
  // The axes that cut it, slowest first; none: it is whole.
  std::vector<int64_t> axes;
  // Sizes of all pieces, row-major over the coordinates on `axes`; the one extent of the dimension
  // if it is whole.
  std::vector<int64_t> sizes;

  bool operator==(const DimCut&) const = default;
};

class ShardLayout {
 public:
  ShardLayout() = default;

  // Pieces by the library's split rule (compute_split_shapes), applied along one axis after the
  // other. Raises ShardLayoutError: a dim out of range, placements whose number is not the mesh's.
  static ShardLayout split(std::vector<int64_t> mesh_shape, Placements placements,
                           const std::vector<int64_t>& global_shape);
  // As torch.chunk cuts: 9 in 4 is 3, 3, 3, 0.
  static ShardLayout chunk(std::vector<int64_t> mesh_shape, Placements placements,
                           const std::vector<int64_t>& global_shape);
  // With these cuts; cuts[d].axes must be those that `placements` gives. Raises ShardLayoutError.
  static ShardLayout with_cuts(std::vector<int64_t> mesh_shape, Placements placements,
                               std::vector<DimCut> cuts);
  // From the local shapes of all ranks of the mesh, row-major: they must make a grid. Raises
  // ShardLayoutError, which names the coordinates that disagree.
  static ShardLayout infer(std::vector<int64_t> mesh_shape, Placements placements,
                           const std::vector<std::vector<int64_t>>& local_shapes);

  const std::vector<int64_t>& mesh_shape() const { return mesh_shape_; }
  const Placements& placements() const { return placements_; }
  const std::vector<int64_t>& global_shape() const { return global_shape_; }
  const std::vector<DimCut>& cuts() const { return cuts_; }
  int64_t ndim() const { return static_cast<int64_t>(global_shape_.size()); }
  // Whether any axis is Partial; whether all are Replicate.
  bool has_partial() const { return has_partial_; }
  bool is_replicated() const { return is_replicated_; }
  bool is_sharded(IntArgument dim) const { return !cuts_[static_cast<size_t>(dim)].axes.empty(); }

  // The part of the rank at `coordinate`.
  Box box(const std::vector<int64_t>& coordinate) const;
  // Which piece of `dim` that rank has, and its place in cuts()[dim].sizes.
  int64_t piece(IntArgument dim, const std::vector<int64_t>& coordinate) const;
  // The same layout with other placements where axes are not Shard (Partial to Replicate, say).
  ShardLayout with_placements(const Placements& placements) const;

  uint64_t hash() const { return hash_; }
  bool operator==(const ShardLayout& other) const;

 private:
  void finish();

  std::vector<int64_t> mesh_shape_;
  Placements placements_;
  std::vector<int64_t> global_shape_;
  std::vector<DimCut> cuts_;
  bool has_partial_ = false;
  bool is_replicated_ = true;
  uint64_t hash_ = 0;
};

// Dims counted from the front; raises ShardLayoutError where one is out of range.
Placements normalized(Placements placements, int64_t ndim);
// Coordinates of all ranks of a mesh, row-major.
std::vector<std::vector<int64_t>> all_coordinates(const std::vector<int64_t>& mesh_shape);

}  // namespace meshrun
