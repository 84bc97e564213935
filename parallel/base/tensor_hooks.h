// The hooks of tensors from several sides. A tensor has one list of hooks, and the first
// register_hook() of a C++ program clears it to put its own list there: hooks of Python's, and
// those that were added otherwise, are gone without a word. (Python's first register_hook() does
// the same the other way round: meshrun.distributed makes its list before ours.)
#pragma once

#include <ATen/core/TensorBase.h>

namespace meshrun::detail {

// After this no register_hook() of a C++ program clears hooks of the tensor, now or later.
void keep_hooks(const at::TensorBase& tensor);

}  // namespace meshrun::detail
