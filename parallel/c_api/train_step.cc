#include <ATen/Functions.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "parallel/c_api/call_error.h"
#include "parallel/c_api/models.h"
#include "parallel/c_api/step_agreement.h"
#include "parallel/c_api/world.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/nn/clip_grad.h"
#include "parallel/nn/optimizer_state.h"

namespace meshrun::c_api {
namespace {

// What a rank is about to do, as the others must be.
std::string step_text(const Training& training) {
  return fmt::format("step {} of model {}, learning rate {}", training.steps, training.number,
                     training.optimizer->param_groups().front().options().get_lr());
}

// Losses of this rank's outputs, with gradients, and their values.
struct OwnLosses {
  std::vector<at::Tensor> sums;
  std::vector<LossTerms> terms;
};

OwnLosses losses_of(meshrun_model& model, const std::vector<at::Tensor>& inputs,
                    const std::vector<at::Tensor>& targets) {
  Training& training = training_of(model);
  model.network->train(true);
  const std::vector<at::Tensor> outputs = (*training.parallel)(inputs);
  check_count("targets", targets.size(), outputs.size());
  OwnLosses losses;
  std::vector<at::Tensor> values;
  for (size_t i = 0; i < outputs.size(); ++i) {
    check_target(training.loss, outputs[i], targets[i], numbered("targets", i, targets.size()));
    losses.sums.push_back(training.loss.sum(outputs[i], targets[i].to(outputs[i].device())));
    values.push_back(losses.sums.back().detach().to(at::kDouble));
  }
  const at::Tensor sums = at::stack(values).cpu();
  for (size_t i = 0; i < outputs.size(); ++i) {
    losses.terms.push_back({sums.const_data_ptr<double>()[i], training.loss.count(targets[i])});
  }
  return losses;
}

// Buckets with a parameter that got no gradient were not averaged.
void check_averaged(const Training& training) {
  for (const at::Tensor& parameter : training.optimizer->param_groups().front().params()) {
    if (parameter.grad().defined()) continue;
    throw CallError(MESHRUN_MODEL,
                    "a parameter got no gradient, so the ranks' gradients were not averaged, and "
                    "no step was taken: set find_unused_parameters");
  }
}

double train_step(meshrun_model* handle, const meshrun_array* inputs, int32_t n_inputs,
                  const meshrun_array* targets, int32_t n_targets) {
  DistributedManager& manager = joined_world();
  std::vector<at::Tensor> x, wanted;
  std::string step;
  bool forward_is_collective = false;
  std::optional<CallError> failure = error_of([&] {
    meshrun_model& model = living(handle);
    const Training& training = training_of(model);
    step = step_text(training);
    forward_is_collective = training.forward_is_collective();
    x = inputs_of(model, inputs, n_inputs, manager.device());
    wanted = tensors_of(targets, n_targets, "targets");
  });
  if (failure || forward_is_collective) agree_on_step(manager, step, {}, failure);
  OwnLosses own;
  failure = error_of([&] { own = losses_of(*handle, x, wanted); });
  const std::vector<LossTerms> all = agree_on_step(manager, step, own.terms, failure);

  double mean = 0;
  bool is_empty = true;
  at::Tensor loss;
  for (size_t i = 0; i < all.size(); ++i) {
    const bool has_terms = all[i].count > 0;
    is_empty = is_empty && !has_terms;
    if (has_terms) mean += all[i].sum / all[i].count;
    // DistributedDataParallel divides the sum of the ranks' gradients by their number.
    const at::Tensor part = own.sums[i] * (has_terms ? manager.world_size() / all[i].count : 0.0);
    loss = loss.defined() ? loss + part : part;
  }
  if (is_empty) {
    throw CallError(MESHRUN_INVALID_ARGUMENT,
                    "targets is empty on all ranks: there is nothing to train with");
  }
  Training& training = training_of(*handle);
  training.optimizer->zero_grad();
  loss.backward();
  if (manager.world_size() > 1 && !training.find_unused_parameters) {
    failure = error_of([&] { check_averaged(training); });
    if (failure) agree_on_step(manager, step, {}, failure);
  }
  if (training.clip_grad_norm > 0) clip_grad_norm_(*training.optimizer, training.clip_grad_norm);
  training.optimizer->step();
  ++training.steps;
  return mean;
}

// What all ranks of a training have alike. One line.
std::string training_text(const Training& training) {
  std::string options;
  const std::vector<GroupOptions> groups = group_options(*training.optimizer);
  for (const auto& [name, value] : groups.front()) {
    options += fmt::format(" {} {},", name, value);
  }
  return fmt::format("loss {}, optimizer {} with{} clip_grad_norm {}, find_unused_parameters {}",
                     training.loss.name, optimizer_kind(*training.optimizer), options,
                     training.clip_grad_norm, training.find_unused_parameters);
}

Training make_training(meshrun_model& model, const char* loss, const char* optimizer,
                       double learning_rate, const char* options) {
  if (model.training) {
    throw CallError(MESHRUN_INVALID_STATE,
                    fmt::format("\"{}\" trains already: a training is set once", model.title));
  }
  if (const std::string problem = model.network->problem_of_training(); !problem.empty()) {
    throw CallError(MESHRUN_NOT_SUPPORTED, fmt::format("\"{}\": {}", model.title, problem));
  }
  Training training;
  training.loss = loss_of(required_text(loss, "loss"));
  const std::string name = required_text(optimizer, "optimizer");
  Options given(options, name);
  training.clip_grad_norm = given.number("clip_grad_norm", 0);
  training.find_unused_parameters = given.boolean("find_unused_parameters", false);
  training.has_buffers = !model.network->buffers().empty();
  std::vector<at::Tensor> trained = parameters_of(*model.network);
  std::erase_if(trained, [](const at::Tensor& parameter) { return !parameter.requires_grad(); });
  if (trained.empty()) {
    throw CallError(MESHRUN_NOT_SUPPORTED,
                    fmt::format("\"{}\" has no parameter that requires a gradient", model.title));
  }
  training.optimizer = make_optimizer(name, std::move(trained), learning_rate, given);
  given.finish();
  return training;
}

CheckpointDirectory checkpoints_of(const meshrun_model& model, const char* directory) {
  return {required_text(directory, "directory"), {.identity = {{"model", model.kind}}}};
}

}  // namespace
}  // namespace meshrun::c_api

