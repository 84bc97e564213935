#include "parallel/checkpoint/tensor_versions.h"

#include <ATen/ATen.h>

#include <cstring>
#include <string_view>

#include "parallel/base/digest.h"

namespace meshrun {

int64_t TensorVersions::digest() const {
  Digest digest;
  for (const Entry& entry : entries_) digest.add(digest_of_bits(entry.tensor));
  return static_cast<int64_t>(digest.value());
}

int64_t digest_of_bits(const at::Tensor& tensor) {
  const at::Tensor bits = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous();
  const auto* const bytes = static_cast<const char*>(bits.const_data_ptr());
  const size_t words = bits.nbytes() / sizeof(int64_t);
  Digest digest;
  for (size_t i = 0; i < words; ++i) {
    int64_t word = 0;
    std::memcpy(&word, bytes + i * sizeof(word), sizeof(word));
    digest.add(word);
  }
  const size_t rest = words * sizeof(int64_t);
  digest.add(static_cast<int64_t>(digest_of(std::string_view(bytes + rest, bits.nbytes() - rest))));
  return static_cast<int64_t>(digest.value());
}

}  // namespace meshrun
