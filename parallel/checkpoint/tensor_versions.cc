#include "parallel/checkpoint/tensor_versions.h"

#include <ATen/ATen.h>

#include "core/checkpoint/xxh3.h"
#include "parallel/base/digest.h"

namespace meshrun {

int64_t TensorVersions::digest() const {
  Digest digest;
  for (const Entry& entry : entries_) digest.add(digest_of_bits(entry.tensor));
  return static_cast<int64_t>(digest.value());
}

int64_t digest_of_bits(const at::Tensor& tensor) {
  const at::Tensor bits = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous();
  return static_cast<int64_t>(
      Xxh3({static_cast<const char*>(bits.const_data_ptr()), bits.nbytes()}).low);
}

}  // namespace meshrun
