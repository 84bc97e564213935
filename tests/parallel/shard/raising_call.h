// What a case compares where LibTorch raises: sharded tensors must raise on every rank.
#pragma once

#include <functional>

#include "ATen/core/Tensor.h"
#include "ATen/ops/full.h"
#include "c10/util/Exception.h"

namespace meshrun {

// 1 where the call raises c10::Error, 0 where it returns; a plain tensor.
inline at::Tensor raises(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::Error&) {
    return at::full({}, 1);
  }
  return at::full({}, 0);
}

}  // namespace meshrun
