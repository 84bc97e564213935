// A torch::nn::Module with the tensors of a Python module, for what parallel/ does with modules.
//
// The tensors are the same ones: what is written here is written there. A tensor that Python puts
// in place of another one is not seen, so the owner compares them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"

namespace torch::nn {
class Module;
}

namespace meshrun::python {

struct NamedTensor {
  std::string name;  // "encoder.0.weight"
  at::Tensor tensor;
  bool is_parameter = true;
};

std::shared_ptr<torch::nn::Module> mirror_of(const std::vector<NamedTensor>& tensors);

}  // namespace meshrun::python
