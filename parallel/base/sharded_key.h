// How the layers below parallel/shard know a tensor that is sharded: it has the global shape, and
// no memory that a collective could send.
#pragma once

#include "ATen/core/Tensor.h"
#include "c10/core/DispatchKey.h"

namespace meshrun {

// Every sharded tensor has this key, and no other tensor: LibTorch gives it to none.
inline constexpr c10::DispatchKey kShardedKey = c10::DispatchKey::DeferredInit;

inline bool is_sharded(const at::Tensor& tensor) {
  return tensor.defined() && tensor.unsafeGetTensorImpl()->key_set().has(kShardedKey);
}

// What a call says of an argument that is one.
inline constexpr const char* kTakesLocalTensors =
    "the tensor is a ShardTensor, and collectives take local tensors: pass its to_local()";

}  // namespace meshrun
