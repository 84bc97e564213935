#include <ATen/ATen.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <vector>

#include "parallel/checkpoint/contents.h"
#include "parallel/checkpoint/random_streams.h"
#include "parallel/checkpoint/training_memory.h"

namespace meshrun {

StateRecorder::StateRecorder(const torch::nn::Module& module, torch::optim::Optimizer& optimizer,
                             const KeptValues& kept)
    : module_(module), optimizer_(optimizer), kept_(kept) {}

void StateRecorder::list_tensors() {
  listed_states_ = states_token(optimizer_);
  is_listed_ = true;
  versions_.clear();
  buffers_.clear();
  const detail::Parts parts(module_, kept_);
  for (const detail::Part& part : parts.list) {
    if (!part.is_parameter) {
      buffers_.push_back({part.name, part.tensor});
      continue;
    }
    versions_.add(part.name, part.tensor);
    for (const auto& [moment, tensor] : parameter_state(optimizer_, part.tensor).moments) {
      versions_.add(detail::moment_key(moment, part.name), tensor);
    }
  }
  for (const auto& [name, kept] : kept_.tensors()) {
    if (kept.is_buffer) {
      buffers_.push_back({name, kept.tensor, /*is_kept=*/true});
    } else {
      versions_.add(name, kept.tensor);
    }
  }
}

// All of them each time: batch_norm and collectives write without counting versions.
void StateRecorder::copy_buffers() {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> to;
  std::vector<at::Tensor> from;
  for (Buffer& buffer : buffers_) {
    const bool fits = buffer.copy.defined() && buffer.copy.sizes() == buffer.tensor.sizes() &&
                      buffer.copy.options().type_equal(buffer.tensor.options());
    if (!fits) {
      buffer.copy = buffer.tensor.detach().clone();
      continue;
    }
    to.push_back(buffer.copy);
    from.push_back(buffer.tensor.detach());
  }
  if (!to.empty()) at::_foreach_copy_(to, from);
}

void StateRecorder::record(IntArgument steps, BoolArgument is_watched) {
  steps_ = steps;
  const bool has_other_moments = kept_.list_moments();
  if (!is_listed_ || has_other_moments || states_token(optimizer_) != listed_states_) {
    list_tensors();
  }
  versions_.record();
  bits_.reset();
  if (is_watched && dynamic_cast<const torch::optim::SGD*>(&optimizer_) != nullptr) {
    bits_ = versions_.digest();
  }
  copy_buffers();
  options_ = group_options(optimizer_);
  kept_values_ = kept_.saved();
  generators_ = detail::generator_states(detail::generator_device(module_));
}

std::string StateRecorder::written() const {
  std::string name = versions_.written();
  if (name.empty() && bits_ && versions_.digest() != *bits_) name = "a parameter";
  return name;
}

bool StateRecorder::has_other_options() const { return group_options(optimizer_) != options_; }

bool StateRecorder::has_gradients() const {
  const auto has_gradient = [](const at::Tensor& tensor) {
    return tensor.is_leaf() && tensor.requires_grad() && tensor.grad().defined();
  };
  const auto parameters = module_.parameters();
  const auto& kept = kept_.tensors();
  return std::any_of(parameters.begin(), parameters.end(), has_gradient) ||
         std::any_of(kept.begin(), kept.end(),
                     [&](const auto& each) { return has_gradient(each.second.tensor); });
}

std::string StateRecorder::changed() const {
  for (const auto& [name, bytes] : kept_.saved()) {
    const auto found = kept_values_.find(name);
    if (found == kept_values_.end() || found->second != bytes) return name;
  }
  return "";
}

TrainingMemory StateRecorder::memory(IntArgument rank, IntArgument world_size) const {
  TrainingMemory memory;
  memory.step = steps_;
  memory.rank = rank.to_int();
  memory.world_size = world_size.to_int();
  memory.options = options_;
  memory.kept_values = kept_values_;
  memory.generators = generators_;
  memory.versions = versions_;
  memory.versions.record();
  const detail::Parts parts(module_, kept_);
  for (const detail::Part& part : parts.list) {
    memory.tensors[part.name] = part.tensor.detach();
    if (part.is_parameter) memory.states[part.name] = parameter_state(optimizer_, part.tensor);
  }
  for (const detail::Part& part : parts.kept) memory.kept[part.name] = part.tensor.detach();
  for (const Buffer& buffer : buffers_) {
    (buffer.is_kept ? memory.kept : memory.tensors)[buffer.name] = buffer.copy;
  }
  return memory;
}

}  // namespace meshrun
