// Gradients of operators that are linear in one tensor: the backward pass calls the adjoint, which
// is made of operators too. So there are derivatives of any order, and torch.compile traces them.
//
// An undefined cotangent counts as zeros, because the other ranks need this rank's part.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "ATen/core/Tensor.h"
#include "c10/util/FunctionRef.h"

namespace meshrun::python {

// From the cotangent to the gradient. `saved`: the tensors that linear() got to keep.
using Adjoint =
    std::function<at::Tensor(const at::Tensor& cotangent, const std::vector<at::Tensor>& saved)>;

// Calls the operator, below autograd, in that group. `differentiable`: this rank makes a node.
using Forward = c10::function_ref<at::Tensor(bool differentiable, std::string_view group)>;

// Body of an Autograd kernel. `group`: in which the backward's calls travel; they are compared with
// the node that they are of (NodeNumber), except in traced graphs. `adjoint` is asked for where
// this rank makes a node, with the result.
at::Tensor linear(const at::Tensor& tensor, std::string_view group, Forward forward,
                  c10::function_ref<Adjoint(const at::Tensor& result)> adjoint,
                  const std::vector<at::Tensor>& saved = {});

}  // namespace meshrun::python
