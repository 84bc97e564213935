// Adam, AdamW or SGD whose states are spread over the ranks of a group: each rank keeps and updates
// 1 / ranks of them (ZeRO stage 1; Rajbhandari et al., arXiv:1910.02054).
//
//   ZeroRedundancyOptimizer optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
//   loss.backward();     // each rank's own gradients: no DistributedDataParallel around the model
//   optimizer.step();    // reduce-scatters them, steps this rank's slice, gathers the parameters
//
// Parameters are laid one after another into buckets of one dtype; a rank's slice of a bucket is
// what compute_split_shapes gives it, which may end within a parameter. step() equals that of the
// plain optimizer on the group's mean gradient, bit for bit where that is summed in rank order. A
// parameter without a gradient on any rank is not stepped; one with a gradient on some ranks counts
// as zero on the others. p.grad() itself keeps this rank's own gradient.
//
// Clipping: clip_grad_norm_(optimizer, max_norm) of clip_grad.h, since p.grad() is not reduced.
//
// Memory: states, and a copy of the parameters' slices, are 1 / ranks of the model on each rank.
// Bytes on the wire per rank are those of an all-reduce.
//
// It is a torch::optim::Optimizer: zero_grad(), schedulers and param_groups()[i].options() work as
// on the plain one. The parameters are those given to the constructor; add_param_group() makes the
// next step raise.
//
// States: optimizer_state.h reads and writes them whole, by parameter, so a CheckpointDirectory
// (parallel/checkpoint) of any world reads what any other has written, the plain optimizer's too.
// save() and load() of LibTorch's archives raise c10::NotImplementedError.
//
// Construction, step() and parameter_state() are collective over the group. Threads: one at a time.
// Errors, on every rank with the same sentence: ZeroRedundancyError where parameters or options do
// not fit or differ between the ranks, several ranks of the group hold pieces of a parameter
// (sharded_parameters.h), or a gradient is sparse; those of collectives.
//
// Corresponds to torch.distributed.optim.ZeroRedundancyOptimizer, which keeps whole parameters.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "parallel/base/arguments.h"
#include "parallel/manager/group_argument.h"
#include "parallel/nn/flat_buckets.h"
#include "parallel/nn/optimizer_state.h"

namespace meshrun {

class ZeroRedundancyError : public c10::ValueError {
  using ValueError::ValueError;
};

struct ZeroRedundancyOptions {
  // The ranks that share the states; the world where absent.
  GroupArgument group = {};
  // Gradients are equal on all ranks already, as after DistributedDataParallel: each rank takes its
  // slice and nothing is sent for them.
  BoolArgument gradients_are_reduced = false;
  // The ranks' mean gradient; false: their sum. Without effect on reduced gradients.
  BoolArgument mean = true;
  // 16-bit gradients are added, and a mean is divided, in float32 before they are rounded. For a
  // mean float16 therefore travels as float32, which holds every sum; bfloat16 does if the number
  // of ranks is not a power of two.
  BoolArgument use_fp32_reduction = true;
  double bucket_cap_mb = 25;
};

class ZeroRedundancyOptimizer : public torch::optim::Optimizer, public ParameterStates {
 public:
  using ParamGroups = std::vector<torch::optim::OptimizerParamGroup>;

  ZeroRedundancyOptimizer(const ParamGroups& groups, const torch::optim::AdamOptions& defaults,
                          const ZeroRedundancyOptions& options = {});
  ZeroRedundancyOptimizer(const ParamGroups& groups, const torch::optim::AdamWOptions& defaults,
                          const ZeroRedundancyOptions& options = {});
  ZeroRedundancyOptimizer(const ParamGroups& groups, const torch::optim::SGDOptions& defaults,
                          const ZeroRedundancyOptions& options = {});
  template <typename Defaults>
  ZeroRedundancyOptimizer(const std::vector<at::Tensor>& parameters, const Defaults& defaults,
                          const ZeroRedundancyOptions& options = {})
      : ZeroRedundancyOptimizer(ParamGroups{torch::optim::OptimizerParamGroup(parameters)},
                                defaults, options) {}

  at::Tensor step(LossClosure closure = nullptr) override;

  const torch::optim::Optimizer& stepped_optimizer() const override { return *inner_; }
  // Collective.
  ParameterState parameter_state(const at::Tensor& parameter) override;
  void set_parameter_state(const at::Tensor& parameter, const ParameterState& state) override;
  std::optional<Slices> parameter_slices(const at::Tensor& parameter) override;
  void set_parameter_slices(const at::Tensor& parameter, const ParameterState& state) override;

  // What the next step() takes of the gradients as they are: this rank's slice of each parameter's
  // reduced gradient, flat, perhaps empty; undefined: no rank has a gradient. Collective.
  struct ReducedGradient {
    at::Tensor parameter;
    at::Tensor slice;
  };
  std::vector<ReducedGradient> reduced_gradients();
  const GroupArgument::Handle& group() const { return group_; }

  // Bytes of this rank's moments.
  int64_t state_bytes();

  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  // A parameter, and this rank's piece of it.
  struct Slot {
    at::Tensor parameter;
    at::Tensor piece;    // flat, may be empty; a view of its bucket's slice
    int64_t bucket = 0;  // in which it is,
    int64_t index = 0;   // at this place
    size_t group = 0;    // of param_groups()
    c10::ScalarType dtype = c10::ScalarType::Undefined;  // as constructed
  };
  ZeroRedundancyOptimizer(const ParamGroups& groups,
                          std::unique_ptr<torch::optim::OptimizerOptions> defaults,
                          const ZeroRedundancyOptions& options);
  // Collective: raises on all ranks if one has a problem.
  template <typename Inner, typename Defaults>
  void build(const Defaults& defaults, const ZeroRedundancyOptions& options);
  void make_slots(int64_t bucket_bytes);
  std::string find_problem() const;
  // Which parameters have a gradient on some rank.
  std::vector<uint8_t> agree_on_gradients();
  void reduce_gradients(const std::vector<uint8_t>& reached);
  void gather_parameters();
  const Slot* find(const at::Tensor& parameter) const;
  // By rank: the elements of the flattened parameter that it has.
  std::vector<SplitRange> pieces_of(const Slot& slot) const;
  std::vector<int64_t> slice_sizes(const detail::FlatBucket& bucket) const;

  GroupArgument::Handle group_;
  bool gradients_are_reduced_ = false;
  bool mean_ = true;
  bool use_fp32_ = true;
  std::vector<Slot> slots_;
  std::unordered_map<const c10::TensorImpl*, size_t> places_;  // of parameters among them
  std::vector<detail::FlatBucket> buckets_;
  std::vector<at::Tensor> slices_;  // of the buckets: this rank's parameters
  std::unique_ptr<torch::optim::Optimizer> inner_;
  // While it lives, is_reduced_in_step() of the parameters; null if gradients come reduced.
  std::shared_ptr<const bool> reduces_in_step_;
};

// Whether a ZeroRedundancyOptimizer of several ranks has the parameter and adds its gradients up
// within step(), so that the gradient is this rank's own. Threads: any.
bool is_reduced_in_step(const at::Tensor& parameter);

}  // namespace meshrun
