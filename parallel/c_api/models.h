// The models of meshrun.h: a network, and what trains it.
//
// Threads: one call at a time per model; handles are looked up under a lock. Errors: CallError.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "parallel/c_api/arguments.h"
#include "parallel/c_api/networks.h"
#include "parallel/nn/distributed_data_parallel.h"

struct meshrun_model;

namespace meshrun::c_api {

// Terms are added, and counted apart: their mean is over all ranks.
struct Loss {
  std::string name;
  at::Tensor (*sum)(const at::Tensor& output, const at::Tensor& target) = nullptr;
  double (*count)(const at::Tensor& target) = nullptr;
};

struct Training {
  int64_t number = 0;  // among those of this world
  int64_t steps = 0;   // that were taken
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  Loss loss;
  double clip_grad_norm = 0;  // 0: gradients stay as they are
  bool find_unused_parameters = false;
  bool has_buffers = false;
  // Empty after the world has ended.
  std::optional<DistributedDataParallel<Network>> parallel;

  // Buffers are broadcast before it; and the second one of LibTorch's reducer begins with an
  // agreement on the order of gradients.
  bool forward_is_collective() const { return has_buffers || steps == 1; }
};

// Number of a training that is set on all ranks, from 1: they count those of a world alike.
int64_t next_training();

// The model of a handle, which is never followed before it is found among those that live; living()
// also asks that its world does.
meshrun_model& known(meshrun_model* model);
meshrun_model& living(meshrun_model* model);
Training& training_of(meshrun_model& model);

// Raises for a name that is unknown.
Loss loss_of(const std::string& name);
std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::string& name,
                                                        std::vector<at::Tensor> parameters,
                                                        double learning_rate, Options& options);
// Raises unless the target fits the output: equal shapes, or classes for cross_entropy.
void check_target(const Loss& loss, const at::Tensor& output, const at::Tensor& target,
                  const std::string& name);

// Each once, as Python's parameters(): one that has several names is stepped once a step.
std::vector<at::Tensor> parameters_of(const torch::nn::Module& network);

// The memory of arrays as tensors; nothing is copied. `name` as in views_of().
std::vector<at::Tensor> tensors_of(const meshrun_array* arrays, int32_t count,
                                   const std::string& name);
// As tensors_of(), on the model's device, and of its dtype.
std::vector<at::Tensor> inputs_of(meshrun_model& model, const meshrun_array* arrays, int32_t count,
                                  c10::Device device);
// `name`: "targets".
void check_count(const char* name, size_t given, size_t returned);
// "targets[1]", or "targets" of one.
std::string numbered(const char* name, size_t index, size_t count);

}  // namespace meshrun::c_api

// What a handle points to.
struct meshrun_model {
  std::string title;                 // "unet", or the file
  std::string kind = "TorchScript";  // what a checkpoint is compared by: "unet"
  bool has_ended = false;            // with its world
  std::shared_ptr<meshrun::c_api::Network> network;
  std::optional<meshrun::c_api::Training> training;
};
