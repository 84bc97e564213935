#include "parallel/c_api/models.h"

#include <functional>
#include <mutex>
#include <set>
#include <unordered_set>
#include <utility>

#include "fmt/format.h"
#include "parallel/c_api/call_error.h"
#include "parallel/c_api/world.h"

namespace meshrun::c_api {
namespace {

struct Models {
  std::mutex mutex;
  std::set<meshrun_model*> all;  // that were made and not destroyed
  bool end_with_world = false;
  int64_t trainings = 0;  // that were set in this world
};

Models& models() {
  static auto& models = *new Models;
  return models;
}

// Gives up what models hold of the world, which ends.
void end_models() {
  Models& known = models();
  const std::lock_guard lock(known.mutex);
  for (meshrun_model* const model : known.all) {
    model->has_ended = true;
    if (model->training) model->training->parallel.reset();
  }
  known.end_with_world = false;
  known.trainings = 0;
}

meshrun_model* add(std::unique_ptr<meshrun_model> model, DistributedManager& manager) {
  Models& known = models();
  const std::lock_guard lock(known.mutex);
  if (!known.end_with_world) manager.at_cleanup(end_models);
  known.end_with_world = true;
  return *known.all.insert(model.release()).first;
}

int add_model(meshrun_model** result, const std::function<std::unique_ptr<meshrun_model>()>& make) {
  return run_call([&] {
    require_pointer(result, "model");
    DistributedManager& manager = joined_world();
    std::unique_ptr<meshrun_model> model = make();
    model->network->to(manager.device());
    *result = add(std::move(model), manager);
  });
}

// Whole numbers among the buffers stay what they are.
void convert(Network& network, at::ScalarType dtype) {
  for (const std::vector<at::Tensor>& tensors : {network.parameters(), network.buffers()}) {
    for (at::Tensor tensor : tensors) {
      if (tensor.is_floating_point()) tensor.set_data(tensor.to(dtype));
    }
  }
}

}  // namespace

meshrun_model& known(meshrun_model* model) {
  require_pointer(model, "model");
  const std::lock_guard lock(models().mutex);
  if (models().all.contains(model)) return *model;
  throw CallError(MESHRUN_INVALID_ARGUMENT,
                  "the model is not one of this process, or was destroyed before");
}

meshrun_model& living(meshrun_model* model) {
  meshrun_model& found = known(model);
  joined_world();
  if (!found.has_ended) return found;
  throw CallError(
      MESHRUN_INVALID_STATE,
      fmt::format("\"{}\" belongs to a world that has ended: destroy it, and make it anew in this "
                  "world",
                  found.title));
}

Training& training_of(meshrun_model& model) {
  if (model.training) return *model.training;
  throw CallError(MESHRUN_INVALID_STATE,
                  fmt::format("\"{}\" does not train yet: call meshrun_model_set_training() first",
                              model.title));
}

int64_t next_training() {
  const std::lock_guard lock(models().mutex);
  return ++models().trainings;
}

std::vector<at::Tensor> parameters_of(const torch::nn::Module& network) {
  std::vector<at::Tensor> parameters = network.parameters();
  std::unordered_set<const c10::TensorImpl*> seen;
  std::erase_if(parameters, [&](const at::Tensor& parameter) {
    return !seen.insert(parameter.unsafeGetTensorImpl()).second;
  });
  return parameters;
}

}  // namespace meshrun::c_api

using meshrun::c_api::CallError;
using meshrun::c_api::known;
using meshrun::c_api::living;
using meshrun::c_api::run_call;

extern "C" {

int meshrun_model_create(const char* name, const char* options, meshrun_model** model) {
  return meshrun::c_api::add_model(model, [&] {
    auto made = std::make_unique<meshrun_model>();
    made->title = made->kind = meshrun::c_api::required_text(name, "name");
    made->network = meshrun::c_api::make_shipped_network(made->title, options);
    return made;
  });
}

int meshrun_model_load_script(const char* path, meshrun_model** model) {
  return meshrun::c_api::add_model(model, [&] {
    auto made = std::make_unique<meshrun_model>();
    made->title = meshrun::c_api::required_text(path, "path");
    made->network = meshrun::c_api::load_script(made->title);
    return made;
  });
}

int meshrun_model_load_package(const char* path, meshrun_model** model) {
  return meshrun::c_api::add_model(model, [&] {
    auto made = std::make_unique<meshrun_model>();
    made->title = meshrun::c_api::required_text(path, "path");
    made->network =
        meshrun::c_api::load_package(made->title, meshrun::c_api::joined_world().device());
    return made;
  });
}

int meshrun_model_destroy(meshrun_model* model) {
  return run_call([&] {
    std::unique_ptr<meshrun_model> last(&known(model));
    const std::lock_guard lock(meshrun::c_api::models().mutex);
    meshrun::c_api::models().all.erase(model);
  });
}

int meshrun_model_set_dtype(meshrun_model* model, int32_t dtype) {
  return run_call([&] {
    meshrun_model& found = living(model);
    if (dtype != MESHRUN_FLOAT32 && dtype != MESHRUN_FLOAT64) {
      throw CallError(
          MESHRUN_INVALID_ARGUMENT,
          fmt::format("the dtype is {}: use MESHRUN_FLOAT32 or MESHRUN_FLOAT64 (1, 2)", dtype));
    }
    if (found.network->parameters().empty()) {
      throw CallError(MESHRUN_NOT_SUPPORTED,
                      fmt::format("\"{}\" has no parameters that could be converted", found.title));
    }
    if (found.training) {
      throw CallError(MESHRUN_INVALID_STATE, fmt::format("\"{}\" trains already: convert it before "
                                                         "meshrun_model_set_training()",
                                                         found.title));
    }
    meshrun::c_api::convert(*found.network, dtype == MESHRUN_FLOAT32 ? at::kFloat : at::kDouble);
  });
}

int meshrun_model_parameter_count(meshrun_model* model, int64_t* count) {
  return run_call([&] {
    meshrun_model& found = living(model);
    meshrun::c_api::require_pointer(count, "count");
    int64_t sum = 0;
    for (const at::Tensor& parameter : meshrun::c_api::parameters_of(*found.network)) {
      sum += parameter.numel();
    }
    *count = sum;
  });
}

}  // extern "C"
