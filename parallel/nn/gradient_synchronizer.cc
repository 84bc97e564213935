#include "parallel/nn/gradient_synchronizer.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/nn/modules/embedding.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <regex>
#include <sstream>
#include <string>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <unordered_map>
#include <unordered_set>

#include "parallel/base/no_collectives.h"
#include "parallel/comm/interface/call_scope.h"
#include "parallel/comm/interface/carried.h"
#include "parallel/manager/distributed_manager.h"
#include "parallel/nn/bfloat16_gradients.h"
#include "parallel/nn/group_gradients.h"
#include "parallel/nn/module_agreement.h"
#include "parallel/nn/shard_conflict.h"
#include "parallel/nn/sharded_parameters.h"
#include "parallel/nn/shared_module_error.h"
#include "parallel/nn/step_trace.h"

namespace meshrun::detail {
namespace {

using at::Tensor;

constexpr double kMebibyte = 1024 * 1024;
// The size of a message in a coalesced broadcast, as in Python's DistributedDataParallel.
constexpr size_t kBroadcastBytes = size_t{250} * 1024 * 1024;

// The state that the sink's backward pass needs; held by the graph.
struct SinkState : torch::CustomClassHolder {
  std::weak_ptr<c10d::Reducer> reducer;
  // Null unless static_graph.
  std::shared_ptr<bool> delayed_all_reduce_queued;
};

// The identity, through which all outputs of a forward call leave together. An output that the loss
// does not use then still reaches its parameters with an undefined gradient, so the reducer does
// not wait for them; and with static_graph the first backward pass queues the all-reduce for its
// end.
struct OutputSink : torch::autograd::Function<OutputSink> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context,
                                                c10::intrusive_ptr<SinkState> state,
                                                at::TensorList outputs) {
    context->set_materialize_grads(false);
    context->saved_data["state"] = c10::IValue::make_capsule(std::move(state));
    torch::autograd::variable_list copies;
    for (const Tensor& output : outputs) copies.push_back(output.clone());
    return copies;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto state =
        c10::static_intrusive_pointer_cast<SinkState>(context->saved_data["state"].toCapsule());
    const std::shared_ptr<c10d::Reducer> reducer = state->reducer.lock();
    if (reducer && state->delayed_all_reduce_queued && !*state->delayed_all_reduce_queued) {
      *state->delayed_all_reduce_queued = true;
      torch::autograd::Engine::get_default_engine().queue_callback(
          [reducer] { reducer->delay_all_reduce(); });
    }
    gradients.insert(gradients.begin(), Tensor());  // for `state`
    return gradients;
  }
};

struct TrainedParameters {
  std::vector<Tensor> tensors;
  std::vector<bool> sparse;
  std::unordered_map<size_t, std::string> names;
};

// Every parameter that requires a gradient, once, in the order of registration.
TrainedParameters trained_parameters(const torch::nn::Module& module) {
  TrainedParameters trained;
  std::unordered_set<const c10::TensorImpl*> seen;
  const auto visit = [&](const std::string& prefix, const torch::nn::Module& owner) {
    bool sparse = false;
    if (const auto* embedding = dynamic_cast<const torch::nn::EmbeddingImpl*>(&owner)) {
      sparse = embedding->options.sparse();
    } else if (const auto* bag = dynamic_cast<const torch::nn::EmbeddingBagImpl*>(&owner)) {
      sparse = bag->options.sparse();
    }
    for (const auto& item : owner.named_parameters(/*recurse=*/false)) {
      const Tensor& parameter = item.value();
      if (!parameter.requires_grad() || !seen.insert(parameter.unsafeGetTensorImpl()).second) {
        continue;
      }
      trained.names[trained.tensors.size()] = (prefix.empty() ? "" : prefix + ".") + item.key();
      trained.tensors.push_back(parameter);
      trained.sparse.push_back(sparse);
    }
  };
  visit("", module);
  for (const auto& item : module.named_modules("", /*include_self=*/false)) {
    visit(item.key(), *item.value());
  }
  return trained;
}

