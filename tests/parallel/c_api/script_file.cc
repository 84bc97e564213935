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

}  // namespace meshrun
