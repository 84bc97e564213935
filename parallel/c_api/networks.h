// What a model of meshrun.h computes: a shipped network, a TorchScript file, or a package of
// AOTInductor.
//
// Threads: one at a time per network. Errors: CallError, c10::Error.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

namespace meshrun::c_api {

class Network : public torch::nn::Module {
 public:
  virtual std::vector<at::Tensor> forward(const std::vector<at::Tensor>& inputs) = 0;
  // The module whose parameters a checkpoint names.
  virtual torch::nn::Module& checkpointed() { return *this; }
  // Why it does not train; empty: it does.
  virtual std::string problem_of_training() const { return ""; }
};

// `options`: a JSON object, or null.
std::shared_ptr<Network> make_shipped_network(const std::string& name, const char* options);
std::shared_ptr<Network> load_script(const std::string& path);
std::shared_ptr<Network> load_package(const std::string& path, c10::Device device);

}  // namespace meshrun::c_api
