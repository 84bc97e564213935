#include "parallel/checkpoint/hand_on.h"

#include <ATen/ATen.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <utility>
#include <vector>

#include "parallel/checkpoint/agreement.h"
#include "parallel/checkpoint/stored_tensor.h"
#include "parallel/comm/interface/carried.h"
#include "parallel/nn/optimizer_state.h"

namespace meshrun::detail {
namespace {

using at::Tensor;
using nlohmann::json;

constexpr int64_t kBroadcastBytes = int64_t{64} * 1024 * 1024;

// Tensors from one rank to all, in buckets; each is handed on when it has arrived.
class Broadcast {
 public:
  Broadcast(const GroupArgument::Handle& group, int root, c10::Device device)
      : group_(group), root_(root), device_(device) {}

  // `stored` is null on ranks other than the root.
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
      if (tensor.numel() > 0) tensors.push_back(carried(tensor));
    }
    if (!tensors.empty()) {
      c10d::broadcast_coalesced(group_, tensors, static_cast<size_t>(kBroadcastBytes), root_);
    }
    for (const auto& [tensor, use] : waiting_) use(tensor);
    waiting_.clear();
    bytes_ = 0;
  }

 private:
  const GroupArgument::Handle group_;
  const int root_;
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

void receive_parts(Broadcast& broadcast, const std::vector<Part>& parts,
                   const std::optional<Loaded>& loaded, TensorFile Loaded::*file) {
  for (const Part& part : parts) {
    broadcast.add(part.name, find(loaded, file, part.name), part.global_shape(),
                  part.tensor.scalar_type(), [&part](const Tensor& whole) {
                    const at::NoGradGuard no_grad;
                    part.tensor.detach().copy_(own_part(whole, part));
                  });
  }
  broadcast.flush();
}

// `names`: of the root's tensors.
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

Manifest hand_on(const GroupArgument::Handle& group, int root, const std::optional<Loaded>& loaded,
                 const std::string& source, const Parts& parts, torch::optim::Optimizer& optimizer,
                 const KeptValues& kept) {
  const c10::Device device = parts.device();
  json header;
  if (loaded) {
    // The manifest's own form, in which binary states are text.
    header["manifest"] = encode_manifest(loaded->manifest);
    header["kept"] = loaded->kept_names();
    for (const auto& [name, tensor] : loaded->optimizer.tensors) header["names"].push_back(name);
  }
  header = json::parse(broadcast_text(
      *group, device, header.dump(-1, ' ', false, json::error_handler_t::replace), root));
  const Manifest manifest = decode_manifest("the manifest of rank " + std::to_string(root),
                                            header.at("manifest").get<std::string>());
  std::string problem =
      difference_of_names(source, header.at("kept").get<std::vector<std::string>>(), kept.names());
  // Absent in checkpoints of earlier versions: then the options stay the constructor's.
  const size_t groups = manifest.optimizer_options.size();
  if (problem.empty() && groups > 0 && groups != optimizer.param_groups().size()) {
    problem = source + " has an optimizer with " + std::to_string(groups) +
              " groups of parameters, but this run's has " +
              std::to_string(optimizer.param_groups().size());
  }
  problem = common_problem(*group, device, problem);
  if (!problem.empty()) throw Mismatch(problem);
  // Before the moments, whose names depend on it.
  if (groups > 0) set_group_options(optimizer, manifest.optimizer_options);
  Broadcast broadcast(group, root, device);
  receive_parts(broadcast, parts.list, loaded, &Loaded::model);
  receive_parts(broadcast, parts.kept, loaded, &Loaded::kept);
  receive_optimizer(broadcast, parts, loaded, header.value("names", std::set<std::string>()),
                    optimizer);
  kept.load(manifest.kept_values);
  return manifest;
}

}  // namespace meshrun::detail
