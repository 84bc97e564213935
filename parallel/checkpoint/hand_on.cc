#include "parallel/checkpoint/hand_on.h"

#include <ATen/ATen.h>

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <utility>
#include <vector>

#include "parallel/checkpoint/agreement.h"
#include "parallel/checkpoint/raised_by.h"
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

// Names, dtypes and shapes, without bytes.
json outline_of(const TensorFile& file) {
  json outline = json::object();
  for (const auto& [name, tensor] : file.tensors) {
    outline[name] = {{"dtype", tensor.dtype}, {"shape", tensor.shape}};
  }
  return outline;
}

using Outline = std::map<std::string, StoredTensor>;

Outline outline_in(const json& outline) {
  Outline tensors;
  for (const auto& [name, tensor] : outline.items()) {
    tensors[name] = {tensor.at("dtype").get<std::string>(),
                     tensor.at("shape").get<std::vector<int64_t>>(), ""};
  }
  return tensors;
}

Outline outline_of(const std::vector<Part>& parts) {
  Outline tensors;
  for (const Part& part : parts) tensors[part.name] = expected(part);
  return tensors;
}

// All that the optimizer may have.
Outline outline_of_states(const Parts& parts, const torch::optim::Optimizer& optimizer) {
  const std::vector<std::string> moments = possible_moments(optimizer);
  Outline tensors;
  for (const Part& part : parts.list) {
    if (!part.is_parameter) continue;
    for (const std::string& moment : moments) {
      tensors[moment_key(moment, part.name)] = expected(part);
    }
    tensors[moment_key(kStepName, part.name)] = {"I64", {}, ""};
  }
  return tensors;
}

// Why the root's tensors are not those of this run, with both sides; empty: they are.
// `may_lack`: the root need not have all of them.
std::string difference_of_tensors(const std::string& source, const Outline& theirs,
                                  const Outline& ours, bool may_lack = false) {
  const auto describe = [](const StoredTensor& tensor) {
    return c10::str(tensor.dtype, " ", at::IntArrayRef(tensor.shape));
  };
  const std::string hint =
      may_lack ? std::string() : hint_on_wrapper(names_of(theirs), names_of(ours));
  for (const auto& [name, wanted] : ours) {
    const auto found = theirs.find(name);
    if (found == theirs.end()) {
      if (may_lack) continue;
      return source + " lacks " + name + ", which this run has when it restores" + hint;
    }
    if (found->second.dtype == wanted.dtype && found->second.shape == wanted.shape) continue;
    return source + " holds " + name + " as " + describe(found->second) + ", but this run's is " +
           describe(wanted);
  }
  for (const auto& [name, tensor] : theirs) {
    if (!ours.contains(name)) {
      return source + " holds " + name + ", which this run lacks when it restores";
    }
  }
  return "";
}

std::string difference_of_optimizers(const std::string& source, const Manifest& manifest,
                                     const torch::optim::Optimizer& optimizer) {
  const std::string kind = optimizer_kind(optimizer);
  if (manifest.optimizer != kind) {
    return source + " has the optimizer " + manifest.optimizer + ", but this run has " + kind;
  }
  // Absent in checkpoints of earlier versions: then the options stay the constructor's.
  const size_t groups = manifest.optimizer_options.size();
  if (groups == 0 || groups == optimizer.param_groups().size()) return "";
  return source + " has an optimizer with " + std::to_string(groups) +
         " groups of parameters, but this run's has " +
         std::to_string(optimizer.param_groups().size());
}

// Between what the root has, which `header` outlines, and this run; empty: none.
std::string difference_of(const std::string& source, const json& header, const Manifest& manifest,
                          const Parts& parts, const torch::optim::Optimizer& optimizer,
                          const KeptValues& kept) {
  std::string problem = difference_of_names(
      source, header.at("kept_names").get<std::vector<std::string>>(), kept.names());
  if (problem.empty()) {
    problem = difference_of_kinds(source, names_of(outline_in(header.at("kept"))), kept);
  }
  if (problem.empty()) problem = difference_of_optimizers(source, manifest, optimizer);
  if (problem.empty()) {
    problem = difference_of_tensors(source, outline_in(header.at("model")), outline_of(parts.list));
  }
  if (problem.empty()) {
    problem = difference_of_tensors(source, outline_in(header.at("kept")), outline_of(parts.kept));
  }
  if (problem.empty()) {
    problem = difference_of_tensors(source, outline_in(header.at("optimizer")),
                                    outline_of_states(parts, optimizer), /*may_lack=*/true);
  }
  return problem;
}

// Collective. Raises Mismatch on every rank where a `load` of the program's raises on one.
void load_kept(c10d::ProcessGroup& group, c10::Device device, const KeptValues& kept,
               const std::map<std::string, std::string>& saved) {
  if (saved.empty()) return;
  std::string problem;
  for (const auto& [name, bytes] : saved) {
    const std::string raised = raised_by([&, &name = name, &bytes = bytes] {
      kept.load({{name, bytes}});
    });
    if (raised.empty()) continue;
    problem = "the load function of the kept value \"" + name + "\" raised on rank " +
              std::to_string(group.getRank()) + ": " + raised;
    break;
  }
  problem = common_problem(group, device, problem);
  if (!problem.empty()) throw Mismatch(problem);
}

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

// `names`: those of the root's tensors.
void receive_optimizer(Broadcast& broadcast, const Parts& parts,
                       const std::optional<Loaded>& loaded, const Outline& names,
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
                      // In the parameter's order of memory, on which fused steps rely.
                      Tensor& own = state.moments[moment];
                      own = at::empty_like(part.tensor.detach(), at::MemoryFormat::Preserve);
                      own.copy_(own_part(whole, part));
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
    header["kept_names"] = loaded->kept_names();
    header["model"] = outline_of(loaded->model);
    header["optimizer"] = outline_of(loaded->optimizer);
    header["kept"] = outline_of(loaded->kept);
  }
  header = json::parse(broadcast_text(
      *group, device, header.dump(-1, ' ', false, json::error_handler_t::replace), root));
  const Manifest manifest = decode_manifest("the manifest of rank " + std::to_string(root),
                                            header.at("manifest").get<std::string>());
  std::string problem;
  const std::string raised =
      raised_by([&] { problem = difference_of(source, header, manifest, parts, optimizer, kept); });
  problem = common_problem(*group, device, raised.empty() ? problem : raised);
  if (!problem.empty()) throw Mismatch(problem);
  // Before the moments, whose names depend on it.
  if (!manifest.optimizer_options.empty()) {
    set_group_options(optimizer, manifest.optimizer_options);
  }
  Broadcast broadcast(group, root, device);
  receive_parts(broadcast, parts.list, loaded, &Loaded::model);
  receive_parts(broadcast, parts.kept, loaded, &Loaded::kept);
  receive_optimizer(broadcast, parts, loaded, outline_in(header.at("optimizer")), optimizer);
  load_kept(*group, device, kept, manifest.kept_values);
  return manifest;
}

}  // namespace meshrun::detail
