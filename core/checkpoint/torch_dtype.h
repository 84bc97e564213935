// torch's dtypes, and the storages that stand for them in older files, as those of a TensorSource.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/checkpoint/pickle.h"
#include "core/checkpoint/tensor_source.h"

namespace meshrun {

struct TorchDtype {
  std::string_view torch;    // "float32"
  std::string_view dtype;    // "F32"
  uint64_t bytes = 0;        // 16 for complex128, whose dtype is "F64" with one dimension more
  std::string_view storage;  // "FloatStorage"; empty: none
  // Whether torch keeps negative views of it.
  bool negatable = false;
  bool complex = false;

  // A tensor of that shape, in elements of torch, as a TensorSource tells it.
  TensorInfo Tell(std::vector<int64_t> shape) const;
};

// `value` is torch.float32 or torch.FloatStorage. Null: another value, or a dtype that a
// TensorSource has no name for.
const TorchDtype* FindTorchDtype(const PickleValue& value);

}  // namespace meshrun
