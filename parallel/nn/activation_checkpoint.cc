#include "parallel/nn/activation_checkpoint.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <mutex>
#include <optional>

#include "parallel/nn/autocast.h"
#include "parallel/shard/random/random_operation.h"
#include "third_party/libtorch/shims.h"

namespace meshrun::detail {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The default generators of some devices, and the count of random operations on sharded tensors.
class Generators {
 public:
  explicit Generators(const std::vector<Tensor>& inputs) {
    add(c10::kCPU);
    for (const Tensor& input : inputs) {
      if (!input.device().is_cpu()) add(input.device());
    }
  }
  // Makes these the current states.
  void set() const {
    for (const auto& [device, state] : states_) {
      at::Generator generator = at::globalContext().defaultGenerator(device);
      const std::scoped_lock lock(generator.mutex());
      generator.set_state(state);
    }
    set_random_state(sharded_);  // its seed is the CPU generator's
  }
  // The current states of the same devices.
  Generators now() const {
    Generators current;
    for (const auto& [device, state] : states_) current.add(device);
    return current;
  }

 private:
  Generators() = default;
  void add(c10::Device device) {
    for (const auto& [known, state] : states_) {
      if (known == device) return;
    }
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const std::scoped_lock lock(generator.mutex());
    states_.emplace_back(device, generator.get_state());
  }

  std::vector<std::pair<c10::Device, Tensor>> states_;
  RandomOperation sharded_ = random_state();
};

// Autocast as a thread has it.
class Autocast {
 public:
  Autocast() : cache_(at::autocast::is_autocast_cache_enabled()) {
    for (size_t i = 0; i < std::size(kDevices); ++i) {
      enabled_[i] = at::autocast::is_autocast_enabled(kDevices[i]);
      dtypes_[i] = at::autocast::get_autocast_dtype(kDevices[i]);
    }
  }
  // The same again, for as long as it lives.
  class Guard {
   public:
    Guard(const Autocast& state, bool cache)
        : first_(kDevices[0], state.enabled_[0], state.dtypes_[0], cache),
          second_(kDevices[1], state.enabled_[1], state.dtypes_[1], cache) {}

   private:
    AutocastGuard first_;
    AutocastGuard second_;
  };
  bool cache() const { return cache_; }

 private:
  static constexpr c10::DeviceType kDevices[] = {c10::kCPU, c10::kCUDA};

  bool enabled_[2];
  at::ScalarType dtypes_[2];
  bool cache_;
};

struct Call : torch::CustomClassHolder {
  Call(CheckpointedFunction its_function, const std::vector<Tensor>& inputs)
      : function(std::move(its_function)), generators(inputs) {}

  const CheckpointedFunction function;
  const Generators generators;
  const Autocast autocast;
  size_t num_outputs = 0;
};

// Puts the generators back where they were.
class GeneratorsGuard {
 public:
  explicit GeneratorsGuard(const Generators& wanted) : former_(wanted.now()) { wanted.set(); }
  ~GeneratorsGuard() { former_.set(); }
  GeneratorsGuard(const GeneratorsGuard&) = delete;
  GeneratorsGuard& operator=(const GeneratorsGuard&) = delete;

 private:
  const Generators former_;
};

// Ends a graph: keeps the gradients of its tensors as they come. A leaf would copy them into
// another memory layout, in which later sums round differently.
struct Capture : torch::autograd::Node {
  variable_list apply(variable_list&& its_gradients) override {
    gradients = std::move(its_gradients);
    return {};
  }
  variable_list gradients;
};

struct Checkpoint : torch::autograd::Function<Checkpoint> {
  // The anchor requires a gradient, so that captured parameters get theirs whatever the inputs do.
  static variable_list forward(AutogradContext* ctx, const c10::intrusive_ptr<Call>& call,
                               const Tensor& /*anchor*/, at::TensorList inputs) {
    ctx->set_materialize_grads(false);
    variable_list saved = inputs.vec();
    ctx->save_for_backward(saved);
    // A cast that is cached here, without a graph, would be found by later uses with one.
    const Autocast::Guard autocast(call->autocast, /*cache=*/false);
    variable_list outputs = call->function(saved);
    call->num_outputs = outputs.size();
    ctx->saved_data.emplace("call", at::IValue::make_capsule(call));
    variable_list constant;
    for (const Tensor& output : outputs) {
      TORCH_CHECK_VALUE(output.defined(), "A checkpointed function returned an undefined tensor");
      const at::ScalarType type = output.scalar_type();
      if (!at::isFloatingType(type) && !at::isComplexType(type)) constant.push_back(output);
    }
    ctx->mark_non_differentiable(constant);
    return outputs;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        torch::autograd::Engine::get_default_engine().is_checkpoint_valid(),
        "checkpoint() works with backward() without inputs, not with torch::autograd::grad(): "
        "gradients of the parameters that the function captures would be lost");
    TORCH_CHECK_NOT_IMPLEMENTED(!at::GradMode::is_enabled(),
                                "checkpoint() has no second derivative (create_graph)");
    const auto call =
        c10::static_intrusive_pointer_cast<Call>(ctx->saved_data.at("call").toCapsule());
    const auto capture = libtorch::make_node<Capture>();
    variable_list inputs;
    for (const Tensor& saved : ctx->get_saved_variables()) {
      inputs.push_back(saved.detach());
      if (saved.requires_grad()) torch::autograd::set_history(inputs.back(), capture);
    }
    variable_list outputs;
    {
      const GeneratorsGuard generators(call->generators);
      const Autocast::Guard autocast(call->autocast, call->autocast.cache());
      const at::AutoGradMode with_graph(true);
      outputs = call->function(inputs);
    }
    TORCH_CHECK_VALUE(outputs.size() == call->num_outputs, "A checkpointed function returned ",
                      call->num_outputs, " tensors at first and ", outputs.size(),
                      " when it ran again");
    variable_list roots;
    variable_list root_gradients;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!gradients[i].defined() || !outputs[i].requires_grad()) continue;
      roots.push_back(outputs[i]);
      root_gradients.push_back(gradients[i]);
    }
    outputs.clear();
    if (!roots.empty()) torch::autograd::backward(roots, root_gradients);
    variable_list results(2);  // of the call and the anchor
    size_t captured = 0;
    for (const Tensor& input : inputs) {
      results.emplace_back();
      if (!input.requires_grad()) continue;
      if (captured < capture->gradients.size()) results.back() = capture->gradients[captured];
      ++captured;
    }
    return results;
  }
};

}  // namespace

std::vector<Tensor> checkpoint(CheckpointedFunction function, std::vector<Tensor> inputs) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    TORCH_CHECK_VALUE(inputs[i].defined(), "checkpoint(): input ", i, " is undefined");
  }
  if (!at::GradMode::is_enabled()) return function(inputs);
  const auto call = c10::make_intrusive<Call>(std::move(function), inputs);
  const Tensor anchor = at::empty({0}).set_requires_grad(true);
  return Checkpoint::apply(call, anchor, at::TensorList(inputs));
}

}  // namespace meshrun::detail
