#include "parallel/nn/optimizer_state.h"

#include <c10/util/Exception.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <memory>
#include <set>
#include <tuple>
#include <type_traits>
#include <utility>

namespace meshrun {
namespace {

using torch::optim::AdamParamState;
using torch::optim::AdamWParamState;
using torch::optim::Optimizer;
using torch::optim::SGDParamState;

constexpr char kMean[] = "exp_avg";
constexpr char kSquare[] = "exp_avg_sq";
constexpr char kLargestSquare[] = "max_exp_avg_sq";
constexpr char kMomentum[] = "momentum_buffer";

const Optimizer& stepped(const Optimizer& optimizer) {
  const auto* states = dynamic_cast<const ParameterStates*>(&optimizer);
  return states == nullptr ? optimizer : states->stepped_optimizer();
}

const ForeignOptimizer* foreign(const Optimizer& optimizer) {
  return dynamic_cast<const ForeignOptimizer*>(&optimizer);
}

// Calls visit with a value of the class of `optimizer`'s state.
template <typename Visit>
decltype(auto) with_state_type(const Optimizer& outer, const Visit& visit) {
  const Optimizer& optimizer = stepped(outer);
  if (dynamic_cast<const torch::optim::AdamW*>(&optimizer) != nullptr) {
    return visit(std::type_identity<AdamWParamState>());
  }
  if (dynamic_cast<const torch::optim::Adam*>(&optimizer) != nullptr) {
    return visit(std::type_identity<AdamParamState>());
  }
  TORCH_CHECK_NOT_IMPLEMENTED(dynamic_cast<const torch::optim::SGD*>(&optimizer) != nullptr,
                              "A checkpoint holds the state of Adam, AdamW or SGD; this optimizer "
                              "is another one");
  return visit(std::type_identity<SGDParamState>());
}

template <typename State>
ParameterState read(const State& state) {
  ParameterState result;
  const auto take = [&](const char* name, const at::Tensor& moment) {
    if (moment.defined()) result.moments[name] = moment;
  };
  if constexpr (std::is_same_v<State, SGDParamState>) {
    take(kMomentum, state.momentum_buffer());
  } else {
    result.step = state.step();
    take(kMean, state.exp_avg());
    take(kSquare, state.exp_avg_sq());
    take(kLargestSquare, state.max_exp_avg_sq());
  }
  return result;
}

template <typename State>
std::unique_ptr<State> build(const ParameterState& from) {
  auto state = std::make_unique<State>();
  const auto moment = [&](const char* name) {
    const auto found = from.moments.find(name);
    return found == from.moments.end() ? at::Tensor() : found->second;
  };
  if constexpr (std::is_same_v<State, SGDParamState>) {
    state->momentum_buffer(moment(kMomentum));
  } else {
    state->step(from.step.value_or(0));
    state->exp_avg(moment(kMean));
    state->exp_avg_sq(moment(kSquare));
    state->max_exp_avg_sq(moment(kLargestSquare));
  }
  return state;
}

// Calls visit(name, value) with a reference to each option of Adam or AdamW.
template <typename Options, typename Visit>
void visit_adams(Options& options, const Visit& visit) {
  visit("lr", options.lr());
  visit("beta1", std::get<0>(options.betas()));
  visit("beta2", std::get<1>(options.betas()));
  visit("eps", options.eps());
  visit("weight_decay", options.weight_decay());
  visit("amsgrad", options.amsgrad());
}

template <typename Visit>
void visit_options(torch::optim::OptimizerOptions& options, const Visit& visit) {
  if (auto* adamw = dynamic_cast<torch::optim::AdamWOptions*>(&options)) {
    visit_adams(*adamw, visit);
  } else if (auto* adam = dynamic_cast<torch::optim::AdamOptions*>(&options)) {
    visit_adams(*adam, visit);
  } else if (auto* sgd = dynamic_cast<torch::optim::SGDOptions*>(&options)) {
    visit("lr", sgd->lr());
    visit("momentum", sgd->momentum());
    visit("dampening", sgd->dampening());
    visit("weight_decay", sgd->weight_decay());
    visit("nesterov", sgd->nesterov());
  }
}

}  // namespace

std::string optimizer_kind(const Optimizer& optimizer) {
  if (const auto* other = foreign(optimizer)) return other->kind();
  return with_state_type(optimizer, [](auto type) -> std::string {
    using State = typename decltype(type)::type;
    if (std::is_same_v<State, AdamWParamState>) return "AdamW";
    return std::is_same_v<State, AdamParamState> ? "Adam" : "SGD";
  });
}

std::vector<std::string> moment_names(const Optimizer& optimizer) {
  if (const auto* other = foreign(optimizer)) return other->moment_names();
  std::vector<std::string> names = required_moments(optimizer);
  const auto with_amsgrad = [](const torch::optim::OptimizerParamGroup& group) {
    const torch::optim::OptimizerOptions& options = group.options();
    if (const auto* adam = dynamic_cast<const torch::optim::AdamOptions*>(&options)) {
      return adam->amsgrad();
    }
    const auto* adamw = dynamic_cast<const torch::optim::AdamWOptions*>(&options);
    return adamw != nullptr && adamw->amsgrad();
  };
  const auto& groups = optimizer.param_groups();
  if (std::any_of(groups.begin(), groups.end(), with_amsgrad)) names.push_back(kLargestSquare);
  return names;
}

std::vector<std::string> required_moments(const Optimizer& optimizer) {
  if (const auto* other = foreign(optimizer)) return other->required_moments();
  if (optimizer_kind(optimizer) == "SGD") return {kMomentum};
  return {kMean, kSquare};
}

std::vector<std::string> possible_moments(const Optimizer& optimizer) {
  std::vector<std::string> names = moment_names(optimizer);
  const std::string kind = optimizer_kind(optimizer);
  if (kind == "Adam" || kind == "AdamW") names.emplace_back(kLargestSquare);
  return names;
}

bool counts_steps(const Optimizer& optimizer) {
  if (const auto* other = foreign(optimizer)) return other->counts_steps();
  return optimizer_kind(optimizer) != "SGD";
}

uint64_t states_token(const Optimizer& optimizer) {
  if (const auto* other = foreign(optimizer)) return other->states_token();
  return optimizer.state().size();
}

void check_parameters_of(const Optimizer& optimizer, const torch::nn::Module& module) {
  std::set<const c10::TensorImpl*> known;
  for (const at::Tensor& parameter : module.parameters()) {
    known.insert(parameter.unsafeGetTensorImpl());
  }
  const auto& groups = optimizer.param_groups();
  for (size_t i = 0; i < groups.size(); ++i) {
    for (const at::Tensor& parameter : groups[i].params()) {
      TORCH_CHECK_VALUE(known.contains(parameter.unsafeGetTensorImpl()), "a parameter of ",
                        parameter.sizes(), " in group ", i,
                        " of the optimizer is not one of the module's, so its moments would be "
                        "lost: give a module that holds all that the optimizer steps");
    }
  }
}

ParameterState parameter_state(Optimizer& optimizer, const at::Tensor& parameter) {
  if (const auto* other = foreign(optimizer)) return other->parameter_state(parameter);
  if (auto* states = dynamic_cast<ParameterStates*>(&optimizer)) {
    return states->parameter_state(parameter);
  }
  const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
  if (found == optimizer.state().end() || !found->second) return {};
  return with_state_type(optimizer, [&](auto type) {
    return read(static_cast<const typename decltype(type)::type&>(*found->second));
  });
}

void set_parameter_state(Optimizer& optimizer, const at::Tensor& parameter,
                         const ParameterState& state) {
  if (auto* other = dynamic_cast<ForeignOptimizer*>(&optimizer)) {
    other->set_parameter_state(parameter, state);
    return;
  }
  if (auto* states = dynamic_cast<ParameterStates*>(&optimizer)) {
    states->set_parameter_state(parameter, state);
    return;
  }
  if (state.moments.empty()) {
    optimizer.state().erase(parameter.unsafeGetTensorImpl());
    return;
  }
  with_state_type(optimizer, [&](auto type) {
    optimizer.state()[parameter.unsafeGetTensorImpl()] =
        build<typename decltype(type)::type>(state);
  });
}

std::vector<GroupOptions> group_options(const Optimizer& optimizer) {
  if (const auto* other = foreign(optimizer)) return other->group_options();
  optimizer_kind(optimizer);  // raises for an unknown one
  std::vector<GroupOptions> all;
  for (const torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    // A copy, so that reading and writing share one visitor.
    const auto copy = group.options().clone();
    GroupOptions& options = all.emplace_back();
    visit_options(*copy, [&](const char* name, const auto& value) {
      options[name] = static_cast<double>(value);
    });
  }
  return all;
}

void set_group_options(Optimizer& optimizer, const std::vector<GroupOptions>& options) {
  if (auto* other = dynamic_cast<ForeignOptimizer*>(&optimizer)) {
    other->set_group_options(options);
    return;
  }
  optimizer_kind(optimizer);
  auto& groups = optimizer.param_groups();
  TORCH_CHECK_VALUE(groups.size() == options.size(), "The optimizer has ", groups.size(),
                    " groups of parameters, and options of ", options.size(), " are given");
  for (size_t i = 0; i < groups.size(); ++i) {
    visit_options(groups[i].options(), [&](const char* name, auto& value) {
      const auto found = options[i].find(name);
      if (found == options[i].end()) return;
      value = static_cast<std::remove_reference_t<decltype(value)>>(found->second);
    });
  }
}

}  // namespace meshrun