torch::OrderedDict<std::string, Tensor> state_of(const torch::nn::Module& module) {
  torch::OrderedDict<std::string, Tensor> state("tensor");
  for (const auto& item : module.named_parameters()) state.insert(item.key(), item.value());
  for (const auto& item : module.named_buffers()) {
    if (item.value().defined()) state.insert(item.key(), item.value());
  }
  return state;
}

// One line: what every rank's sequence of collectives depends on.
std::string describe(const DistributedDataParallelOptions& options) {
  std::ostringstream line;
  line.precision(std::numeric_limits<double>::max_digits10);
  line << std::boolalpha << "broadcast_buffers=" << options.broadcast_buffers
       << " find_unused_parameters=" << options.find_unused_parameters
       << " static_graph=" << options.static_graph << " bucket_cap_mb=" << options.bucket_cap_mb
       << " gradient_as_bucket_view=" << options.gradient_as_bucket_view
       << " bfloat16_gradients=" << options.bfloat16_gradients;
  return line.str();
}

// Name of the first trained parameter whose dtype is not float32; empty if there is none.
std::string first_of_other_dtype(const torch::OrderedDict<std::string, Tensor>& state) {
  for (const auto& item : state) {
    const Tensor& tensor = item.value();
    if (tensor.requires_grad() && tensor.scalar_type() != at::kFloat) return item.key();
  }
  return {};
}

// What this rank alone can tell to be wrong; empty if nothing.
std::string find_problem(const torch::OrderedDict<std::string, Tensor>& state,
                         const DistributedDataParallelOptions& options, c10::Device device) {
  std::ostringstream problem;
  const std::vector<Tensor> tensors = state.values();
  const auto elsewhere = std::find_if(tensors.begin(), tensors.end(), [&](const Tensor& tensor) {
    return tensor.device() != device;
  });
  if (std::none_of(tensors.begin(), tensors.end(),
                   [](const Tensor& tensor) { return tensor.requires_grad(); })) {
    problem << "the module has no parameter that requires a gradient, so there is nothing to train";
  } else if (elsewhere != tensors.end()) {
    problem << "the module's tensors are on " << device << " and on " << elsewhere->device()
            << "; move all of them to one device with to()";
  } else if (const std::string name = options.bfloat16_gradients ? first_of_other_dtype(state) : "";
             !name.empty()) {
    problem << "bfloat16_gradients takes parameters of float32, and " << name << " is "
            << state[name].scalar_type();
  } else if (options.device_ids.size() > 1) {
    problem << "device_ids has " << options.device_ids.size()
            << " entries; one process drives one device, so pass its index alone";
  } else if (!(options.bucket_cap_mb > 0)) {
    problem << "bucket_cap_mb must be positive, got " << options.bucket_cap_mb;
  }
  return problem.str();
}

// The names of the parameters that the reducer's sentence has by number.
std::string missing_gradients(const std::string& sentence,
                              const std::unordered_map<size_t, std::string>& names) {
  static const std::regex* const kNumbers =
      new std::regex(R"re(did not receive grad for rank (\d+): ([\d, ]+))re");
  std::smatch match;
  if (!std::regex_search(sentence, match, *kNumbers)) return {};
  std::string digits = match[2];
  std::replace(digits.begin(), digits.end(), ',', ' ');
  std::istringstream numbers(digits);
  std::string list;
  for (size_t number = 0; numbers >> number;) {
    const auto found = names.find(number);
    if (found == names.end()) return {};
    list += (list.empty() ? "" : ", ") + found->second;
  }
  return list;
}

