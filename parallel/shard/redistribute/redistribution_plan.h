// How a tensor gets from one layout to another: which collectives, over which ranks, of which
// pieces.
//
//   1. axes that become Shard and are Replicate: each rank keeps its part (nothing is sent)
//   2. Partial(sum or avg) to Shard: reduce-scatter; any other Partial: all-reduce
//   3. Shard to Shard: one all-to-all along the axis; Shard to Replicate: one all-gather, innermost
//      axis first. Each writes its result in place
//   4. what 3 cannot reach, or not with the fewest bytes (pieces that do not nest): one all-to-all
//      of boxes, packed once
//
// On another mesh of the same ranks: Partial axes are reduced, then one all-to-all of boxes. Where
// several ranks have a piece, the one that sends least so far sends it: plan_mesh_change().
//
// In 3 and 4 a rank receives the part of its new box that it does not hold, once, from the rank
// that holds it and shares its other coordinates: no plan moves less. Pure, without LibTorch;
// all ranks that give the same two layouts make steps of the same kinds over the same axes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallel/shard/layout/shard_layout.h"

namespace meshrun {

struct RedistributionStep {
  enum class Kind : uint8_t {
    kSlice,          // keeps own_from of what this rank has
    kReduceScatter,  // over `axis`, into sent_sizes along sent_dim, by `op`
    kAllReduce,      // over `axis`, by `op`
    kAllGather,      // over `axis`, of sent_sizes along sent_dim
    kAllToAll,       // over `axis`: sent_sizes along sent_dim go out, received_sizes along
                     // received_dim come in
    kExchange,       // over `axis`: a box to each rank and from each; into new memory, also where
                     // nothing is sent
  };
  static constexpr int64_t kWholeMesh = -1;

  Kind kind = Kind::kSlice;
  int64_t axis = kWholeMesh;
  bool is_on_wire = true;
  PartialOp op = PartialOp::kSum;
  int64_t sent_dim = 0;
  std::vector<int64_t> sent_sizes;
  int64_t received_dim = 0;
  std::vector<int64_t> received_sizes;

  // Boxes in the local tensors: those sent in what this rank holds, those received in its result;
  // one for each rank along `axis`, empty for itself. Its own part goes from own_from to own_to; a
  // slice is own_from.
  std::vector<Box> sent;
  std::vector<Box> received;
  Box own_from;
  Box own_to;

  // Shape of the local result.
  std::vector<int64_t> shape;
  // Elements that this rank gets from others. An all-reduce counts as a reduce-scatter and an
  // all-gather of equal pieces, rounded up.
  int64_t received_elements = 0;
};

struct RedistributionPlan {
  std::vector<RedistributionStep> steps;
  // Equal on all ranks that make these exchanges: as a number, and in words.
  uint64_t digest = 0;
  std::string words;

  int64_t received_elements() const;
};

// Plan of the rank at `coordinate`. Both layouts have the same mesh shape and global shape; where
// `to` is Partial, `from` is the same Partial.
RedistributionPlan plan_redistribution(const ShardLayout& from, const ShardLayout& to,
                                       const std::vector<int64_t>& coordinate);

// Plan of the rank at `coordinate` of `from`'s mesh, where `to` is on another mesh of the same
// ranks and has no Partial. `numbers`: the rank that is number i of `from`'s mesh, row-major, is
// number numbers[i] of `to`'s. Groups are those of `from`'s mesh.
RedistributionPlan plan_mesh_change(const ShardLayout& from, const ShardLayout& to,
                                    const std::vector<int64_t>& numbers,
                                    const std::vector<int64_t>& coordinate);

// Elements of its new box that the rank does not hold.
int64_t lacking_elements(const ShardLayout& from, const ShardLayout& to,
                         const std::vector<int64_t>& coordinate);

}  // namespace meshrun
