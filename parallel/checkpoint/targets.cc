#include "parallel/checkpoint/targets.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "parallel/base/sharded_key.h"
#include "parallel/checkpoint/file_tensors.h"

namespace meshrun::detail {
namespace {

// The moment that the optimizer has, if it can take the new values; else undefined. So a load takes
// no memory for a second one.
at::Tensor reusable(const Part& part, const std::string& moment,
                    const std::optional<ParameterStates::Slices>& slices,
                    torch::optim::Optimizer& optimizer) {
  const ParameterState state = slices ? slices->state : parameter_state(optimizer, part.tensor);
  const auto found = state.moments.find(moment);
  if (found == state.moments.end()) return {};
  const at::Tensor& own = found->second;
  if (!slices &&
      (own.sizes() != part.tensor.sizes() || is_sharded(own) != is_sharded(part.tensor) ||
       own.strides() != part.tensor.strides())) {
    return {};
  }
  return own.options().type_equal(part.tensor.options()) ? own : at::Tensor();
}

}  // namespace

Target::Target(FileKind kind, std::string name, TensorInfo info, at::Tensor local, CutPtr cut)
    : kind_(kind),
      name_(std::move(name)),
      info_(std::move(info)),
      element_(ElementBytes(info_.dtype).value()),
      tensor_(std::move(local)),
      cut_(std::move(cut)) {
  const at::NoGradGuard no_grad;
  size_ = stored_bytes(info_);
  if (tensor_.is_conj() || tensor_.is_neg()) {
    stage_ = at::empty(tensor_.sizes(), tensor_.options());
  }
  bytes_ = StoredValues(stage_.defined() ? stage_ : tensor_);
  memory_ = bytes_.mutable_memory();
}

Region Target::region() const {
  return cut_ == nullptr ? Region::whole(info_.shape) : stored_region(cut_->own(), info_);
}

void Target::visit_needed(const std::function<void(uint64_t begin, uint64_t end)>& visit) const {
  visit_runs(region(), 0, std::numeric_limits<int64_t>::max(), [&](const RegionRun& run) {
    const uint64_t begin = static_cast<uint64_t>(run.in_tensor) * element_;
    visit(begin, begin + static_cast<uint64_t>(run.count) * element_);
  });
}

void Target::take_own(uint64_t from, std::string_view bytes) {
  if (memory_ != nullptr) {
    std::memcpy(memory_ + from, bytes.data(), bytes.size());
  } else {
    bytes_.write(from, bytes);
  }
}

void Target::take(uint64_t from, std::string_view bytes) {
  if (cut_ == nullptr) return take_own(from, bytes);
  // Borders of chunks may lie within an element.
  const auto first = static_cast<int64_t>(from / element_);
  const auto last = static_cast<int64_t>((from + bytes.size() + element_ - 1) / element_);
  visit_runs(region(), first, last, [&](const RegionRun& run) {
    const uint64_t run_begin = static_cast<uint64_t>(run.in_tensor) * element_;
    const uint64_t run_end = run_begin + static_cast<uint64_t>(run.count) * element_;
    const uint64_t begin = std::max(run_begin, from);
    const uint64_t end = std::min(run_end, from + bytes.size());
    if (begin >= end) return;
    take_own(static_cast<uint64_t>(run.in_region) * element_ + (begin - run_begin),
             bytes.substr(begin - from, end - begin));
  });
}

void Target::finish() {
  const at::NoGradGuard no_grad;
  if (stage_.defined()) {
    tensor_.copy_(stage_);
  } else if (memory_ != nullptr && !tensor_.is_inference()) {
    // What was written through its memory, as an operator would have counted it.
    tensor_.unsafeGetTensorImpl()->bump_version();
  }
}

Targets::Targets(const Parts& parts, torch::optim::Optimizer& optimizer,
                 const ByFile<Outline>& outlines)
    : optimizer_(optimizer) {
  const at::NoGradGuard no_grad;
  const auto add = [&](FileKind kind, const std::string& name, at::Tensor local, CutPtr cut) {
    const auto found = outlines[kind].find(name);
    if (found == outlines[kind].end()) return;
    list_.emplace_back(kind, name, found->second, std::move(local), std::move(cut));
  };
  auto* const sliced = dynamic_cast<ParameterStates*>(&optimizer);
  const std::vector<std::string> moments = moment_names(optimizer);
  for (const Part& part : parts.list) {
    add(kModel, part.name, part.local(), part.cut);
    if (!part.is_parameter) continue;
    State& state = states_.emplace_back(State{&part, {}, {}});
    CutPtr cut = part.cut;
    std::optional<ParameterStates::Slices> slices;
    if (sliced != nullptr && part.cut == nullptr) {
      slices = sliced->parameter_slices(part.tensor);
      if (!slices) continue;
      cut = cut_of_slices(*slices, part.tensor.numel());
    }
    for (const std::string& moment : moments) {
      const std::string key = moment_key(moment, part.name);
      if (!outlines[kOptimizer].contains(key)) continue;
      // In the parameter's order of memory, on which fused steps rely.
      at::Tensor own = reusable(part, moment, slices, optimizer);
      if (!own.defined() && slices) own = at::empty(cut->own().size, part.tensor.options());
      if (!own.defined()) own = at::empty_like(part.tensor.detach(), at::MemoryFormat::Preserve);
      state.state.moments[moment] = own;
      add(kOptimizer, key, local_part(own), cut);
    }
    const std::string key = moment_key(kStepName, part.name);
    if (!outlines[kOptimizer].contains(key)) continue;
    state.step = at::zeros({}, at::kLong);
    add(kOptimizer, key, state.step, nullptr);
  }
  for (const Part& part : parts.kept) add(kKept, part.name, part.local(), part.cut);
}

void Targets::commit() {
  for (Target& target : list_) target.finish();
  auto* const sliced = dynamic_cast<ParameterStates*>(&optimizer_);
  for (State& state : states_) {
    if (state.step.defined()) state.state.step = state.step.item<int64_t>();
    if (sliced != nullptr && state.part->cut == nullptr) {
      sliced->set_parameter_slices(state.part->tensor, state.state);
    } else {
      set_parameter_state(optimizer_, state.part->tensor, state.state);
    }
  }
}

}  // namespace meshrun::detail
