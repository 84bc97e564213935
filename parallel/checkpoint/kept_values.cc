#include "parallel/checkpoint/kept_values.h"

#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>

#include "c10/util/Exception.h"
#include "parallel/base/sharded_key.h"
#include "parallel/nn/optimizer_state.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun {
namespace {

// LibTorch's count is protected; a pointer to it may be formed in a derived class.
struct StepCount : torch::optim::LRScheduler {
  static unsigned& of(torch::optim::LRScheduler& scheduler) {
    return scheduler.*(&StepCount::step_count_);
  }
};

using torch::optim::Optimizer;

// Calls visit(parameter, "<group>.<place>").
template <typename Visit>
void for_parameters(const Optimizer& optimizer, const Visit& visit) {
  const auto& groups = optimizer.param_groups();
  for (size_t group = 0; group < groups.size(); ++group) {
    const std::vector<at::Tensor>& parameters = groups[group].params();
    for (size_t place = 0; place < parameters.size(); ++place) {
      visit(parameters[place], std::to_string(group) + "." + std::to_string(place));
    }
  }
}

std::string moment_name(const std::string& optimizer, const std::string& moment,
                        const std::string& place) {
  return optimizer + "." + moment + "." + place;
}

// What an optimizer has beside its moments.
std::string counts_and_options(Optimizer& optimizer) {
  std::vector<int64_t> counts;
  for_parameters(optimizer, [&](const at::Tensor& parameter, const std::string&) {
    counts.push_back(parameter_state(optimizer, parameter).step.value_or(0));
  });
  return nlohmann::json({{"counts", counts}, {"options", group_options(optimizer)}}).dump();
}

void set_counts_and_options(Optimizer& optimizer, const std::string& bytes) {
  std::vector<GroupOptions> options;
  std::vector<int64_t> counts;
  try {
    const auto saved = nlohmann::json::parse(bytes);
    saved.at("options").get_to(options);
    saved.at("counts").get_to(counts);
  } catch (const nlohmann::json::exception&) {
    TORCH_CHECK(false, "what was kept of an optimizer is damaged: it has no counts and options");
  }
  set_group_options(optimizer, options);
  size_t next = 0;
  for_parameters(optimizer, [&](const at::Tensor& parameter, const std::string&) {
    ParameterState state = parameter_state(optimizer, parameter);
    TORCH_CHECK(next < counts.size(), "an optimizer of ", counts.size(),
                " parameters was kept, and this one has more");
    if (state.step) state.step = counts[next];
    set_parameter_state(optimizer, parameter, state);
    ++next;
  });
}

// The moments of a parameter that the optimizer has not stepped yet, with which its first step is
// the same as without.
ParameterState fresh_state(const Optimizer& optimizer, const at::Tensor& parameter) {
  ParameterState state;
  if (counts_steps(optimizer)) state.step = 0;
  for (const std::string& moment : moment_names(optimizer)) {
    state.moments[moment] = at::zeros_like(parameter.detach(), at::MemoryFormat::Preserve);
  }
  return state;
}

// Has moments for each of its parameters, as long as no other state is loaded.
void set_missing_moments(Optimizer& optimizer) {
  for_parameters(optimizer, [&](const at::Tensor& parameter, const std::string&) {
    if (parameter_state(optimizer, parameter).moments.empty()) {
      set_parameter_state(optimizer, parameter, fresh_state(optimizer, parameter));
    }
  });
}

std::string list_of(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text.empty() ? "nothing" : text;
}

}  // namespace

void KeptValues::check_name(const std::string& name) const {
  TORCH_CHECK_VALUE(!name.empty(), "keep(): a value needs a name");
  TORCH_CHECK_VALUE(!tensors_.contains(name) && !functions_.contains(name), "keep(\"", name,
                    "\"): the name is taken");
}

void KeptValues::add(const std::string& name, KeptTensor kept) {
  check_name(name);
  TORCH_CHECK_VALUE(kept.tensor.defined(), "keep(\"", name, "\"): the tensor is undefined");
  TORCH_CHECK_VALUE(!is_sharded(kept.tensor), "keep(\"", name,
                    "\"): the tensor is a ShardTensor, and is in pieces on several ranks");
  tensors_.emplace(name, std::move(kept));
}

void KeptValues::keep(const std::string& name, const at::Tensor& tensor) { add(name, {tensor}); }

void KeptValues::keep(const std::string& name, torch::nn::Module& module) {
  TORCH_CHECK_VALUE(!name.empty(), "keep(): a module needs a name");
  const std::map<std::string, ParameterShard> shards = parameter_shards(module);
  for (const auto& item : module.named_parameters()) {
    const auto shard = shards.find(item.key());
    add(name + "." + item.key(),
        {item.value(), shard == shards.end() ? std::nullopt : std::optional(shard->second)});
  }
  for (const auto& item : module.named_buffers()) {
    if (item.value().defined()) add(name + "." + item.key(), {item.value(), {}, true});
  }
}

void KeptValues::keep(const std::string& name, torch::optim::LRScheduler& scheduler) {
  keep(
      name, [&scheduler] { return std::to_string(StepCount::of(scheduler)); },
      [&scheduler](const std::string& bytes) {
        StepCount::of(scheduler) =
            static_cast<unsigned>(std::strtoul(bytes.c_str(), nullptr, /*base=*/10));
      });
}