using meshrun::c_api::CallError;
using meshrun::c_api::living;
using meshrun::c_api::run_call;
using meshrun::c_api::Training;
using meshrun::c_api::training_of;

extern "C" {

int meshrun_model_set_training(meshrun_model* model, const char* loss, const char* optimizer,
                               double learning_rate, const char* options) {
  return run_call([&] {
    Training training;
    meshrun::c_api::run_together([&] {
      training =
          meshrun::c_api::make_training(living(model), loss, optimizer, learning_rate, options);
    });
    meshrun::c_api::require_equal(meshrun::c_api::joined_world(), "trainings",
                                  meshrun::c_api::training_text(training));
    training.parallel.emplace(model->network,
                              meshrun::DistributedDataParallelOptions{
                                  .broadcast_buffers = training.has_buffers,
                                  .find_unused_parameters = training.find_unused_parameters});
    training.number = meshrun::c_api::next_training();
    model->training = std::move(training);
  });
}

int meshrun_model_set_learning_rate(meshrun_model* model, double learning_rate) {
  return run_call([&] {
    Training& training = training_of(living(model));
    if (!(learning_rate >= 0)) {
      throw CallError(MESHRUN_INVALID_ARGUMENT,
                      fmt::format("the learning rate is {}: it is not negative", learning_rate));
    }
    for (auto& group : training.optimizer->param_groups()) group.options().set_lr(learning_rate);
  });
}

int meshrun_train_step(meshrun_model* model, const meshrun_array* inputs, int32_t n_inputs,
                       const meshrun_array* targets, int32_t n_targets, double* loss) {
  return run_call([&] {
    const double mean = meshrun::c_api::train_step(model, inputs, n_inputs, targets, n_targets);
    if (loss != nullptr) *loss = mean;
  });
}

int meshrun_model_save(meshrun_model* model, const char* directory, int64_t step) {
  return run_call([&] {
    std::optional<meshrun::CheckpointDirectory> checkpoints;
    meshrun::c_api::run_together([&] {
      training_of(living(model));
      checkpoints = meshrun::c_api::checkpoints_of(*model, directory);
      if (step < 0) {
        throw CallError(MESHRUN_INVALID_ARGUMENT,
                        fmt::format("the step is {}: it is not negative", step));
      }
    });
    checkpoints->save(model->network->checkpointed(), *model->training->optimizer, {.step = step});
  });
}

int meshrun_model_load(meshrun_model* model, const char* directory, int64_t* step) {
  return run_call([&] {
    std::optional<meshrun::CheckpointDirectory> checkpoints;
    meshrun::c_api::run_together([&] {
      training_of(living(model));
      checkpoints = meshrun::c_api::checkpoints_of(*model, directory);
      meshrun::c_api::require_pointer(step, "step");
    });
    const auto progress =
        checkpoints->load(model->network->checkpointed(), *model->training->optimizer);
    *step = progress ? progress->step : -1;
  });
}

}  // extern "C"
