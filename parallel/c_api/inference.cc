#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <optional>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "parallel/c_api/call_error.h"
#include "parallel/c_api/models.h"
#include "parallel/c_api/world.h"

namespace meshrun::c_api {
namespace {

at::ScalarType scalar_type_of(int32_t dtype) {
  switch (dtype) {
    case MESHRUN_FLOAT32:
      return at::kFloat;
    case MESHRUN_FLOAT64:
      return at::kDouble;
    case MESHRUN_INT32:
      return at::kInt;
    default:
      return at::kLong;
  }
}

at::Tensor tensor_of(const ArrayView& view) {
  return at::from_blob(view.data, view.shape, view.strides,
                       at::TensorOptions().dtype(scalar_type_of(view.dtype)));
}

// The dtype of floating-point parameters; absent: the network has none.
std::optional<at::ScalarType> dtype_of(Network& network) {
  for (const at::Tensor& parameter : network.parameters()) {
    if (parameter.is_floating_point()) return parameter.scalar_type();
  }
  return std::nullopt;
}

// All results are checked before one is written.
void write_outputs(const std::vector<at::Tensor>& results, std::vector<at::Tensor>& outputs) {
  check_count("outputs", outputs.size(), results.size());
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i].sizes() == outputs[i].sizes() &&
        results[i].scalar_type() == outputs[i].scalar_type()) {
      continue;
    }
    throw CallError(
        MESHRUN_INVALID_ARGUMENT,
        fmt::format("{} is {} of [{}] as the model sees it, and the model returns {} of [{}]",
                    numbered("outputs", i, outputs.size()), c10::toString(outputs[i].scalar_type()),
                    fmt::join(outputs[i].sizes(), ", "), c10::toString(results[i].scalar_type()),
                    fmt::join(results[i].sizes(), ", ")));
  }
  for (size_t i = 0; i < results.size(); ++i) outputs[i].copy_(results[i]);
}

}  // namespace

std::vector<at::Tensor> tensors_of(const meshrun_array* arrays, int32_t count,
                                   const std::string& name) {
  std::vector<at::Tensor> tensors;
  for (const ArrayView& view : views_of(arrays, count, name)) tensors.push_back(tensor_of(view));
  return tensors;
}

std::string numbered(const char* name, size_t index, size_t count) {
  return count == 1 ? name : fmt::format("{}[{}]", name, index);
}

std::vector<at::Tensor> inputs_of(meshrun_model& model, const meshrun_array* arrays, int32_t count,
                                  c10::Device device) {
  std::vector<at::Tensor> inputs = tensors_of(arrays, count, "inputs");
  const std::optional<at::ScalarType> dtype = dtype_of(*model.network);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (dtype && inputs[i].is_floating_point() && inputs[i].scalar_type() != *dtype) {
      throw CallError(
          MESHRUN_INVALID_ARGUMENT,
          fmt::format("{} is {} and the parameters of \"{}\" are {}: convert one of them "
                      "(meshrun_model_set_dtype)",
                      numbered("inputs", i, inputs.size()), c10::toString(inputs[i].scalar_type()),
                      model.title, c10::toString(*dtype)));
    }
    inputs[i] = inputs[i].to(device);
  }
  return inputs;
}

void check_count(const char* name, size_t given, size_t returned) {
  if (given == returned) return;
  throw CallError(MESHRUN_INVALID_ARGUMENT,
                  fmt::format("there are {} {}, and the model returns {}", given, name, returned));
}

}  // namespace meshrun::c_api

extern "C" {

int meshrun_infer(meshrun_model* model, const meshrun_array* inputs, int32_t n_inputs,
                  const meshrun_array* outputs, int32_t n_outputs) {
  return meshrun::c_api::run_call([&] {
    meshrun_model& found = meshrun::c_api::living(model);
    const c10::Device device = meshrun::c_api::joined_world().device();
    const auto x = meshrun::c_api::inputs_of(found, inputs, n_inputs, device);
    auto results = meshrun::c_api::tensors_of(outputs, n_outputs, "outputs");
    const c10::AutoGradMode without_gradients(false);
    found.network->train(false);
    meshrun::c_api::write_outputs(found.network->forward(x), results);
  });
}

}  // extern "C"
