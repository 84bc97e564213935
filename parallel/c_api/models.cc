#include "parallel/c_api/models.h"

#include <functional>
#include <mutex>
#include <set>
#include <utility>

#include "fmt/format.h"
#include "parallel/c_api/call_error.h"
#include "parallel/c_api/world.h"

namespace meshrun::c_api {
namespace {

std::mutex& models_mutex() {
  static auto& mutex = *new std::mutex;
  return mutex;
}

// All that were made and not destroyed.
std::set<meshrun_model*>& models() {
  static auto& all = *new std::set<meshrun_model*>;
  return all;
}

int add_model(meshrun_model** result, const std::function<std::unique_ptr<meshrun_model>()>& make) {
  return run_call([&] {
    require_pointer(result, "model");
    const DistributedManager& manager = joined_world();
    std::unique_ptr<meshrun_model> model = make();
    model->world = world_number();
    model->network->to(manager.device());
    const std::lock_guard lock(models_mutex());
    *result = *models().insert(model.release()).first;
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
  const std::lock_guard lock(models_mutex());
  if (models().count(model) > 0) return *model;
  throw CallError(MESHRUN_INVALID_ARGUMENT,
                  "the model is not one of this process, or was destroyed before");
}

meshrun_model& living(meshrun_model* model) {
  meshrun_model& found = known(model);
  joined_world();
  if (found.world == world_number()) return found;
  throw CallError(
      MESHRUN_INVALID_STATE,
      fmt::format("\"{}\" belongs to a world that meshrun_finalize() has ended: destroy "
                  "it, and make it anew in this world",
                  found.title));
}

Training& training_of(meshrun_model& model) {
  if (model.training) return *model.training;
  throw CallError(MESHRUN_INVALID_STATE,
                  fmt::format("\"{}\" does not train yet: call meshrun_model_set_training() first",
                              model.title));
}

void end_training_of_models() {
  const std::lock_guard lock(models_mutex());
  for (meshrun_model* const model : models()) {
    if (model->training) model->training->parallel.reset();
  }
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
    const std::lock_guard lock(meshrun::c_api::models_mutex());
    meshrun::c_api::models().erase(model);
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
    for (const at::Tensor& parameter : found.network->parameters()) sum += parameter.numel();
    *count = sum;
  });
}

}  // extern "C"
