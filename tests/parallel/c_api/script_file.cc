#include "tests/parallel/c_api/script_file.h"

#include <ATen/Functions.h>
#include <torch/csrc/jit/api/module.h>

namespace meshrun {

void write_script(const std::string& path, bool two, bool buffer) {
  torch::jit::Module inner("inner");
  inner.register_parameter("weight", at::tensor({1.0F, 2.0F}).view({1, 2}).set_requires_grad(true),
                           /*is_buffer=*/false);
  torch::jit::Module script("script");
  script.register_module("inner", inner);
  script.register_parameter("bias", at::tensor({3.0F}).set_requires_grad(true),
                            /*is_buffer=*/false);
  if (buffer) {
    script.register_buffer("seen", at::zeros({1}));
    script.register_attribute("training", c10::BoolType::get(), true);
  }
  std::string code = "def forward(self, x):\n";
  if (buffer) code += "    if self.training:\n        self.seen.add_(1.0)\n";
  code += "    y = torch.matmul(x, self.inner.weight.t()) + self.bias\n";
  code += two ? "    return (y, 2.0 * y)\n" : "    return y\n";
  script.define(code);
  script.save(path);
}

void write_tied_script(const std::string& path) {
  const at::Tensor weight = at::full({1, 1}, 2.0F).set_requires_grad(true);
  torch::jit::Module script("script");
  for (const char* const name : {"first", "second"}) {
    torch::jit::Module part(name);
    part.register_parameter("weight", weight, /*is_buffer=*/false);
    script.register_module(name, part);
  }
  script.define(
      "def forward(self, x):\n"
      "    return torch.matmul(torch.matmul(x, self.first.weight), self.second.weight)\n");
  script.save(path);
}

void write_unused_script(const std::string& path) {
  torch::jit::Module script("script");
  for (const char* const name : {"weight", "unused"}) {
    script.register_parameter(name, at::ones({1, 1}).set_requires_grad(true), /*is_buffer=*/false);
  }
  script.define("def forward(self, x):\n    return torch.matmul(x, self.weight)\n");
  script.save(path);
}

}  // namespace meshrun
