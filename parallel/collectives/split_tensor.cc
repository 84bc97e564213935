#include "parallel/collectives/split_tensor.h"

#include "ATen/ops/split_with_sizes.h"
#include "c10/core/WrapDimMinimal.h"
#include "c10/util/Exception.h"
#include "parallel/collectives/split.h"

namespace meshrun {

std::vector<at::Tensor> split_tensor_along_dim(const at::Tensor& tensor, int64_t dim,
                                               int64_t num_chunks) {
  TORCH_CHECK_VALUE(tensor.defined(), "split_tensor_along_dim: the tensor is undefined");
  TORCH_CHECK_INDEX(tensor.dim() > 0,
                    "split_tensor_along_dim: a tensor without dimensions has no dim ", dim);
  TORCH_CHECK_VALUE(num_chunks > 0, "split_tensor_along_dim: ", num_chunks,
                    " pieces were asked for, at least one is needed");
  dim = c10::maybe_wrap_dim(dim, tensor.dim());
  return at::split_with_sizes(tensor, compute_split_shapes(tensor.size(dim), num_chunks), dim);
}

}  // namespace meshrun
