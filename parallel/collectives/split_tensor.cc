#include "parallel/collectives/split_tensor.h"

#include "ATen/ops/split_with_sizes.h"
#include "c10/util/Exception.h"
#include "parallel/base/split.h"
#include "parallel/collectives/call/local_dim.h"

namespace meshrun {

std::vector<at::Tensor> split_tensor_along_dim(const at::Tensor& tensor, IntArgument given_dim,
                                               IntArgument num_chunks) {
  const int64_t dim = local_dim("split_tensor_along_dim", tensor, given_dim);
  TORCH_CHECK_VALUE(num_chunks > 0, "split_tensor_along_dim: ", num_chunks,
                    " pieces were asked for, at least one is needed");
  return at::split_with_sizes(tensor, compute_split_shapes(tensor.size(dim), num_chunks), dim);
}

}  // namespace meshrun
