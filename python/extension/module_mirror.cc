#include "python/extension/module_mirror.h"

#include <torch/nn/module.h>

#include <map>

namespace meshrun::python {

using torch::nn::Module;

std::shared_ptr<Module> mirror_of(const std::vector<NamedTensor>& tensors) {
  auto root = std::make_shared<Module>("root");
  std::map<std::string, std::shared_ptr<Module>> by_path = {{"", root}};
  const auto at_path = [&](const std::string& path) {
    std::string above;
    for (size_t begin = 0; begin < path.size();) {
      const size_t dot = std::min(path.find('.', begin), path.size());
      const std::string here = path.substr(0, dot);
      std::shared_ptr<Module>& node = by_path[here];
      if (node == nullptr) {
        const std::string name = path.substr(begin, dot - begin);
        node = by_path.at(above)->register_module(name, std::make_shared<Module>(name));
      }
      above = here;
      begin = dot + 1;
    }
    return by_path.at(path);
  };
  for (const NamedTensor& entry : tensors) {
    const size_t dot = entry.name.rfind('.');
    const bool is_top = dot == std::string::npos;
    Module& owner = *at_path(is_top ? "" : entry.name.substr(0, dot));
    const std::string name = is_top ? entry.name : entry.name.substr(dot + 1);
    if (entry.is_parameter) {
      owner.register_parameter(name, entry.tensor, entry.tensor.requires_grad());
    } else {
      owner.register_buffer(name, entry.tensor);
    }
  }
  return root;
}

}  // namespace meshrun::python
