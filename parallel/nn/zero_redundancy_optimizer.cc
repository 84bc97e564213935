#include "parallel/nn/zero_redundancy_optimizer.h"

#include <ATen/ATen.h>
#include <torch/ordered_dict.h>

#include <map>
#include <set>
#include <sstream>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <type_traits>
#include <utility>

#include "core/mutex.h"
#include "parallel/collectives/all_gather_v.h"
#include "parallel/collectives/all_reduce.h"
#include "parallel/collectives/reduce_scatter_v.h"
#include "parallel/nn/module_agreement.h"
#include "parallel/nn/shard_conflict.h"

namespace meshrun {
namespace {

using at::Tensor;
using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamGroup;

template <typename Options>
std::string describe(const Options& options) {
  std::ostringstream text;
  text << "lr=" << options.lr() << " weight_decay=" << options.weight_decay();
  if constexpr (std::is_same_v<Options, torch::optim::SGDOptions>) {
    text << " momentum=" << options.momentum() << " dampening=" << options.dampening()
         << " nesterov=" << options.nesterov();
  } else {
    text << " betas=" << std::get<0>(options.betas()) << "," << std::get<1>(options.betas())
         << " eps=" << options.eps() << " amsgrad=" << options.amsgrad();
  }
  return text.str();
}

// Started one ahead, so that the wire is busy while the last one is put in its place.
template <typename Start, typename Finish>
void pipeline(size_t count, const Start& start, const Finish& finish) {
  AsyncTensor next;
  if (count > 0) next = start(0);
  for (size_t i = 0; i < count; ++i) {
    AsyncTensor current = std::exchange(next, i + 1 < count ? start(i + 1) : AsyncTensor());
    finish(i, current.wait());
  }
}

// Parameters whose gradients a ZeroRedundancyOptimizer adds up within step(). A weak reference
// keeps the address of a parameter that is gone from being used again.
class ReducedInStep {
 public:
  void add(const Tensor& parameter, const std::shared_ptr<const bool>& owner) {
    const MutexLock lock(mu_);
    std::erase_if(entries_, [](const auto& entry) {
      return entry.second.alive.expired() || entry.second.owner.expired();
    });
    entries_.insert_or_assign(parameter.unsafeGetTensorImpl(),
                              Entry{Weak(parameter.getIntrusivePtr()), owner});
  }
  bool has(const Tensor& parameter) const {
    const MutexLock lock(mu_);
    const auto found = entries_.find(parameter.unsafeGetTensorImpl());
    return found != entries_.end() && !found->second.owner.expired();
  }

