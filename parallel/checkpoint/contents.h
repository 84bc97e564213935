// What a training holds that a checkpoint or another rank gets: its tensors by name, and how this
// rank has them.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <array>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/checkpoint/tensor_source.h"
#include "parallel/checkpoint/kept_values.h"
#include "parallel/checkpoint/regions.h"
#include "parallel/manager/group_argument.h"
#include "parallel/nn/optimizer_state.h"
#include "parallel/nn/sharded_parameters.h"

namespace meshrun::detail {

// The files of a checkpoint, in their order everywhere.
enum FileKind : size_t { kModel, kOptimizer, kKept };
inline constexpr std::array<const char*, 3> kFileNames = {
    "model.safetensors", "optimizer.safetensors", "kept.safetensors"};
inline constexpr char kStepName[] = "step";

template <typename Value>
using ByFile = std::array<Value, kFileNames.size()>;

// The name of a parameter's moment in the optimizer's file.
std::string moment_key(const std::string& moment, const std::string& parameter);

// How ranks hold a tensor in pieces.
struct Cut {
  GroupArgument::Handle group;
  // By rank of the group. Ranks may have the same.
  std::vector<Region> by_rank;

  const Region& own() const;
};
using CutPtr = std::shared_ptr<const Cut>;
// How ranks hold the states of a parameter of so many elements.
CutPtr cut_of_slices(const ParameterStates::Slices& slices, int64_t elements);

// This rank's elements, in the same memory: a plain tensor without a history.
at::Tensor local_part(const at::Tensor& tensor);

// A tensor of the training, and how this rank holds it.
struct Part {
  std::string name;
  at::Tensor tensor;
  const ParameterShard* shard = nullptr;  // of a ShardedParameters module
  CutPtr cut;                             // null: every rank has all of it
  bool is_parameter = false;

  std::vector<int64_t> global_shape() const;
  at::Tensor local() const { return local_part(tensor); }
  // What it is in a file.
  TensorInfo info() const;
  // This rank's elements of a tensor of the global shape: a view.
  at::Tensor own_part(const at::Tensor& whole) const;
  // All elements, on every rank of the cut. Collective over its group.
  at::Tensor whole() const;
};

// All parts. Raises c10::NotImplementedError, the same on every rank, where a ShardTensor is
// Partial. `kept` must outlive this.
struct Parts {
  std::map<std::string, ParameterShard> shards;
  std::vector<Part> list;  // parameters, then buffers
  std::vector<Part> kept;  // KeptValues::tensors()

  Parts(const torch::nn::Module& module, const KeptValues& kept);
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;
  // The model's; the CPU for an empty one.
  c10::Device device() const;
};

// What to do where one side's names begin with "module.", as a DistributedDataParallel's do, and
// the other side's are the same without it: "; ..."; else empty. `theirs`: names of the file or of
// the memory.
std::string hint_on_wrapper(const std::set<std::string>& theirs, const std::set<std::string>& ours);

template <typename Value>
std::set<std::string> names_of(const std::map<std::string, Value>& map) {
  std::set<std::string> names;
  for (const auto& [name, value] : map) names.insert(name);
  return names;
}

// The checkpoint is of another run, model or optimizer.
class Mismatch : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Tensors by name.
using Outline = std::map<std::string, TensorInfo>;

// Names of kept tensors and kept bytes, sorted.
std::vector<std::string> kept_names(const Outline& tensors,
                                    const std::map<std::string, std::string>& values);

// What a training was when it was saved or remembered, without the values of its tensors.
struct Contents {
  std::string manifest;  // EncodeManifest
  std::vector<std::string> kept_names;
  ByFile<Outline> outlines;
};

}  // namespace meshrun::detail
