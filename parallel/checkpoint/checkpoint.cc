#include "parallel/checkpoint/checkpoint.h"

#include <ATen/ATen.h>

#include <cstring>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <utility>
#include <vector>

#include "parallel/checkpoint/agreement.h"
#include "parallel/checkpoint/contents.h"
#include "parallel/checkpoint/step_directories.h"
#include "parallel/checkpoint/stored_tensor.h"
#include "parallel/nn/optimizer_state.h"
#include "parallel/nn/sharded_parameters.h"

namespace meshrun {
namespace {

using at::Tensor;
using detail::kModelFile;
using detail::kOptimizerFile;
using detail::kStepName;
using detail::Loaded;
using detail::Mismatch;
using detail::moment_key;
using detail::Part;
using detail::Parts;
using nlohmann::json;

constexpr int64_t kBroadcastBytes = int64_t{64} * 1024 * 1024;

// --- random generators ---

std::vector<c10::Device> generator_devices(c10::Device device) {
  if (device.is_cpu()) return {device};
  return {c10::kCPU, device};
}

std::map<std::string, std::string> generator_states(c10::Device device) {
  std::map<std::string, std::string> states;
  for (const c10::Device each : generator_devices(device)) {
    at::Generator generator = at::globalContext().defaultGenerator(each);
    const std::scoped_lock lock(generator.mutex());
    const Tensor state = generator.get_state();
    states[c10::DeviceTypeName(each.type(), /*lower_case=*/true)] =
        std::string(static_cast<const char*>(state.const_data_ptr()), state.nbytes());
  }
  return states;
}

void set_generator_states(c10::Device device, const std::map<std::string, std::string>& states) {
  for (const c10::Device each : generator_devices(device)) {
    const auto found = states.find(c10::DeviceTypeName(each.type(), /*lower_case=*/true));
    if (found == states.end()) continue;
    const Tensor state = at::empty({static_cast<int64_t>(found->second.size())}, at::kByte);
    std::memcpy(state.mutable_data_ptr(), found->second.data(), found->second.size());
    at::Generator generator = at::globalContext().defaultGenerator(each);
    const std::scoped_lock lock(generator.mutex());
    generator.set_state(state);
  }
}

// --- from one rank to all ---

// The end of a call as rank 0 saw it.
enum class Outcome { kDone, kNothing, kDamaged, kMismatch, kFile };

struct Result {
  Outcome outcome = Outcome::kDone;
  std::string problem;
};

// Runs rank 0's part. Nothing escapes, since other ranks wait.
template <typename Work>
Result guarded(const Work& work) {
  try {
    return {work(), ""};
  } catch (const Mismatch& error) {
    return {Outcome::kMismatch, error.what()};
  } catch (const DamagedCheckpoint& error) {
    return {Outcome::kDamaged, error.what()};
  } catch (const SafetensorsError& error) {
    return {Outcome::kDamaged, error.what()};
  } catch (const c10::Error& error) {
    return {Outcome::kFile, error.what_without_backtrace()};
  } catch (const std::exception& error) {
    return {Outcome::kFile, error.what()};
  }
}

void raise(Outcome outcome, const std::string& problem) {
  if (outcome == Outcome::kDamaged) throw CheckpointDamagedError(problem);
  if (outcome == Outcome::kMismatch) throw CheckpointMismatchError(problem);
  if (outcome == Outcome::kFile) throw CheckpointFileError(problem);
}

// Tensors from rank 0 to all, in buckets; each is handed on when it has arrived.
class Broadcast {
 public:
  Broadcast(const GroupArgument::Handle& group, c10::Device device)
      : group_(group), device_(device) {}

  // `stored` is null on ranks other than 0.
  void add(const std::string& name, const StoredTensor* stored, const std::vector<int64_t>& shape,
           at::ScalarType dtype, std::function<void(const Tensor&)> use) {
    const Tensor tensor = at::empty(shape, at::TensorOptions(dtype).device(device_));
    if (stored != nullptr) copy_stored(*stored, name, tensor);
    bytes_ += static_cast<int64_t>(tensor.nbytes());
    waiting_.emplace_back(tensor, std::move(use));
    if (bytes_ >= kBroadcastBytes) flush();
  }
  void flush() {
    std::vector<Tensor> tensors;
    for (const auto& [tensor, use] : waiting_) {
      if (tensor.numel() > 0) tensors.push_back(tensor);
    }
    if (!tensors.empty()) {
      c10d::broadcast_coalesced(group_, tensors, static_cast<size_t>(kBroadcastBytes), 0);
    }
    for (const auto& [tensor, use] : waiting_) use(tensor);
    waiting_.clear();
    bytes_ = 0;
  }

