#include "parallel/nn/afno_network.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <utility>

#include "ATen/ATen.h"
#include "ATen/CPUGeneratorImpl.h"
#include "parallel/collectives/all_reduce.h"
#include "parallel/comm/v_collectives_of.h"
#include "parallel/nn/module_agreement.h"
#include "parallel/nn/shared_module.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun::detail {
namespace {

using at::Tensor;

constexpr double kLayerNormEpsilon = 1e-6;

// While it lives, the default generator gives the numbers of one seed: the next number of rank 0's
// generator. Afterwards it goes on where each rank's was. So parameters are pieces of one model
// also where ranks are seeded differently.
class SharedSeed {
 public:
  explicit SharedSeed(const AfnoGroups& groups) : generator_(at::detail::getDefaultCPUGenerator()) {
    Tensor seed = at::randint(std::numeric_limits<int64_t>::max(), {1}, at::kLong);
    for (const GroupArgument::Handle& group : {groups.channels, groups.columns}) {
      if (!group || group->getSize() == 1) continue;
      std::vector<Tensor> tensors = {seed.to(device_of(Tensor(), *group))};
      group->broadcast(tensors)->wait();
      seed = tensors[0].cpu();
    }
    before_ = generator_.get_state();
    generator_.set_current_seed(static_cast<uint64_t>(seed.item<int64_t>()));
  }
  ~SharedSeed() { generator_.set_state(before_); }
  SharedSeed(const SharedSeed&) = delete;
  SharedSeed& operator=(const SharedSeed&) = delete;

 private:
  at::Generator generator_;
  Tensor before_;
};

// The problem of any rank, or a difference between ranks, in the same words on all.
std::string what_is_wrong(const AfnoGroups& groups, const AfnoShape& shape, std::string problem) {
  const std::string options = describe(shape);
  for (const GroupArgument::Handle& group : {groups.channels, groups.columns}) {
    if (!group || group->getSize() == 1) continue;
    const c10::Device device(device_of(Tensor(), *group));
    const std::string found = find_difference(*group, device, options, "", problem);
    // What the first group has found, the second tells the other ranks.
    if (!found.empty()) problem = found;
  }
  return problem;
}

Weights layer_norm_weights(const GroupArgument::Handle& group, int64_t channels) {
  Weights weights(group);
  weights->set_weight(at::ones({channels}), 0);
  weights->set_bias(at::zeros({channels}), 0);
  return weights;
}

FieldColumns columns_of(const AfnoShape& shape, const GroupArgument::Handle& handle) {
  FieldColumns columns{.group = ChannelGroup(handle)};
  const int64_t ranks = columns.group.size();
  columns.piece = {split_range(shape.columns(), ranks, columns.group.rank()), shape.columns()};
  if (ranks == 1) return columns;
  const std::vector<int64_t> pieces = compute_split_shapes(shape.columns(), ranks);
  const std::vector<int64_t> rows = compute_split_shapes(shape.rows(), ranks);
  FftOptions options{.s = {shape.rows(), shape.columns()}, .dim = {1, 2}, .group = handle};
  options.input_sizes = pieces;
  options.output_sizes = rows;
  columns.to_modes = std::make_shared<DistributedRFFT2>(options);
  options.input_sizes = rows;
  options.output_sizes = pieces;
  columns.from_modes = std::make_shared<DistributedIRFFT2>(options);
  return columns;
}

}  // namespace

// ---- AfnoBlock

AfnoBlockImpl::AfnoBlockImpl(const AfnoShape& shape, double drop_path_rate,
                             const GroupArgument::Handle& group)
    : channels_(group), drop_path_rate_(drop_path_rate) {
  norm1_ = register_module("norm1", layer_norm_weights(group, shape.embed_dim));
  filter_ = register_module(
      "filter", DistributedAFNO2D(DistributedAFNO2DOptions(shape.embed_dim)
                                      .num_blocks(shape.num_blocks)
                                      .sparsity_threshold(shape.sparsity_threshold)
                                      .hard_thresholding_fraction(shape.hard_thresholding_fraction)
                                      .input_is_matmul_parallel(true)
                                      .output_is_matmul_parallel(true),
                                  group));
  norm2_ = register_module("norm2", layer_norm_weights(group, shape.embed_dim));
  mlp_ = register_module("mlp", DistributedMLP(DistributedMLPOptions(shape.embed_dim)
                                                   .hidden_features(shape.hidden())
                                                   .drop(shape.drop_rate)
                                                   .input_is_matmul_parallel(true)
                                                   .output_is_matmul_parallel(true),
                                               group));
}

Tensor AfnoBlockImpl::forward(const Tensor& x, const FieldColumns& columns) {
  const auto normal = [&](const Tensor& y, const Weights& norm) {
    return layer_norm(y, norm->weight, norm->bias, kLayerNormEpsilon, channels_);
  };
  const Tensor filtered = filter_->forward_channels_last(normal(x, norm1_), columns) + x;
  const Tensor mixed = mlp_->forward_channels_last(normal(filtered, norm2_), columns.piece);
  return drop_path(mixed, drop_path_rate_, is_training()) + filtered;
}