void KeptValues::keep(const std::string& name, Optimizer& optimizer) {
  TORCH_CHECK_VALUE(dynamic_cast<const ParameterStates*>(&optimizer) == nullptr, "keep(\"", name,
                    "\"): ranks hold the moments of the optimizer in pieces");
  bool has_moments = optimizer_kind(optimizer) != "SGD";
  for (const GroupOptions& options : group_options(optimizer)) {
    if (optimizer_kind(optimizer) != "SGD") break;
    has_moments = has_moments || options.at("momentum") != 0;
    TORCH_CHECK_VALUE(
        options.at("dampening") == 0, "keep(\"", name,
        "\"): the first step of an SGD with dampening is not that of moments of zeros");
  }
  check_name(name);
  for_parameters(optimizer, [&](const at::Tensor& parameter, const std::string&) {
    stepped_.insert(parameter.unsafeGetTensorImpl());
    TORCH_CHECK_VALUE(
        !has_moments || !is_sharded(parameter), "keep(\"", name,
        "\"): the optimizer steps a ShardTensor, which is in pieces on several ranks");
  });
  if (has_moments) {
    set_missing_moments(optimizer);
    for_parameters(optimizer, [&](const at::Tensor& parameter, const std::string& place) {
      for (const auto& [moment, tensor] : parameter_state(optimizer, parameter).moments) {
        add(moment_name(name, moment, place), {tensor});
      }
    });
  }
  optimizers_.push_back({name, &optimizer, has_moments, states_token(optimizer)});
  keep(
      name, [&optimizer] { return counts_and_options(optimizer); },
      [&optimizer](const std::string& bytes) { set_counts_and_options(optimizer, bytes); });
}

void KeptValues::keep(const std::string& name, Save save, Load load) {
  check_name(name);
  TORCH_CHECK_VALUE(save && load, "keep(\"", name, "\"): a function is missing");
  functions_.emplace(name, Functions{std::move(save), std::move(load)});
}

std::map<std::string, std::string> KeptValues::saved() const {
  std::map<std::string, std::string> saved;
  for (const auto& [name, functions] : functions_) saved[name] = functions.save();
  return saved;
}

void KeptValues::load(const std::map<std::string, std::string>& saved) const {
  for (const auto& [name, functions] : functions_) {
    const auto found = saved.find(name);
    if (found != saved.end()) functions.load(found->second);
  }
}

std::vector<std::string> KeptValues::names() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors_) names.push_back(name);
  for (const auto& [name, functions] : functions_) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

bool KeptValues::is_whole() const {
  return std::all_of(tensors_.begin(), tensors_.end(), [](const auto& kept) {
    return !kept.second.shard || kept.second.shard->group->getSize() == 1;
  });
}

bool KeptValues::is_stepped(const at::Tensor& parameter) const {
  return stepped_.contains(parameter.unsafeGetTensorImpl());
}

void KeptValues::check_stepped(const torch::nn::Module& module) const {
  std::set<const c10::TensorImpl*> known;
  for (const at::Tensor& parameter : module.parameters()) {
    known.insert(parameter.unsafeGetTensorImpl());
  }
  for (const auto& [name, kept] : tensors_) known.insert(kept.tensor.unsafeGetTensorImpl());
  for (const KeptOptimizer& kept : optimizers_) {
    for_parameters(*kept.optimizer, [&](const at::Tensor& parameter, const std::string& place) {
      TORCH_CHECK_VALUE(known.contains(parameter.unsafeGetTensorImpl()), "keep(\"", kept.name,
                        "\"): the optimizer's parameter ", place, " of ", parameter.sizes(),
                        " is neither the module's nor kept, so its moments would go on without it: "
                        "keep() the module that has it too");
    });
  }
}

bool KeptValues::list_moments() const {
  bool is_other = false;
  for (KeptOptimizer& kept : optimizers_) {
    if (kept.token == states_token(*kept.optimizer)) continue;
    is_other = true;
    // Else what is listed would be what the optimizer no longer has.
    if (kept.has_moments) set_missing_moments(*kept.optimizer);
    kept.token = states_token(*kept.optimizer);
    for_parameters(*kept.optimizer, [&](const at::Tensor& parameter, const std::string& place) {
      for (const auto& [moment, tensor] : parameter_state(*kept.optimizer, parameter).moments) {
        tensors_[moment_name(kept.name, moment, place)].tensor = tensor;
      }
    });
  }
  return is_other;
}

std::string difference_of_names(const std::string& source, const std::vector<std::string>& theirs,
                                const std::vector<std::string>& ours) {
  if (theirs == ours) return "";
  return source + " keeps the values " + list_of(theirs) + ", but this run keeps " + list_of(ours);
}

std::string difference_of_kinds(const std::string& source,
                                const std::set<std::string>& their_tensors,
                                const KeptValues& ours) {
  const auto kind = [](bool is_tensor) {
    return is_tensor ? "as a tensor" : "as bytes (of a scheduler or of functions)";
  };
  for (const std::string& name : ours.names()) {
    const bool is_theirs = their_tensors.contains(name), is_ours = ours.tensors().contains(name);
    if (is_theirs == is_ours) continue;
    return source + " keeps " + name + " " + kind(is_theirs) + ", but this run keeps it " +
           kind(is_ours);
  }
  return "";
}

}  // namespace meshrun