// Calls the reducer; what it says of parameters without a gradient names them.
template <typename Call>
void with_names(const std::unordered_map<size_t, std::string>& names, const Call& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    const std::string missing = missing_gradients(error.what_without_backtrace(), names);
    if (missing.empty()) throw;
    TORCH_CHECK(false, "DistributedDataParallel: the last backward pass gave no gradient to ",
                missing,
                ". Gradients of that step were not averaged. Set find_unused_parameters, or leave "
                "these parameters out of the module, or use every output of forward() in the loss");
  }
}

// LibTorch's reducer asks a backend for the memory of its buckets only where the environment says
// so. ucx gives of its shared heap, NCCL registered memory where the device has multicast (NVLink
// SHARP); Gloo has none. It is said while the program is loaded: setenv() is a race with any thread
// that reads the environment.
[[maybe_unused]] const bool backends_give_buckets =
    ::setenv("DDP_DISABLE_COMM_MEM", "0", /*overwrite=*/0) == 0;

}  // namespace

GradientSynchronizer::GradientSynchronizer(const torch::nn::Module& module,
                                           const DistributedDataParallelOptions& options)
    : options_(options) {
  const CallScope scope("DistributedDataParallel()");
  check_collectives_allowed([] { return "DistributedDataParallel()"; });
  if (!options_.process_group) options_.process_group = DistributedManager::get().group();
  const auto state = state_of(module);
  if (!state.is_empty()) device_ = state.front().value().device();
  std::string problem =
      find_shard_conflict(parameter_shards(module), state, options_.process_group);
  if (problem.empty()) problem = find_problem(state, options_, device_);
  if (problem.empty()) {
    const int rank = DistributedManager::is_initialized() ? DistributedManager::get().rank()
                                                          : options_.process_group->getRank();
    trace_ = StepTrace::from_environment(rank, device_, problem);
  }
  const std::string difference = find_difference(*options_.process_group, device_,
                                                 describe(options_), describe(state), problem);
  TORCH_CHECK_VALUE(difference.empty(), "DistributedDataParallel: ", difference);
  broadcast_from_rank_0(state.values());
  build_reducer(module);
}

GradientSynchronizer::~GradientSynchronizer() = default;

void GradientSynchronizer::build_reducer(const torch::nn::Module& module) {
  TrainedParameters trained = trained_parameters(module);
  const auto cap = static_cast<int64_t>(options_.bucket_cap_mb * kMebibyte);
  const int64_t first_cap = std::min<int64_t>(cap, c10d::kDefaultFirstBucketBytes);
  // Parameters are not yet known in the order in which gradients come. Cutting buckets now could
  // start an all-reduce between other collectives of the backward pass on one rank and not on
  // another, so the first iteration has one bucket, unless unused parameters rule out rebuilding.
  const bool will_rebuild = options_.static_graph || !options_.find_unused_parameters;
  const std::vector<size_t> limits =
      will_rebuild ? std::vector<size_t>{std::numeric_limits<size_t>::max()}
                   : std::vector<size_t>{static_cast<size_t>(first_cap), static_cast<size_t>(cap)};
  std::vector<std::vector<size_t>> buckets =
      std::get<0>(c10d::compute_bucket_assignment_by_size(trained.tensors, limits, trained.sparse));
  // Gradients come about in the reverse order of registration.
  std::reverse(buckets.begin(), buckets.end());
  names_ = trained.names;
  const auto group = trace_ ? trace_->traced(options_.process_group) : options_.process_group;
  reducer_ = std::make_shared<c10d::Reducer>(
      std::move(trained.tensors), std::move(buckets), group, std::move(trained.sparse), cap,
      options_.find_unused_parameters, options_.gradient_as_bucket_view, std::move(trained.names),
      first_cap,
      /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false,
      /*bucket_bytes_cap_list=*/std::vector<int64_t>{});
  if (options_.static_graph) reducer_->set_static_graph();
  if (options_.bfloat16_gradients) {
    auto hook = make_bfloat16_hook(options_.process_group);
    if (trace_) hook = trace_->traced(std::move(hook), at::kBFloat16);
    reducer_->register_comm_hook(std::move(hook));
  }
}

