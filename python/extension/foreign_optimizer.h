// A Python optimizer for what parallel/ does with optimizers: see ForeignOptimizer in
// parallel/nn/optimizer_state.h. meshrun/_optimizer_states.py knows the classes of torch.optim.
//
// Threads: any; each method takes Python's interpreter lock.
#pragma once

#include <pybind11/pybind11.h>
#include <torch/optim/optimizer.h>

#include <string>
#include <vector>

#include "parallel/nn/optimizer_state.h"

namespace meshrun::python {

class [[gnu::visibility("hidden")]] PythonOptimizer : public torch::optim::Optimizer,
                                                      public ForeignOptimizer {
 public:
  // `states`: a meshrun._optimizer_states.OptimizerStates. With the lock.
  explicit PythonOptimizer(pybind11::object states);
  ~PythonOptimizer() override;

  at::Tensor step(LossClosure closure = nullptr) override;

  std::string kind() const override;
  std::vector<std::string> moment_names() const override;
  std::vector<std::string> required_moments() const override;
  bool counts_steps() const override;
  uint64_t states_token() const override;
  ParameterState parameter_state(const at::Tensor& parameter) const override;
  void set_parameter_state(const at::Tensor& parameter, const ParameterState& state) override;
  std::vector<GroupOptions> group_options() const override;
  void set_group_options(const std::vector<GroupOptions>& options) override;

 private:
  pybind11::object states_;
};

}  // namespace meshrun::python
