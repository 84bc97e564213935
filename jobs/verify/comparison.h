// What is wrong with a tensor, as one sentence; empty: nothing.
#pragma once

#include <string>

#include "ATen/core/Tensor.h"

namespace meshrun::verify {

// Every bit.
std::string unequal(const at::Tensor& found, const at::Tensor& expected);
// In relative L2; `limit` is the largest error that is right.
std::string unlike(const at::Tensor& found, const at::Tensor& expected, double limit);

}  // namespace meshrun::verify
