// The state that torch::optim's optimizers keep per parameter, and their options per group of
// parameters, by the names that PyTorch gives them.
//
//                 by parameter                             by group
//   Adam, AdamW   step, exp_avg, exp_avg_sq,               lr, beta1, beta2, eps, weight_decay,
//                 max_exp_avg_sq (with amsgrad)            amsgrad
//   SGD           momentum_buffer (with momentum)          lr, momentum, dampening, weight_decay,
//                                                          nesterov
//
// An optimizer that keeps its states elsewhere is a ParameterStates; the functions below ask it.
// Its options are those of its own groups. A ForeignOptimizer answers for all of this itself.
//
// Errors: c10::NotImplementedError for another optimizer.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "parallel/base/split.h"
#include "parallel/manager/group_argument.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"  // Slices destroy their handle

namespace meshrun {

struct ParameterState {
  // Adam's.
  std::optional<int64_t> step;
  // Shaped like the parameter.
  std::map<std::string, at::Tensor> moments;
};

// The interface of an optimizer around another one, whose ranks hold the states in pieces.
class ParameterStates {
 public:
  virtual ~ParameterStates() = default;
  // The one that is stepped: its kind and its moments are those of both.
  virtual const torch::optim::Optimizer& stepped_optimizer() const = 0;
  // Collective over the ranks that share the states; whole moments on every rank.
  virtual ParameterState parameter_state(const at::Tensor& parameter) = 0;
  // Takes whole moments. All ranks call it, but nothing is sent.
  virtual void set_parameter_state(const at::Tensor& parameter, const ParameterState& state) = 0;

  // A parameter's states as the ranks of a group hold them: flat slices of its elements.
  struct Slices {
    GroupArgument::Handle group;
    std::vector<SplitRange> by_rank;  // of the flattened parameter
    ParameterState state;             // this rank's; its moments are flat
  };
  // Absent for a parameter that is not stepped. Its state is empty before the first step.
  virtual std::optional<Slices> parameter_slices(const at::Tensor& parameter) = 0;
  // Takes this rank's slices; an empty state forgets what was.
  virtual void set_parameter_slices(const at::Tensor& parameter, const ParameterState& state) = 0;
};

// A switch (amsgrad, nesterov) is 0 or 1.
using GroupOptions = std::map<std::string, double>;

// Interface of an optimizer of another runtime, such as Python's. Every rank has all of its states.
// Its class also derives from torch::optim::Optimizer, which holds the groups of parameters.
class ForeignOptimizer {
 public:
  virtual ~ForeignOptimizer() = default;
  virtual std::string kind() const = 0;
  virtual std::vector<std::string> moment_names() const = 0;
  virtual std::vector<std::string> required_moments() const = 0;
  // Whether it counts steps by parameter.
  virtual bool counts_steps() const = 0;
  // Another number whenever other tensors are its states.
  virtual uint64_t states_token() const = 0;
  virtual ParameterState parameter_state(const at::Tensor& parameter) const = 0;
  virtual void set_parameter_state(const at::Tensor& parameter, const ParameterState& state) = 0;
  virtual std::vector<GroupOptions> group_options() const = 0;
  virtual void set_group_options(const std::vector<GroupOptions>& options) = 0;
};

// "Adam", "AdamW", "SGD", or a ForeignOptimizer's.
std::string optimizer_kind(const torch::optim::Optimizer& optimizer);
// All names of moments that a parameter may have, in order.
std::vector<std::string> moment_names(const torch::optim::Optimizer& optimizer);
// Names of the moments that every parameter with state has.
std::vector<std::string> required_moments(const torch::optim::Optimizer& optimizer);
// Names of the moments that a parameter may have after the options of another run are taken over,
// which may turn amsgrad on.
std::vector<std::string> possible_moments(const torch::optim::Optimizer& optimizer);
// Whether a parameter with state has a count of its steps.
bool counts_steps(const torch::optim::Optimizer& optimizer);
// Another number where the optimizer has states of other parameters.
uint64_t states_token(const torch::optim::Optimizer& optimizer);

// Raises c10::ValueError if the optimizer steps a parameter that is not one of the module's: a file
// with the module's names would lack the moments of that parameter.
void check_parameters_of(const torch::optim::Optimizer& optimizer, const torch::nn::Module& module);

// Empty where the optimizer has not stepped the parameter. The tensors are the optimizer's own, or
// those of ParameterStates.
ParameterState parameter_state(torch::optim::Optimizer& optimizer, const at::Tensor& parameter);
// An empty state forgets what was.
void set_parameter_state(torch::optim::Optimizer& optimizer, const at::Tensor& parameter,
                         const ParameterState& state);

// By group of parameters.
std::vector<GroupOptions> group_options(const torch::optim::Optimizer& optimizer);
// Sets what is named; the rest stays. Raises c10::ValueError where the optimizer has another number
// of groups.
void set_group_options(torch::optim::Optimizer& optimizer,
                       const std::vector<GroupOptions>& options);

}  // namespace meshrun
