#include "parallel/shard/dispatch/tangents.h"

#include "c10/util/Exception.h"

namespace meshrun {

void refuse_tangent(const char* operation) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, operation,
      " would lose the tangent of a dual number beside a ShardTensor: take the derivative by "
      "torch.func.jvp, or in reverse mode");
}

}  // namespace meshrun
