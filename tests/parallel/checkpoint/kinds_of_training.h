// Trainings of several kinds, whose gradients are a function of a parameter's name and the step.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/optim/adam.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "parallel/base/sharded_key.h"
#include "parallel/manager/distributed_manager.h"
#include "parallel/nn/fno.h"
#include "parallel/nn/sharded_parameters.h"
#include "parallel/nn/zero_redundancy_optimizer.h"
#include "parallel/shard/shard_tensor.h"

namespace meshrun {

inline at::Tensor values_of(const std::string& name, at::IntArrayRef shape) {
  const auto seed = static_cast<double>(name.size());
  return at::cos(at::arange(1, c10::multiply_integers(shape) + 1, at::kDouble).view(shape) * seed)
      .to(at::kFloat);
}

// Whole on every rank, save for the parameters that `sharded` names: those are ShardTensors.
struct Mixed : torch::nn::Module {
  explicit Mixed(const std::vector<std::string>& sharded) {
    if (!sharded.empty()) {
      const int size = DistributedManager::get().world_size();
      mesh = ShardMesh::of(DistributedManager::get().initialize_mesh({size}, {"ranks"}));
    }
    add("cube", {3, 4, 5}, sharded);
    add("matrix", {9, 7}, sharded);
    add("number", {}, {});
    add("empty", {0, 3}, sharded);
    register_buffer("seen", at::full({3}, DistributedManager::get().rank() + 1));
  }
  void add(const std::string& name, at::IntArrayRef shape,
           const std::vector<std::string>& sharded) {
    const at::Tensor whole = values_of(name, shape);
    if (std::ranges::find(sharded, name) == sharded.end()) {
      register_parameter(name, whole);
      return;
    }
    specs[name] =
        make_spec(mesh, ShardLayout::split(mesh->shape(), {Shard(1)}, whole.sizes().vec()));
    register_parameter(name, ShardTensor(own(name, whole).clone(), specs[name], true));
  }
  at::Tensor own(const std::string& name, at::Tensor whole) const {
    const auto spec = specs.find(name);
    if (spec == specs.end()) return whole;
    const Box& box = spec->second->box();
    return whole.narrow(1, box.offsets[1], box.sizes[1]);
  }
  ShardMesh::Ptr mesh;
  std::map<std::string, SpecPtr> specs;
};

// "plain": whole on every rank; "zero": with moments in slices; "columns": ShardTensors; "fno": an
// FNO over all ranks; "pairs": over two of four; "zero of pairs": the same, with the moments of
// ranks that have the same pieces in slices. In another world than four that is an FNO over all.
class Training {
 public:
  explicit Training(const std::string& kind) {
    const bool is_one = DistributedManager::get().world_size() == 1;
    at::manual_seed(5);
    const bool is_zero_of_pairs = kind == "zero of pairs";
    if (kind == "fno" || kind == "pairs" || is_zero_of_pairs) {
      FNOOptions options = FNOOptions().width(3).modes({4, 3}).num_layers(2).projection_channels(4);
      if (kind == "pairs" || is_zero_of_pairs) {
        const int size = DistributedManager::get().world_size();
        const int64_t pairs = size == 4 ? 2 : 1;
        DistributedManager::get().initialize_mesh({pairs, size / pairs}, {"dp", "spatial"});
        options.group(GroupArgument("spatial"));
      } else if (!is_one) {
        options.group(GroupArgument("world"));
      }
      module_ = FNO(options).ptr();
    } else {
      const bool is_sharded = kind == "columns" && !is_one;
      mixed_ =
          std::make_shared<Mixed>(is_sharded ? std::vector<std::string>{"cube", "matrix", "empty"}
                                             : std::vector<std::string>{});
      module_ = mixed_;
    }
    shards_ = parameter_shards(*module_);
    if (is_zero_of_pairs) {
      optimizer_ = std::make_unique<ZeroRedundancyOptimizer>(
          module_->parameters(), torch::optim::AdamOptions(0.01),
          ZeroRedundancyOptions{.group = "dp", .gradients_are_reduced = true});
    } else if (kind == "zero") {
      optimizer_ = std::make_unique<ZeroRedundancyOptimizer>(
          module_->parameters(), torch::optim::AdamOptions(0.01),
          ZeroRedundancyOptions{.gradients_are_reduced = true});
    } else {
      optimizer_ = std::make_unique<torch::optim::Adam>(module_->parameters(),
                                                        torch::optim::AdamOptions(0.01));
    }
  }
  void train(int64_t from, int64_t to) {
    for (int64_t step = from; step < to; ++step) {
      for (auto& item : module_->named_parameters()) {
        const std::string& name = item.key();
        const auto shard = shards_.find(name);
        const std::vector<int64_t> shape =
            shard == shards_.end() ? item.value().sizes().vec() : shard->second.global_shape;
        const at::Tensor whole =
            values_of(name + std::string(static_cast<size_t>(step + 1), 'x'), shape);
        item.value().mutable_grad() = like_parameter(name, whole);
      }
      optimizer_->step();
    }
  }
  void expect_equal(Training& other) {
    const auto theirs = other.module_->named_parameters();
    for (const auto& item : module_->named_parameters()) {
      EXPECT_TRUE(at::allclose(local(item.value()), local(theirs[item.key()]), 1e-6, 1e-9))
          << item.key();
    }
  }
  void spoil_pieces() {
    const at::NoGradGuard no_grad;
    for (auto& item : module_->named_parameters()) {
      if (shards_.contains(item.key())) item.value().mul_(2);
    }
  }
  at::Tensor buffer() { return module_->named_buffers()["seen"]; }
  torch::nn::Module& module() { return *module_; }
  torch::optim::Optimizer& optimizer() { return *optimizer_; }

 private:
  static at::Tensor local(const at::Tensor& tensor) {
    return is_sharded(tensor) ? local_of(tensor) : tensor.detach();
  }
  at::Tensor like_parameter(const std::string& name, const at::Tensor& whole) const {
    const auto shard = shards_.find(name);
    if (shard != shards_.end()) return shard_of(whole, shard->second).clone();
    if (!mixed_ || !mixed_->specs.contains(name)) return whole;
    return ShardTensor(mixed_->own(name, whole).clone(), mixed_->specs.at(name));
  }

  std::shared_ptr<torch::nn::Module> module_;
  std::shared_ptr<Mixed> mixed_;
  std::map<std::string, ParameterShard> shards_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

}  // namespace meshrun