void GradientSynchronizer::broadcast_from_rank_0(const std::vector<Tensor>& tensors) {
  const at::NoGradGuard no_grad;
  std::vector<Tensor> values;
  for (const Tensor& tensor : tensors) values.push_back(carried(tensor.detach()));
  if (values.empty()) return;
  check_collectives_allowed([] { return "forward() of a DistributedDataParallel with buffers"; });
  if (options_.process_group->getSize() == 1) return;
  c10d::broadcast_coalesced(options_.process_group, values, kBroadcastBytes, /*rank=*/0);
}

void GradientSynchronizer::before_forward(const torch::nn::Module& module) {
  if (at::GradMode::is_enabled()) {
    if (synchronise_backward_) {
      check_collectives_allowed([] { return "forward() of a DistributedDataParallel"; });
    }
    with_names(names_, [&] {
      if (synchronise_backward_) reducer_->prepare_for_forward();
      reducer_->rebuild_buckets();
    });
  }
  if (trace_ && at::GradMode::is_enabled() && synchronise_backward_) trace_->begin_forward();
  if (options_.broadcast_buffers && synchronise_buffers_) {
    std::vector<Tensor> buffers = module.buffers();
    std::erase_if(buffers, [](const Tensor& buffer) { return !buffer.defined(); });
    broadcast_from_rank_0(buffers);
  }
}

void GradientSynchronizer::check_marks(const torch::nn::Module& module) const {
  const char* why = nullptr;
  if (!synchronise_backward_ && options_.process_group->getSize() > 1) {
    why =
        "within no_sync() they would never be averaged. Call backward() without it: gradients "
        "accumulate, and each pass is averaged and summed";
  } else if (options_.gradient_as_bucket_view) {
    why = "with gradient_as_bucket_view there is no memory for those of earlier passes";
  }
  if (why == nullptr) return;
  for (const auto& item : module.named_parameters()) {
    if (mark_of(item.value()) == nullptr) continue;
    throw SharedModuleError(
        c10::str("DistributedDataParallel: gradients of \"", item.key(),
                 "\" are summed over a group (mark_module_as_shared, FNO), and ", why));
  }
}

void GradientSynchronizer::after_forward(const torch::nn::Module& module,
                                         const std::vector<Tensor*>& outputs) {
  // Not before the forward pass, in which some modules mark themselves.
  if (at::GradMode::is_enabled()) check_marks(module);
  synchronise_buffers_ = at::GradMode::is_enabled() && synchronise_backward_;
  const bool find_unused = options_.find_unused_parameters && !options_.static_graph;
  if (synchronise_buffers_) {
    std::vector<Tensor> searched;
    if (find_unused) {
      for (const Tensor* output : outputs) searched.push_back(*output);
    }
    with_names(names_, [&] { reducer_->prepare_for_backward(searched); });
  }
  if (find_unused || (options_.static_graph && !*delayed_all_reduce_queued_)) {
    torch::autograd::variable_list differentiable;
    for (const Tensor* output : outputs) {
      if (output->defined() && output->grad_fn()) differentiable.push_back(*output);
    }
    if (!differentiable.empty()) {
      auto state = c10::make_intrusive<SinkState>();
      state->reducer = reducer_;
      if (options_.static_graph) state->delayed_all_reduce_queued = delayed_all_reduce_queued_;
      const torch::autograd::variable_list replacements =
          // As a list: a std::vector of tensors is not seen as an input of the function.
          OutputSink::apply(std::move(state), at::TensorList(differentiable));
      auto replacement = replacements.begin();
      for (Tensor* output : outputs) {
        if (output->defined() && output->grad_fn()) *output = *replacement++;
      }
    }
  }
  if (trace_ && synchronise_buffers_) trace_->end_forward(outputs);
  if (options_.output_device) {
    for (Tensor* output : outputs) {
      if (output->defined()) *output = output->to(*options_.output_device);
    }
  }
}

}  // namespace meshrun::detail
