// What a checkpoint must hold for a module and an optimizer, and the reading of one that does; rank
// 0's part of CheckpointDirectory::load.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "parallel/checkpoint/kept_values.h"
#include "parallel/checkpoint/manifest.h"
#include "parallel/checkpoint/safetensors.h"
#include "parallel/nn/sharded_parameters.h"

namespace meshrun::detail {

inline constexpr char kModelFile[] = "model.safetensors";
inline constexpr char kOptimizerFile[] = "optimizer.safetensors";
inline constexpr char kKeptFile[] = "kept.safetensors";
inline constexpr char kStepName[] = "step";

// The name of a parameter's moment in the optimizer's file.
std::string moment_key(const std::string& moment, const std::string& parameter);

// A tensor of the training, and how this rank holds it.
struct Part {
  std::string name;
  at::Tensor tensor;
  const ParameterShard* shard = nullptr;  // null: every rank has all of it
  bool is_parameter = false;

  std::vector<int64_t> global_shape() const {
    return shard == nullptr ? tensor.sizes().vec() : shard->global_shape;
  }
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

// What `part` has in a file: its dtype and its global shape, without bytes.
StoredTensor expected(const Part& part);

// All parts. Raises c10::NotImplementedError, the same on every rank, if one is a ShardTensor.
// `kept` must outlive this.
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

// The checkpoint is of another run, model or optimizer.
class Mismatch : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Read whole, and it fits.
struct Loaded {
  Manifest manifest;
  TensorFile model;
  TensorFile optimizer;
  TensorFile kept;

  // Names of the values that the program keeps, sorted.
  std::vector<std::string> kept_names() const;
};

// The checkpoint of `step` in `directory`, or where that is absent the complete one written
// last; absent: there is none. `former_file`: see CheckpointOptions. Raises Mismatch,
// DamagedCheckpoint, SafetensorsError, std::runtime_error.
std::optional<Loaded> read_newest(const std::string& directory, std::optional<int64_t> step,
                                  const std::map<std::string, std::string>& identity,
                                  const std::string& former_file, const Parts& parts,
                                  const torch::optim::Optimizer& optimizer, const KeptValues& kept);

}  // namespace meshrun::detail
