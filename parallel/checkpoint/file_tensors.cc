#include "parallel/checkpoint/file_tensors.h"

#include <ATen/ATen.h>

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "parallel/base/digest.h"
#include "parallel/checkpoint/agreement.h"
#include "parallel/checkpoint/raised_by.h"
#include "parallel/nn/optimizer_state.h"

namespace meshrun::detail {
namespace {

using at::Tensor;
using nlohmann::json;

FileTensor file_tensor(const Part& part) {
  return {part.info(), StoredValues(part.local()), part.cut, !part.is_parameter};
}

// States of one parameter: as the parameter lies, or the slices of one that every rank has.
void add_states(std::map<std::string, FileTensor>& file, const Part& part,
                torch::optim::Optimizer& optimizer) {
  ParameterState state;
  CutPtr cut = part.cut;
  auto* const sliced = dynamic_cast<ParameterStates*>(&optimizer);
  if (sliced == nullptr || part.cut != nullptr) {
    state = parameter_state(optimizer, part.tensor);
  } else if (auto slices = sliced->parameter_slices(part.tensor)) {
    cut = cut_of_slices(*slices, part.tensor.numel());
    state = std::move(slices->state);
  }
  for (const auto& [moment, tensor] : state.moments) {
    file[moment_key(moment, part.name)] = {stored_info(tensor.scalar_type(), part.global_shape()),
                                           StoredValues(local_part(tensor)), cut};
  }
  if (state.step) {
    const Tensor step = at::scalar_tensor(*state.step, at::kLong);
    file[moment_key(kStepName, part.name)] = {stored_info(step), StoredValues(step), nullptr};
  }
}

// Pieces of zeros for a moment that this rank's optimizer lacks, cut as the parameter is.
FileTensor zeros_like_parameter(const std::map<std::string, FileTensor>& model,
                                const TensorInfo& info, const std::string& moment) {
  const auto parameter = model.find(moment.substr(moment.find('.') + 1));
  TORCH_CHECK_VALUE(parameter != model.end() && parameter->second.cut != nullptr,
                    "rank 0 has a piece of ", moment, ", and this rank has no such tensor");
  const CutPtr& cut = parameter->second.cut;
  return {info, StoredValues(at::zeros_like(parameter->second.bytes.values())), cut};
}

json outline_of(const FileTensors& tensors) {
  json outlines = json::array();
  for (const auto& file : tensors) {
    json& outline = outlines.emplace_back(json::object());
    for (const auto& [name, tensor] : file) {
      outline[name] = {tensor.info.dtype, tensor.info.shape, tensor.cut != nullptr};
    }
  }
  return outlines;
}

// Makes the moments those that rank 0 has.
void adopt_moments(FileTensors& tensors, const json& outline) {
  std::map<std::string, FileTensor> agreed;
  for (const auto& [name, coded] : outline.items()) {
    const TensorInfo info{coded[0].get<std::string>(), coded[1].get<std::vector<int64_t>>()};
    const bool is_cut = coded[2].get<bool>();
    const auto own = tensors[kOptimizer].find(name);
    if (own != tensors[kOptimizer].end() && own->second.info == info &&
        (own->second.cut != nullptr) == is_cut) {
      agreed[name] = std::move(own->second);
    } else if (is_cut) {
      agreed[name] = zeros_like_parameter(tensors[kModel], info, name);
    } else {
      agreed[name] = {info, StoredValues(), nullptr};
    }
  }
  tensors[kOptimizer] = std::move(agreed);
}

// One sentence where this rank's names, dtypes and shapes are not rank 0's; else empty.
std::string difference_of(const json& theirs, const json& ours, int rank) {
  const auto words = [&](const std::string& name, const json& outline, const std::string& who) {
    if (!outline.contains(name)) return who + " has no " + name;
    const json& coded = outline[name];
    return who + " has " + name + " as " +
           DescribeTensor({coded[0].get<std::string>(), coded[1].get<std::vector<int64_t>>()}) +
           (coded[2].get<bool>() ? " in pieces" : "");
  };
  for (const json* const side : {&theirs, &ours}) {
    for (const auto& [name, coded] : side->items()) {
      if (theirs.contains(name) && ours.contains(name) && theirs[name] == ours[name]) continue;
      return words(name, theirs, "rank 0") + ", and " +
             words(name, ours, "rank " + std::to_string(rank)) +
             ": all ranks save the same model and keep the same values";
    }
  }
  return "";
}

}  // namespace

FileTensors collect(const Parts& parts, torch::optim::Optimizer& optimizer) {
  FileTensors tensors;
  for (const Part& part : parts.list) {
    tensors[kModel][part.name] = file_tensor(part);
    if (part.is_parameter) add_states(tensors[kOptimizer], part, optimizer);
  }
  for (const Part& part : parts.kept) tensors[kKept][part.name] = file_tensor(part);
  return tensors;
}

int64_t digest_of_outline(const FileTensors& tensors) {
  Digest digest;
  for (const auto& file : tensors) {
    for (const auto& [name, tensor] : file) {
      digest.add(static_cast<int64_t>(digest_of(name)))
          .add(static_cast<int64_t>(digest_of(tensor.info.dtype)))
          .add(tensor.info.shape)
          .add(tensor.cut == nullptr ? 0 : 1);
    }
    digest.add(-1);
  }
  return static_cast<int64_t>(digest.value());
}

std::string agree_on(FileTensors& tensors, bool is_alike, c10d::ProcessGroup& group,
                     c10::Device device) {
  if (group.getSize() == 1) return "";
  std::string differing;
  if (is_alike) {
    std::vector<int64_t> samples;
    std::vector<FileTensor*> shared;
    std::vector<const std::string*> names;
    for (auto& file : tensors) {
      for (auto& [name, tensor] : file) {
        if (tensor.cut != nullptr || tensor.is_of_rank_0) continue;
        samples.push_back(static_cast<int64_t>(tensor.bytes.sample()));
        shared.push_back(&tensor);
        names.push_back(&name);
      }
    }
    if (shared.empty()) return "";
    const std::vector<bool> equal = are_equal(group, device, samples);
    for (size_t i = 0; i < shared.size(); ++i) {
      shared[i]->is_of_rank_0 = !equal[i];
      if (!equal[i] && differing.empty()) differing = *names[i];
    }
    return differing;
  }
  const json outlines = json::parse(broadcast_text(group, device, outline_of(tensors).dump()));
  const json own = outline_of(tensors);
  std::string problem;
  for (const FileKind kind : {kModel, kKept}) {
    if (problem.empty()) problem = difference_of(outlines[kind], own[kind], group.getRank());
  }
  if (problem.empty()) {
    problem = raised_by([&] { adopt_moments(tensors, outlines[kOptimizer]); });
  }
  problem = common_problem(group, device, problem);
  TORCH_CHECK_VALUE(problem.empty(), problem);
  for (auto& file : tensors) {
    for (auto& [name, tensor] : file) tensor.is_of_rank_0 = true;
  }
  return "";
}

Region stored_region(const Region& region, const TensorInfo& info) {
  Region stored = region;
  const int64_t elements = Region::whole(region.shape).elements();
  const int64_t stored_elements = Region::whole(info.shape).elements();
  // The pair of a complex number.
  const bool is_pair = info.dtype == "F64" && !info.shape.empty() && info.shape.back() == 2;
  if (is_pair && elements > 0 && stored_elements == 2 * elements) {
    stored.shape.push_back(2);
    stored.begin.push_back(0);
    stored.size.push_back(2);
    return stored;
  }
  TORCH_INTERNAL_ASSERT(stored_elements == elements, "a piece of ", elements,
                        " elements in all belongs to a tensor of ", stored_elements);
  return stored;
}

}  // namespace meshrun::detail
