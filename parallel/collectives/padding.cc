#include "parallel/collectives/padding.h"

#include <vector>

#include "ATen/ops/cat.h"
#include "ATen/ops/conj.h"
#include "ATen/ops/flip.h"
#include "ATen/ops/zeros.h"
#include "c10/util/Exception.h"
#include "parallel/collectives/call/local_dim.h"

namespace meshrun {

at::Tensor pad_helper(const at::Tensor& tensor, IntArgument given_dim, IntArgument new_size,
                      std::string_view mode) {
  const int64_t dim = local_dim("pad_helper", tensor, given_dim);
  TORCH_CHECK_VALUE(mode == "zero" || mode == "conj", "pad_helper: mode \"", mode,
                    "\" is unknown; it is \"zero\" or \"conj\"");
  const int64_t size = tensor.size(dim);
  const int64_t added = new_size - size;
  TORCH_CHECK_VALUE(added >= 0, "pad_helper: dim ", dim, " has size ", size,
                    " already and cannot be padded to ", new_size, "; see truncate_helper");
  if (added == 0) return tensor;
  if (mode == "conj") {
    TORCH_CHECK_VALUE(added < size, "pad_helper: dim ", dim, " of size ", size,
                      " can be completed with conjugates to at most ", 2 * size - 1, ", not to ",
                      new_size);
    const at::Tensor mirrored = at::flip(tensor.narrow(dim, 1, added).conj(), {dim});
    return at::cat({tensor, mirrored}, dim);
  }
  std::vector<int64_t> shape = tensor.sizes().vec();
  shape[static_cast<size_t>(dim)] = added;
  return at::cat({tensor, at::zeros(shape, tensor.options())}, dim);
}

at::Tensor truncate_helper(const at::Tensor& tensor, IntArgument given_dim, IntArgument new_size) {
  const int64_t dim = local_dim("truncate_helper", tensor, given_dim);
  const int64_t size = tensor.size(dim);
  TORCH_CHECK_VALUE(new_size >= 0 && new_size <= size, "truncate_helper: dim ", dim, " has size ",
                    size, " and cannot be truncated to ", new_size, "; see pad_helper");
  return new_size == size ? tensor : tensor.narrow(dim, 0, new_size).contiguous();
}

}  // namespace meshrun