 private:
  const GroupArgument::Handle group_;
  const c10::Device device_;
  std::vector<std::pair<Tensor, std::function<void(const Tensor&)>>> waiting_;
  int64_t bytes_ = 0;
};

Tensor own_part(const Tensor& whole, const Part& part) {
  return part.shard == nullptr ? whole : shard_of(whole, *part.shard);
}

const StoredTensor* find(const std::optional<Loaded>& loaded, TensorFile Loaded::*file,
                         const std::string& name) {
  return loaded ? &((*loaded).*file).tensors.at(name) : nullptr;
}

void receive_model(Broadcast& broadcast, const Parts& parts, const std::optional<Loaded>& loaded) {
  for (const Part& part : parts.list) {
    broadcast.add(part.name, find(loaded, &Loaded::model, part.name), part.global_shape(),
                  part.tensor.scalar_type(), [&part](const Tensor& whole) {
                    const at::NoGradGuard no_grad;
                    part.tensor.detach().copy_(own_part(whole, part));
                  });
  }
  broadcast.flush();
}

// `names`: of the tensors in rank 0's file.
void receive_optimizer(Broadcast& broadcast, const Parts& parts,
                       const std::optional<Loaded>& loaded, const std::set<std::string>& names,
                       torch::optim::Optimizer& optimizer) {
  std::map<std::string, ParameterState> states;
  for (const Part& part : parts.list) {
    if (!part.is_parameter) continue;
    ParameterState& state = states[part.name];
    for (const std::string& moment : moment_names(optimizer)) {
      const std::string key = moment_key(moment, part.name);
      if (!names.contains(key)) continue;
      broadcast.add(key, find(loaded, &Loaded::optimizer, key), part.global_shape(),
                    part.tensor.scalar_type(), [&state, &part, moment](const Tensor& whole) {
                      state.moments[moment] = own_part(whole, part).clone();
                    });
    }
    const std::string step = moment_key(kStepName, part.name);
    if (!names.contains(step)) continue;
    broadcast.add(step, find(loaded, &Loaded::optimizer, step), {}, at::kLong,
                  [&state](const Tensor& value) { state.step = value.item<int64_t>(); });
  }
  broadcast.flush();
  for (const Part& part : parts.list) {
    if (part.is_parameter) set_parameter_state(optimizer, part.tensor, states.at(part.name));
  }
}

}  // namespace

CheckpointDirectory::CheckpointDirectory(std::string path, CheckpointOptions options)
    : path_(std::move(path)), options_(std::move(options)) {
  TORCH_CHECK_VALUE(options_.keep >= 1, "A checkpoint directory keeps at least 1 checkpoint, not ",
                    static_cast<int64_t>(options_.keep));
}

// Collective over `shard_group`.
bool CheckpointDirectory::holds_rank_0(const GroupArgument::Handle& shard_group,
                                       c10::Device device) {
  if (shard_group->getSize() == 1) return options_.group.get()->getRank() == 0;
  const auto known = holds_rank_0_.find(shard_group);
  if (known != holds_rank_0_.end()) return known->second;
  std::vector<Tensor> least = {
      at::full({1}, options_.group.get()->getRank(), at::kLong).to(device)};
  c10d::AllreduceOptions minimum;
  minimum.reduceOp = c10d::ReduceOp::MIN;
  shard_group->allreduce(least, minimum)->wait();
  return holds_rank_0_[shard_group] = least[0].item<int64_t>() == 0;
}

void CheckpointDirectory::save(const torch::nn::Module& module, torch::optim::Optimizer& optimizer,
                               const TrainingProgress& progress) {
  const GroupArgument::Handle group = options_.group.get();
  const bool writes = group->getRank() == 0;
  const Parts parts(module);
  const c10::Device device = parts.device();
  Manifest manifest;
  manifest.optimizer = optimizer_kind(optimizer);
  manifest.step = progress.step;
  manifest.identity = options_.identity;
  manifest.sampler = progress.sampler;

  TensorFile model_file;
  TensorFile optimizer_file;
  Result result;
  // Only rank 0 can fail here, after which it still takes part in what is collective.
  const auto store = [&](TensorFile& file, const std::string& name, const Tensor& tensor) {
    if (!writes || result.outcome != Outcome::kDone) return;
    result = guarded([&] {
      file.tensors[name] = to_stored(tensor);
      return Outcome::kDone;
    });
  };
  const auto gathered = [&](const Tensor& tensor, const Part& part) {
    return part.shard == nullptr || part.shard->group->getSize() == 1
               ? tensor
               : unsharded(tensor, *part.shard);
  };
  for (const Part& part : parts.list) {
    // On every rank: it may be collective (ParameterStates).
    ParameterState state;
    if (part.is_parameter) state = parameter_state(optimizer, part.tensor);
    const bool takes_part =
        part.shard == nullptr ? writes : holds_rank_0(part.shard->group, device);
    if (!takes_part) continue;
    store(model_file, part.name, gathered(part.tensor, part));
    if (!part.is_parameter) continue;
    for (const std::string& moment : moment_names(optimizer)) {
      const auto own = state.moments.find(moment);
      const bool has = own != state.moments.end();
      // A rank without the moment must not leave others alone in the gathering.
      const Tensor whole = gathered(has ? own->second : at::zeros_like(part.tensor.detach()), part);
      if (has) store(optimizer_file, moment_key(moment, part.name), whole);
    }
    if (state.step) {
      store(optimizer_file, moment_key(kStepName, part.name),
            at::scalar_tensor(*state.step, at::kLong));
    }
  }
  if (writes && result.outcome == Outcome::kDone) {
    result = guarded([&] {
      manifest.random_generators = generator_states(device);
      const std::string model_name = path_ + "/" + kModelFile;
      const std::string optimizer_name = path_ + "/" + kOptimizerFile;
      write_step_directory(path_, manifest,
                           {{kModelFile, encode_safetensors(model_name, model_file)},
                            {kOptimizerFile, encode_safetensors(optimizer_name, optimizer_file)}},
                           options_.keep);
      return Outcome::kDone;
    });
  }
  const std::string problem = broadcast_text(*group, device, result.problem);
  if (!problem.empty()) raise(Outcome::kFile, problem);
}

std::optional<TrainingProgress> CheckpointDirectory::load(torch::nn::Module& module,
                                                          torch::optim::Optimizer& optimizer) {
  const GroupArgument::Handle group = options_.group.get();
  const Parts parts(module);
  const c10::Device device = parts.device();
  optimizer_kind(optimizer);  // raises for an unknown one

  std::optional<Loaded> loaded;
  json header;
  if (group->getRank() == 0) {
    const Result result = guarded([&] {
      loaded =
          detail::read_newest(path_, options_.identity, options_.former_file, parts, optimizer);
      return loaded ? Outcome::kDone : Outcome::kNothing;
    });
    header = {{"outcome", static_cast<int>(result.outcome)}, {"problem", result.problem}};
    if (loaded) {
      // The manifest's own form, in which binary states are text.
      header["manifest"] = encode_manifest(loaded->manifest);
      for (const auto& [name, tensor] : loaded->optimizer.tensors) header["names"].push_back(name);
    }
  }
  const std::string text =
      broadcast_text(*group, device, header.dump(-1, ' ', false, json::error_handler_t::replace));
  header = json::parse(text);
  const auto outcome = static_cast<Outcome>(header.at("outcome").get<int>());
  raise(outcome, header.at("problem").get<std::string>());
  if (outcome == Outcome::kNothing) return std::nullopt;

  const Manifest manifest =
      decode_manifest("the manifest of rank 0", header.at("manifest").get<std::string>());
  Broadcast broadcast(group, device);
  receive_model(broadcast, parts, loaded);
  receive_optimizer(broadcast, parts, loaded, header.value("names", std::set<std::string>()),
                    optimizer);
  set_generator_states(device, manifest.random_generators);
  return TrainingProgress{manifest.step, manifest.sampler};
}

void write_parameters(const std::string& path, const torch::nn::Module& module) {
  TensorFile file;
  const Parts parts(module);
  for (const Part& part : parts.list) {
    if (!part.is_parameter) continue;
    file.tensors[part.name] =
        to_stored(part.shard == nullptr ? part.tensor : unsharded(part.tensor, *part.shard));
  }
  write_safetensors(path, file);
}

}  // namespace meshrun
