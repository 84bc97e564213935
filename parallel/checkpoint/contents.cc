#include "parallel/checkpoint/contents.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <string_view>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>

#include "parallel/base/sharded_key.h"
#include "parallel/checkpoint/stored_values.h"
#include "parallel/shard/shard_tensor.h"

namespace meshrun::detail {
namespace {

CutPtr cut_of(const ParameterShard& shard) {
  if (shard.group->getSize() == 1) return nullptr;
  auto cut = std::make_shared<Cut>();
  cut->group = shard.group;
  for (const SplitRange& range : shard.ranges) {
    Region region = Region::whole(shard.global_shape);
    region.begin[static_cast<size_t>(shard.dim)] = range.begin;
    region.size[static_cast<size_t>(shard.dim)] = range.size();
    cut->by_rank.push_back(std::move(region));
  }
  return cut;
}

// Tensors of one layout share one.
class SpecCuts {
 public:
  CutPtr of(const std::string& name, const at::Tensor& tensor) {
    const SpecPtr& spec = spec_of(tensor);
    TORCH_CHECK_NOT_IMPLEMENTED(!spec->has_partial(), name,
                                " is a ShardTensor whose ranks hold summands (Partial), and a "
                                "checkpoint holds pieces or wholes: redistribute it first");
    if (spec->mesh()->size() == 1) return nullptr;
    CutPtr& cut = known_[spec.get()];
    if (!cut) cut = make(*spec);
    return cut;
  }

 private:
  static CutPtr make(const ShardTensorSpec& spec) {
    auto cut = std::make_shared<Cut>();
    cut->group = spec.mesh()->group();
    const std::vector<int64_t>& mesh = spec.mesh()->shape();
    for (int64_t rank = 0; rank < spec.mesh()->size(); ++rank) {
      std::vector<int64_t> coordinate(mesh.size());
      int64_t rest = rank;
      for (size_t axis = mesh.size(); axis-- > 0;) {
        coordinate[axis] = rest % mesh[axis];
        rest /= mesh[axis];
      }
      const Box box = spec.layout().box(coordinate);
      cut->by_rank.push_back({spec.global_shape(), box.offsets, box.sizes});
    }
    return cut;
  }

  std::map<const ShardTensorSpec*, CutPtr> known_;
};

}  // namespace

std::string moment_key(const std::string& moment, const std::string& parameter) {
  return moment + "." + parameter;
}

CutPtr cut_of_slices(const ParameterStates::Slices& slices, int64_t elements) {
  auto cut = std::make_shared<Cut>();
  cut->group = slices.group;
  for (const SplitRange& range : slices.by_rank) {
    cut->by_rank.push_back(Region::flat(elements, range.begin, range.size()));
  }
  return cut;
}

const Region& Cut::own() const { return by_rank[static_cast<size_t>(group->getRank())]; }

std::vector<int64_t> Part::global_shape() const {
  return cut == nullptr ? tensor.sizes().vec() : cut->own().shape;
}

at::Tensor local_part(const at::Tensor& tensor) {
  return is_sharded(tensor) ? local_of(tensor) : tensor.detach();
}

TensorInfo Part::info() const { return stored_info(tensor.scalar_type(), global_shape()); }

at::Tensor Part::own_part(const at::Tensor& whole) const {
  if (cut == nullptr) return whole;
  const Region& own = cut->own();
  at::Tensor part = whole;
  for (size_t d = 0; d < own.shape.size(); ++d) {
    if (own.size[d] != own.shape[d]) {
      part = part.narrow(static_cast<int64_t>(d), own.begin[d], own.size[d]);
    }
  }
  return part;
}

at::Tensor Part::whole() const {
  const at::NoGradGuard no_grad;
  if (is_sharded(tensor)) return ShardTensor(tensor.detach()).full_tensor();
  return shard == nullptr ? tensor.detach() : unsharded(tensor, *shard);
}

Parts::Parts(const torch::nn::Module& module, const KeptValues& kept_values)
    : shards(parameter_shards(module)) {
  SpecCuts specs;
  const auto add = [&](const std::string& name, const at::Tensor& tensor, bool is_parameter) {
    Part part{.name = name, .tensor = tensor, .is_parameter = is_parameter};
    if (is_sharded(tensor)) {
      part.cut = specs.of(name, tensor);
    } else if (const auto shard = shards.find(name); is_parameter && shard != shards.end()) {
      part.shard = &shard->second;
      part.cut = cut_of(shard->second);
    }
    list.push_back(std::move(part));
  };
  for (const auto& item : module.named_parameters()) add(item.key(), item.value(), true);
  for (const auto& item : module.named_buffers()) {
    // A norm without running statistics registers some that are undefined.
    if (item.value().defined()) add(item.key(), item.value(), false);
  }
  for (const auto& [name, value] : kept_values.tensors()) {
    Part part{.name = name, .tensor = value.tensor, .is_parameter = !value.is_buffer};
    if (value.shard) {
      part.shard = &*value.shard;
      part.cut = cut_of(*value.shard);
    }
    kept.push_back(std::move(part));
  }
}

c10::Device Parts::device() const {
  return list.empty() ? c10::Device(c10::kCPU) : list.front().tensor.device();
}

std::vector<std::string> kept_names(const Outline& tensors,
                                    const std::map<std::string, std::string>& values) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) names.push_back(name);
  for (const auto& [name, bytes] : values) names.push_back(name);
  std::ranges::sort(names);
  return names;
}

std::string hint_on_wrapper(const std::set<std::string>& theirs,
                            const std::set<std::string>& ours) {
  constexpr std::string_view kPrefix = "module.";
  // Whether all that `some` have beyond `others` has the prefix, and is theirs without it. Buffers
  // may be missing altogether.
  const auto are_wrapped = [&](const std::set<std::string>& some,
                               const std::set<std::string>& others) {
    bool is_any = false;
    for (const std::string& name : some) {
      if (others.contains(name)) continue;
      if (!name.starts_with(kPrefix)) return false;
      is_any = is_any || others.contains(name.substr(kPrefix.size()));
    }
    return is_any;
  };
  if (are_wrapped(ours, theirs)) {
    return "; this module's names begin with \"module.\", as a DistributedDataParallel's do: pass "
           "the wrapped module";
  }
  if (are_wrapped(theirs, ours)) {
    return "; its names begin with \"module.\", as a DistributedDataParallel's do: write the "
           "wrapped module, or pass the wrapper here";
  }
  return "";
}

}  // namespace meshrun::detail
