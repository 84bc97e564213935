// Where the result of joining tensors along a dimension lies, and where each of them must lie for
// it. Pure, without LibTorch.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/shard/layout/shard_layout.h"

namespace meshrun {

struct JoinedLayout {
  ShardLayout result;
  std::vector<ShardLayout> operands;
};

// `operands` have equal shapes, except along `dim`. The largest decides how a dimension is cut,
// ties by their order; a Partial stays where all are alike. A joined dimension that is cut keeps
// its pieces where they follow each other, and is cut by the split rule where they do not.
JoinedLayout joined(const std::vector<ShardLayout>& operands, int64_t dim);

}  // namespace meshrun
