// Converts between LibTorch's tensors and those of a safetensors file. The format has no
// complex128: such a tensor is stored as F64 with a last dimension of 2, its real and its imaginary
// part.
#pragma once

#include <ATen/core/Tensor.h>

#include "parallel/checkpoint/safetensors.h"

namespace meshrun {

// A copy of the tensor's values, from any device. Raises c10::TypeError for a dtype that the format
// lacks.
StoredTensor to_stored(const at::Tensor& tensor);

// Copies the values into `tensor`, on its device. Raises c10::ValueError, with both sides' values,
// if dtype or shape differ; the text calls the tensor `name`.
void copy_stored(const StoredTensor& stored, const std::string& name, const at::Tensor& tensor);

}  // namespace meshrun
