#include "python/extension/foreign_optimizer.h"

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <utility>

namespace meshrun::python {
namespace {

namespace py = pybind11;

std::vector<torch::optim::OptimizerParamGroup> groups_of(const py::object& states) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (auto& parameters :
       states.attr("parameters")().cast<std::vector<std::vector<at::Tensor>>>()) {
    groups.emplace_back(std::move(parameters));
  }
  return groups;
}

}  // namespace

// The base class asks for options; those of the groups here are never read.
PythonOptimizer::PythonOptimizer(py::object states)
    : Optimizer(groups_of(states), std::make_unique<torch::optim::SGDOptions>(0.0)),
      states_(std::move(states)) {}

PythonOptimizer::~PythonOptimizer() {
  const py::gil_scoped_acquire lock;
  states_ = py::object();
}

at::Tensor PythonOptimizer::step(LossClosure) {
  TORCH_CHECK(false, "a Python optimizer is stepped in Python");
}

std::string PythonOptimizer::kind() const {
  const py::gil_scoped_acquire lock;
  return states_.attr("kind")().cast<std::string>();
}

std::vector<std::string> PythonOptimizer::moment_names() const {
  const py::gil_scoped_acquire lock;
  return states_.attr("moment_names")().cast<std::vector<std::string>>();
}

std::vector<std::string> PythonOptimizer::required_moments() const {
  const py::gil_scoped_acquire lock;
  return states_.attr("required_moments")().cast<std::vector<std::string>>();
}

bool PythonOptimizer::counts_steps() const {
  const py::gil_scoped_acquire lock;
  return states_.attr("counts_steps")().cast<bool>();
}

uint64_t PythonOptimizer::states_token() const {
  const py::gil_scoped_acquire lock;
  return states_.attr("token")().cast<uint64_t>();
}

ParameterState PythonOptimizer::parameter_state(const at::Tensor& parameter) const {
  const py::gil_scoped_acquire lock;
  ParameterState state;
  std::tie(state.step, state.moments) =
      states_.attr("parameter_state")(parameter)
          .cast<std::pair<std::optional<int64_t>, std::map<std::string, at::Tensor>>>();
  return state;
}

void PythonOptimizer::set_parameter_state(const at::Tensor& parameter,
                                          const ParameterState& state) {
  const py::gil_scoped_acquire lock;
  states_.attr("set_parameter_state")(parameter, state.step, state.moments);
}

std::vector<GroupOptions> PythonOptimizer::group_options() const {
  const py::gil_scoped_acquire lock;
  return states_.attr("group_options")().cast<std::vector<GroupOptions>>();
}

void PythonOptimizer::set_group_options(const std::vector<GroupOptions>& options) {
  const py::gil_scoped_acquire lock;
  states_.attr("set_group_options")(options);
}

}  // namespace meshrun::python
