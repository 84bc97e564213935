// Where results of operators in place and with out= go.
//
// Internal to parallel/shard. All ranks of the mesh call alike.
#pragma once

#include "ATen/core/Tensor.h"
#include "ATen/core/grad_mode.h"

namespace meshrun {

// Writes `result`, sharded and without history, into the memory of `target`, which keeps its layout
// (dispatch/write_back.h). A target of another shape takes the result's memory and layout. Returns
// `target`. Raises ShardTensorError where `target` is plain.
at::Tensor& assign(at::Tensor& target, const at::Tensor& result);

// The out= form of an operator: its arguments, then the tensor that is written. Below autograd.
template <auto Operator>
struct Into;
template <typename... Arguments, at::Tensor (*Operator)(Arguments...)>
struct Into<Operator> {
  static at::Tensor& call(Arguments... arguments, at::Tensor& out) {
    const at::NoGradGuard no_history;
    return assign(out, Operator(arguments...));
  }
};

// As Into; a tensor of another type than the result's is LibTorch's error.
template <auto Operator>
struct IntoSameType;
template <typename... Arguments, at::Tensor (*Operator)(Arguments...)>
struct IntoSameType<Operator> {
  static at::Tensor& call(Arguments... arguments, at::Tensor& out) {
    const at::NoGradGuard no_history;
    const at::Tensor result = Operator(arguments...);
    TORCH_CHECK(out.scalar_type() == result.scalar_type(), "Expected out tensor to have dtype ",
                result.scalar_type(), ", but got ", out.scalar_type(), " instead");
    return assign(out, result);
  }
};

}  // namespace meshrun