// ---- AfnoNetwork

AfnoNetwork::AfnoNetwork(std::string name, const AfnoShape& shape, const AfnoGroups& groups,
                         const std::string& problem)
    : ShardedModule(groups.channels),
      name_(std::move(name)),
      shape_(shape),
      channels_(groups.channels) {
  const std::string found = what_is_wrong(
      groups, shape, problem.empty() ? problem_of_network(shape, channels_.size()) : problem);
  TORCH_CHECK_VALUE(found.empty(), name_, ": ", found);

  columns_ = columns_of(shape, groups.columns);
  const SharedSeed seed(groups);
  patch_embed_ = register_module(
      "patch_embed", DistributedPatchEmbed(DistributedPatchEmbedOptions()
                                               .inp_shape(shape.inp_shape)
                                               .patch_size(shape.patch_size)
                                               .in_chans(shape.in_chans)
                                               .embed_dim(shape.embed_dim)
                                               .input_is_matmul_parallel(shape.input_is_parallel),
                                           groups.channels));
  pos_embed_ = register_shard(
      "pos_embed", at::randn({1, shape.rows() * shape.columns(), shape.embed_dim}) * 0.02, 2);
  blocks_ = register_module("blocks", torch::nn::ModuleList());
  for (int64_t i = 0; i < shape.depth; ++i) {
    const double rate = shape.depth == 1 ? 0
                                         : shape.drop_path_rate * static_cast<double>(i) /
                                               static_cast<double>(shape.depth - 1);
    blocks_->push_back(AfnoBlock(shape, rate, groups.channels));
  }
  const int64_t patch = shape.patch_size[0] * shape.patch_size[1];
  head_ = register_module("head", Weights(groups.channels));
  head_->set_weight(at::randn({patch * shape.out_chans, shape.embed_dim}) * 0.02, 1);
}

std::string AfnoNetwork::problem_of_input(const Tensor& x) const {
  const std::vector<int64_t> expected = {
      shape_.in_chans / (shape_.input_is_parallel ? channels_.size() : 1), shape_.inp_shape[0],
      columns_.piece.own.size() * shape_.patch_size[1]};
  if (!x.defined()) return name_ + ": the input is undefined";
  if (x.dim() != 4 || x.sizes().slice(1) != at::IntArrayRef(expected)) {
    return c10::str(name_, ": Expected input shape (B, ", expected[0], ", ", expected[1], ", ",
                    expected[2], "), got ", x.sizes());
  }
  if (x.scalar_type() != pos_embed_.scalar_type() || x.device() != pos_embed_.device()) {
    return c10::str(name_, ": the input is ", x.scalar_type(), " on ", x.device(),
                    ", the parameters are ", pos_embed_.scalar_type(), " on ", pos_embed_.device());
  }
  return "";
}

Tensor AfnoNetwork::run(const Tensor& x) {
  channels_.raise(x, problem_of_input(x));
  const PieceOf& columns = columns_.piece;
  const PieceOf channels = {split_range(shape_.embed_dim, channels_.size(), channels_.rank()),
                            shape_.embed_dim};
  const Tensor position = pos_embed_.view({1, shape_.rows(), shape_.columns(), channels.own.size()})
                              .narrow(2, columns.own.begin, columns.own.size());
  Tensor y = dropout(patch_embed_->forward_channels_last(x) + position, shape_.drop_rate,
                     is_training(), columns, channels);
  for (const auto& block : *blocks_) y = block->as<AfnoBlock>()->forward(y, columns_);

  const int64_t p = shape_.patch_size[0], q = shape_.patch_size[1];
  const Tensor part = at::linear(y, head_->weight);
  if (!shape_.output_is_parallel) return image_of(channels_.reduce_from(part), p, q);
  // Channels are innermost.
  const Tensor own = channels_.reduce_scatter(part.unflatten(-1, {p * q, shape_.out_chans}), -1);
  return image_of(own.flatten(-2), p, q);
}

void AfnoNetwork::share_parameters(const Tensor& x) {
  try {
    share_unmarked_parameters(*this, columns_.group.handle());
  } catch (const c10::Error& error) {
    // The other group's ranks may have marked theirs.
    if (channels_.size() > 1) channels_.raise(x, error.what_without_backtrace());
    throw;
  }
}

Tensor AfnoNetwork::forward(const Tensor& x) {
  const ChannelGroup& columns = columns_.group;
  if (columns.size() == 1) return run(x);
  if (at::GradMode::is_enabled()) share_parameters(x);
  columns_.has_raised = false;
  try {
    return run(x);
  } catch (const c10::ValueError& error) {
    // An error of the other group, or of this rank alone: this group's ranks wait in a transform.
    if (!columns_.has_raised) columns.raise(x, error.what_without_backtrace());
    throw;
  }
}

}  // namespace meshrun::detail
