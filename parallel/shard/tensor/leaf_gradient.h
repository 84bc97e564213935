// What is done to the gradient of a sharded leaf before anything else sees it: its layout becomes
// gradient_spec() of the leaf's, so that what is Partial is added up.
//
// A leaf may be made in many ways (ShardTensor's constructor, requires_grad_() or
// set_requires_grad() on the result of an operator), and LibTorch has no call that all of them
// make. All ranks' leaves have the hook nevertheless, since it is added where the leaf is first
// computed with: before the backward pass, and before hooks of the program.
//
// Internal to parallel/shard; defined in dispatch/, which redistributes.
#pragma once

#include "c10/core/TensorImpl.h"

namespace meshrun {

class ShardTensorImpl;

bool is_leaf_that_requires_grad(const c10::TensorImpl& tensor);
// Once for each leaf.
void add_leaf_hook(const ShardTensorImpl& leaf);

}  // namespace meshrun
