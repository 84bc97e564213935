// Binds ShardTensor: the submodule meshrun._torch.shard, which python/meshrun/domain_parallel/
// stands on.
//
// A sharded tensor is a plain torch.Tensor object in Python, so operators cost nothing more there.
// Placements cross as words: "S1", "R", "Psum". All functions that may send release the interpreter
// lock.
//
// Errors: ShardTensorError and MissingShardRuleError become the classes of
// meshrun.domain_parallel.errors. Where PyTorch's own functions raise them, PyTorch makes a
// ValueError and a NotImplementedError of them.
#pragma once

#include <pybind11/pybind11.h>

namespace meshrun::python {

void bind_shard(pybind11::module_& module);

}  // namespace meshrun::python
