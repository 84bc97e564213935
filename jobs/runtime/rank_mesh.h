// The mesh of jobs that learn fields: dp x spatial, or dp x domain where activations are cut by
// ShardTensor.
#pragma once

#include <cstdint>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "parallel/base/split.h"
#include "parallel/manager/distributed_manager.h"

namespace meshrun::jobs {

inline constexpr char kData[] = "dp";
inline constexpr char kSpatial[] = "spatial";
inline constexpr char kDomain[] = "domain";

struct RankMesh {
  ProcessGroupPtr world;
  // Ranks with the same columns and other samples.
  ProcessGroupPtr data;
  // Ranks with the same samples and other columns.
  ProcessGroupPtr spatial;

  // This rank's columns, or its place in a batch.
  SplitRange columns(int64_t all) const {
    return split_range(all, spatial->getSize(), spatial->getRank());
  }
  SplitRange share(int64_t batch) const {
    return split_range(batch, data->getSize(), data->getRank());
  }
};

// The launcher's mesh (`--mesh dp=2,spatial=2`), else the world in groups of `spatial` ranks. The
// world must have been joined. `axis` names the second dimension, and the flag that `spatial` comes
// from. Raises UsageError on every rank: the mesh has other axes, or `spatial` does not divide the
// world.
RankMesh join_mesh(int64_t spatial, const std::string& axis = kSpatial);

}  // namespace meshrun::jobs
