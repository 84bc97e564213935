// Files of tensors as parsers' inputs: safetensors, their index, and files of PyTorch and of
// PhysicsNeMo.
#pragma once

#include <vector>

#include "tests/fuzz/parsers.h"

namespace meshrun::fuzz {

std::vector<Parser> TensorFileParsers();

}  // namespace meshrun::fuzz
