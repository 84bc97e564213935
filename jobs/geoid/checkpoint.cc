#include "jobs/geoid/checkpoint.h"

#include <filesystem>
#include <functional>
#include <memory>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <vector>

#include "parallel/checkpoint/stored_tensor.h"

namespace meshrun::geoid {
namespace {

using at::Tensor;

constexpr char kStep[] = "step";
constexpr size_t kBroadcastBytes = size_t{64} * 1024 * 1024;

torch::optim::AdamParamState& adam_state(torch::optim::Adam& optimizer, const Tensor& parameter) {
  auto& state = optimizer.state()[parameter.unsafeGetTensorImpl()];
  if (!state) {
    auto fresh = std::make_unique<torch::optim::AdamParamState>();
    fresh->step(0);
    fresh->exp_avg(at::zeros_like(parameter.detach()));
    fresh->exp_avg_sq(at::zeros_like(parameter.detach()));
    state = std::move(fresh);
  }
  return static_cast<torch::optim::AdamParamState&>(*state);
}

// All tensors of the state, by the name they have in the file.
std::map<std::string, Tensor> state_of(const torch::nn::Module& network,
                                       torch::optim::Adam& optimizer) {
  std::map<std::string, Tensor> state;
  for (const auto& item : network.named_buffers()) state["model." + item.key()] = item.value();
  for (const auto& item : network.named_parameters()) {
    const torch::optim::AdamParamState& adam = adam_state(optimizer, item.value());
    state["model." + item.key()] = item.value();
    state["optimizer.exp_avg." + item.key()] = adam.exp_avg();
    state["optimizer.exp_avg_sq." + item.key()] = adam.exp_avg_sq();
  }
  return state;
}

int64_t read_checkpoint(const std::string& path, const std::map<std::string, Tensor>& state,
                        const Identity& identity) {
  const TensorFile file = read_safetensors(path);
  for (const auto& [flag, ours] : identity) {
    const auto theirs = file.metadata.find(flag);
    const std::string found = theirs == file.metadata.end() ? "nothing" : theirs->second;
    TORCH_CHECK_VALUE(found == ours, "the checkpoint ", path, " was written with ", flag, " ",
                      found, ", but this run has ", ours,
                      "; give the same flags, or another --checkpoint-dir");
  }
  for (const auto& [name, tensor] : state) {
    const auto stored = file.tensors.find(name);
    TORCH_CHECK_VALUE(stored != file.tensors.end(), "the checkpoint ", path, " lacks ", name);
    copy_stored(stored->second, name, tensor);
  }
  return std::stoll(file.metadata.at(kStep));
}

}  // namespace

void save_checkpoint(const std::string& path, const torch::nn::Module& network,
                     torch::optim::Adam& optimizer, int64_t step, const Identity& identity) {
  TensorFile file;
  file.metadata = identity;
  file.metadata[kStep] = std::to_string(step);
  for (const auto& [name, tensor] : state_of(network, optimizer)) {
    file.tensors[name] = to_stored(tensor);
  }
  write_safetensors(path, file);
}

int64_t load_checkpoint(const std::string& path, torch::nn::Module& network,
                        torch::optim::Adam& optimizer, const Identity& identity,
                        const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  const std::map<std::string, Tensor> state = state_of(network, optimizer);
  constexpr int64_t kUnreadable = -1;
  int64_t step = 0;
  std::string problem = "rank 0 could not read the checkpoint " + path;
  if (group->getRank() == 0 && std::filesystem::exists(path)) {
    try {
      step = read_checkpoint(path, state, identity);
    } catch (const c10::Error& error) {
      step = kUnreadable;
      problem = error.what_without_backtrace();
    } catch (const std::exception& error) {
      step = kUnreadable;
      problem = "the checkpoint " + path + " cannot be used: " + error.what();
    }
  }
  const c10::Device device = state.begin()->second.device();
  std::vector<Tensor> step_tensor = {at::full({1}, step, at::kLong).to(device)};
  group->broadcast(step_tensor)->wait();
  step = step_tensor[0].item<int64_t>();
  TORCH_CHECK_VALUE(step != kUnreadable, problem);
  if (step == 0) return 0;

  std::vector<Tensor> tensors;
  for (const auto& [name, tensor] : state) tensors.push_back(tensor.detach());
  c10d::broadcast_coalesced(group, tensors, kBroadcastBytes, /*rank=*/0);
  for (const Tensor& parameter : network.parameters()) {
    adam_state(optimizer, parameter).step(step);
  }
  return step;
}

void dump_parameters(const std::string& path, const torch::nn::Module& network) {
  TensorFile file;
  for (const auto& item : network.named_parameters()) {
    file.tensors[item.key()] = to_stored(item.value());
  }
  write_safetensors(path, file);
}

}  // namespace meshrun::geoid