 private:
  using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  struct Entry {
    Weak alive;
    std::weak_ptr<const bool> owner;
  };
  mutable Mutex mu_;
  std::map<const c10::TensorImpl*, Entry> entries_ MESHRUN_GUARDED_BY(mu_);
};

ReducedInStep& reduced_in_step() {
  static auto& entries = *new ReducedInStep;
  return entries;
}

Tensor narrowed(const Tensor& tensor, const SplitRange& range) {
  return tensor.narrow(0, range.begin, range.size());
}

}  // namespace

template <typename Inner, typename Defaults>
void ZeroRedundancyOptimizer::build(const Defaults& defaults,
                                    const ZeroRedundancyOptions& options) {
  std::string problem;
  std::ostringstream line;
  line << c10::demangle(typeid(Inner).name()) << " reduced=" << gradients_are_reduced_
       << " mean=" << mean_ << " fp32=" << use_fp32_ << " bucket=" << options.bucket_cap_mb << " | "
       << describe(defaults);
  torch::OrderedDict<std::string, Tensor> parameters("parameter");
  for (size_t group = 0; group < param_groups_.size(); ++group) {
    const auto* own = dynamic_cast<const Defaults*>(&param_groups_[group].options());
    if (own == nullptr) {
      problem = c10::str("the options of parameter group ", group, " are of another optimizer");
      break;
    }
    line << " | " << describe(*own);
    for (const Tensor& parameter : param_groups_[group].params()) {
      if (!parameter.defined()) problem = "a parameter is undefined";
      if (!parameter.defined() || !parameter.requires_grad()) continue;
      places_.emplace(parameter.unsafeGetTensorImpl(), slots_.size());
      slots_.push_back({.parameter = parameter, .group = group, .dtype = parameter.scalar_type()});
      parameters.insert(std::to_string(slots_.size() - 1), parameter);
    }
  }
  if (problem.empty()) problem = detail::find_shard_conflict({}, parameters, group_);
  if (problem.empty()) problem = find_problem();
  if (problem.empty() && !(options.bucket_cap_mb > 0)) {
    problem = c10::str("bucket_cap_mb must be positive, got ", options.bucket_cap_mb);
  }
  const c10::Device device =
      slots_.empty() ? c10::Device(c10::kCPU) : slots_.front().parameter.device();
  const std::string difference =
      detail::find_difference(*group_, device, line.str(), detail::describe(parameters), problem);
  if (!difference.empty()) throw ZeroRedundancyError("ZeroRedundancyOptimizer: " + difference);

  constexpr double kMebibyte = 1024 * 1024;
  make_slots(static_cast<int64_t>(options.bucket_cap_mb * kMebibyte));
  ParamGroups pieces;
  for (const OptimizerParamGroup& group : param_groups_) {
    pieces.emplace_back(std::vector<Tensor>(), group.options().clone());
  }
  for (const Slot& slot : slots_) pieces[slot.group].params().push_back(slot.piece);
  inner_ = std::make_unique<Inner>(pieces, defaults);
  if (gradients_are_reduced_ || group_->getSize() == 1) return;
  reduces_in_step_ = std::make_shared<const bool>(true);
  for (const Slot& slot : slots_) reduced_in_step().add(slot.parameter, reduces_in_step_);
}

ZeroRedundancyOptimizer::ZeroRedundancyOptimizer(const ParamGroups& groups,
                                                 std::unique_ptr<OptimizerOptions> defaults,
                                                 const ZeroRedundancyOptions& options)
    : Optimizer(groups, std::move(defaults)),
      group_(options.group.get()),
      gradients_are_reduced_(options.gradients_are_reduced),
      mean_(options.mean),
      use_fp32_(options.use_fp32_reduction) {}

ZeroRedundancyOptimizer::ZeroRedundancyOptimizer(const ParamGroups& groups,
                                                 const torch::optim::AdamOptions& defaults,
                                                 const ZeroRedundancyOptions& options)
    : ZeroRedundancyOptimizer(groups, std::make_unique<torch::optim::AdamOptions>(defaults),
                              options) {
  build<torch::optim::Adam>(defaults, options);
}

ZeroRedundancyOptimizer::ZeroRedundancyOptimizer(const ParamGroups& groups,
                                                 const torch::optim::AdamWOptions& defaults,
                                                 const ZeroRedundancyOptions& options)
    : ZeroRedundancyOptimizer(groups, std::make_unique<torch::optim::AdamWOptions>(defaults),
                              options) {
  build<torch::optim::AdamW>(defaults, options);
}

ZeroRedundancyOptimizer::ZeroRedundancyOptimizer(const ParamGroups& groups,
                                                 const torch::optim::SGDOptions& defaults,
                                                 const ZeroRedundancyOptions& options)
    : ZeroRedundancyOptimizer(groups, std::make_unique<torch::optim::SGDOptions>(defaults),
                              options) {
  build<torch::optim::SGD>(defaults, options);
}

void ZeroRedundancyOptimizer::make_slots(int64_t bucket_bytes) {
  const int size = group_->getSize();
  const int rank = group_->getRank();
  std::vector<detail::FlatTensor> tensors;
  for (const Slot& slot : slots_) {
    tensors.push_back(
        {slot.parameter.numel(), slot.parameter.element_size(), static_cast<int64_t>(slot.dtype)});
  }
  buckets_ = detail::make_flat_buckets(tensors, bucket_bytes);
  for (size_t b = 0; b < buckets_.size(); ++b) {
    const detail::FlatBucket& bucket = buckets_[b];
    const Tensor& first = slots_[static_cast<size_t>(bucket.tensors.front())].parameter;
    const SplitRange slice = split_range(bucket.numel(), size, rank);
    slices_.push_back(at::empty({slice.size()}, first.options().requires_grad(false)));
    int64_t begin = 0;
    for (size_t i = 0; i < bucket.tensors.size(); ++i) {
      Slot& slot = slots_[static_cast<size_t>(bucket.tensors[i])];
      slot.bucket = static_cast<int64_t>(b);
      slot.index = static_cast<int64_t>(i);
      const int64_t numel = bucket.piece(slot.index, size, rank).size();
      slot.piece = slices_[b].narrow(0, begin, numel);
      begin += numel;
    }
  }
}

std::string ZeroRedundancyOptimizer::find_problem() const {
  if (slots_.empty()) return "no parameter requires a gradient";
  size_t count = 0;
  for (const OptimizerParamGroup& group : param_groups_) {
    for (const Tensor& parameter : group.params()) count += parameter.requires_grad();
  }
  if (count != slots_.size()) {
    return c10::str("it was made for ", slots_.size(), " parameters that are trained, and has ",
                    count, " now");
  }
  const c10::Device device = slots_.front().parameter.device();
  std::set<const c10::TensorImpl*> seen;
  for (size_t i = 0; i < slots_.size(); ++i) {
    const auto& [parameter, piece, bucket, index, group, dtype] = slots_[i];
    const auto text = [&](const auto&... words) { return c10::str("parameter ", i, words...); };
    if (!seen.insert(parameter.unsafeGetTensorImpl()).second) return text(" is given twice");
    if (!c10::isFloatingType(dtype)) return text(" is of ", dtype, ", not a floating-point type");
    if (parameter.scalar_type() != dtype) {
      return text(" was of ", dtype, " and is of ", parameter.scalar_type());
    }
    if (parameter.layout() != at::kStrided) return text(" is not dense");
    if (parameter.device() != device) {
      return text(" is on ", parameter.device(), ", the first one on ", device);
    }
    const Tensor& gradient = parameter.grad();
    if (gradient.defined() && gradient.layout() != at::kStrided) {
      return text(" has a sparse gradient");
    }
  }
  return "";
}

// --- a step ---

std::vector<uint8_t> ZeroRedundancyOptimizer::agree_on_gradients() {
  const std::string problem = find_problem();
  const c10::Device device = slots_.front().piece.device();
  // After the parameters: whether a rank has a problem. Float, which every backend reduces.
  std::vector<float> own;
  for (const Slot& slot : slots_) own.push_back(slot.parameter.grad().defined() ? 1 : 0);
  own.push_back(problem.empty() ? 0 : 1);
  const Tensor flags = at::tensor(own).to(device);
  const Tensor all =
      detail::all_reduce(group_, flags, c10d::ReduceOp::MAX).wait().cpu().to(at::kByte);
  const auto* begin = all.const_data_ptr<uint8_t>();
  std::vector<uint8_t> reached(begin, begin + all.numel());
  if (reached.back() != 0) {
    throw ZeroRedundancyError("ZeroRedundancyOptimizer: " +
                              detail::find_difference(*group_, device, "", "", problem));
  }
  reached.pop_back();
  return reached;
}

void ZeroRedundancyOptimizer::reduce_gradients(const std::vector<uint8_t>& reached) {
  const int size = group_->getSize();
  const int rank = group_->getRank();
  // In which a bucket is added up and divided. The division of a bfloat16 sum, which overflows no
  // sooner than a float32 one, by a power of two rounds nothing.
  const auto sum_type = [&](size_t b) {
    const at::ScalarType type = slices_[b].scalar_type();
    const bool is_exact = type == at::kBFloat16 && (size & (size - 1)) == 0;
    const bool divides = mean_ && size > 1 && use_fp32_ && !is_exact;
    return divides && at::isReducedFloatingType(type) ? at::kFloat : type;
  };
  // Views of the result, in the bucket's order.
  const auto hand_on = [&](size_t b, const Tensor& sum) {
    if (mean_ && size > 1) sum.div_(size);
    const Tensor reduced = sum.to(slices_[b].scalar_type());
    int64_t begin = 0;
    for (const int64_t i : buckets_[b].tensors) {
      const Slot& slot = slots_[static_cast<size_t>(i)];
      if (reached[static_cast<size_t>(i)] != 0) {
        slot.piece.mutable_grad() = reduced.narrow(0, begin, slot.piece.numel());
      }
      begin += slot.piece.numel();
    }
  };
  if (gradients_are_reduced_) {
    for (size_t i = 0; i < slots_.size(); ++i) {
      if (reached[i] == 0) continue;
      const auto& [parameter, piece, bucket, index, group, dtype] = slots_[i];
      const SplitRange range = buckets_[static_cast<size_t>(bucket)].piece(index, size, rank);
      piece.mutable_grad() = parameter.grad().defined()
                                 ? narrowed(parameter.grad().detach().reshape({-1}), range)
                                 : at::zeros_like(piece);
    }
    return;
  }
  pipeline(
      buckets_.size(),
      [&](size_t b) {
        const detail::FlatBucket& bucket = buckets_[b];
        const Tensor flat = at::empty({bucket.numel()}, slices_[b].options().dtype(sum_type(b)));
        for (size_t i = 0; i < bucket.tensors.size(); ++i) {
          const Tensor& parameter = slots_[static_cast<size_t>(bucket.tensors[i])].parameter;
          const Tensor part = narrowed(flat, {bucket.begins[i], bucket.begins[i + 1]});
          const Tensor& gradient = parameter.grad();
          if (gradient.defined()) {
            part.view(parameter.sizes()).copy_(gradient);
          } else {
            part.zero_();
          }
        }
        return reduce_scatter_v_async(flat, slice_sizes(bucket), 0, use_fp32_, group_);
      },
      hand_on);
}

std::vector<ZeroRedundancyOptimizer::ReducedGradient> ZeroRedundancyOptimizer::reduced_gradients() {
  const at::NoGradGuard no_grad;
  reduce_gradients(agree_on_gradients());
  std::vector<ReducedGradient> gradients;
  for (const Slot& slot : slots_) {
    gradients.push_back({slot.parameter, slot.piece.grad()});
    slot.piece.mutable_grad().reset();
  }
  return gradients;
}

bool is_reduced_in_step(const Tensor& parameter) { return reduced_in_step().has(parameter); }

void ZeroRedundancyOptimizer::gather_parameters() {
  pipeline(
      buckets_.size(),
      [&](size_t b) {
        return all_gather_v_async(slices_[b], slice_sizes(buckets_[b]), 0, true, group_);
      },
      [&](size_t b, const Tensor& whole) {
        const detail::FlatBucket& bucket = buckets_[b];
        for (size_t i = 0; i < bucket.tensors.size(); ++i) {
          const Tensor& parameter = slots_[static_cast<size_t>(bucket.tensors[i])].parameter;
          const Tensor part = narrowed(whole, {bucket.begins[i], bucket.begins[i + 1]});
          parameter.copy_(part.view(parameter.sizes()));
        }
      });
}

Tensor ZeroRedundancyOptimizer::step(LossClosure closure) {
  Tensor loss;
  if (closure) {
    const at::AutoGradMode with_gradients(true);
    loss = closure();
  }
  const at::NoGradGuard no_grad;
  const std::vector<uint8_t> reached = agree_on_gradients();
  for (size_t group = 0; group < param_groups_.size(); ++group) {
    inner_->param_groups()[group].set_options(param_groups_[group].options().clone());
  }
  reduce_gradients(reached);
  // The parameters may have been set from outside since the last step.
  for (const Slot& slot : slots_) {
    const SplitRange range = buckets_[static_cast<size_t>(slot.bucket)].piece(
        slot.index, group_->getSize(), group_->getRank());
    if (range.size() == 0) continue;
    slot.piece.copy_(narrowed(slot.parameter.reshape({-1}), range));
  }
  inner_->step();
  for (const Slot& slot : slots_) slot.piece.mutable_grad().reset();
  gather_parameters();
  return loss;
}

// --- states ---

std::vector<int64_t> ZeroRedundancyOptimizer::slice_sizes(const detail::FlatBucket& bucket) const {
  return compute_split_shapes(bucket.numel(), group_->getSize());
}

const ZeroRedundancyOptimizer::Slot* ZeroRedundancyOptimizer::find(const Tensor& parameter) const {
  const auto place = places_.find(parameter.unsafeGetTensorImpl());
  return place == places_.end() ? nullptr : &slots_[place->second];
}

std::vector<SplitRange> ZeroRedundancyOptimizer::pieces_of(const Slot& slot) const {
  std::vector<SplitRange> pieces;
  for (int rank = 0; rank < group_->getSize(); ++rank) {
    pieces.push_back(
        buckets_[static_cast<size_t>(slot.bucket)].piece(slot.index, group_->getSize(), rank));
  }
  return pieces;
}

ParameterState ZeroRedundancyOptimizer::parameter_state(const Tensor& parameter) {
  const Slot* slot = find(parameter);
  if (slot == nullptr) return {};
  // Every rank has a state for its piece, be it empty, or none has.
  ParameterState state = meshrun::parameter_state(*inner_, slot->piece);
  std::vector<int64_t> sizes;
  for (const SplitRange& piece : pieces_of(*slot)) sizes.push_back(piece.size());
  for (auto& [name, moment] : state.moments) {
    moment = all_gather_v(moment, sizes, 0, true, group_).view(parameter.sizes());
  }
  return state;
}

void ZeroRedundancyOptimizer::set_parameter_state(const Tensor& parameter,
                                                  const ParameterState& state) {
  const Slot* slot = find(parameter);
  if (slot == nullptr) return;
  ParameterState own = state;
  for (auto& [name, moment] : own.moments) {
    TORCH_CHECK_VALUE(moment.sizes() == parameter.sizes(), "ZeroRedundancyOptimizer: ", name,
                      " of a parameter of shape ", parameter.sizes(), " has the shape ",
                      moment.sizes());
    const SplitRange range = pieces_of(*slot)[static_cast<size_t>(group_->getRank())];
    moment = narrowed(moment.detach().reshape({-1}), range)
                 .to(slot->piece.options(), /*non_blocking=*/false, /*copy=*/true);
  }
  meshrun::set_parameter_state(*inner_, slot->piece, own);
}

std::optional<ParameterStates::Slices> ZeroRedundancyOptimizer::parameter_slices(
    const Tensor& parameter) {
  const Slot* slot = find(parameter);
  if (slot == nullptr) return std::nullopt;
  return Slices{group_, pieces_of(*slot), meshrun::parameter_state(*inner_, slot->piece)};
}

void ZeroRedundancyOptimizer::set_parameter_slices(const Tensor& parameter,
                                                   const ParameterState& state) {
  const Slot* slot = find(parameter);
  if (slot == nullptr) return;
  for (const auto& [name, moment] : state.moments) {
    TORCH_CHECK_VALUE(moment.sizes() == slot->piece.sizes(), "ZeroRedundancyOptimizer: a slice of ",
                      name, " has the shape ", slot->piece.sizes(), " here, not ", moment.sizes());
  }
  meshrun::set_parameter_state(*inner_, slot->piece, state);
}

int64_t ZeroRedundancyOptimizer::state_bytes() {
  int64_t bytes = 0;
  for (const Slot& slot : slots_) {
    for (const auto& [name, moment] : meshrun::parameter_state(*inner_, slot.piece).moments) {
      bytes += static_cast<int64_t>(moment.nbytes());
    }
  }
  return bytes;
}

void ZeroRedundancyOptimizer::save(torch::serialize::OutputArchive&) const {
  TORCH_CHECK_NOT_IMPLEMENTED(false,
                              "ZeroRedundancyOptimizer has no archive; see CheckpointDirectory");
}

void ZeroRedundancyOptimizer::load(torch::serialize::InputArchive&) {
  TORCH_CHECK_NOT_IMPLEMENTED(false,
                              "ZeroRedundancyOptimizer has no archive; see CheckpointDirectory");
}

}  // namespace meshrun
