// Padding: a rank pads the ends that it has, and gathers what a mode reads from elsewhere.
#include <algorithm>
#include <utility>
#include <vector>

#include "ATen/ops/_pad_circular.h"
#include "ATen/ops/constant_pad_nd.h"
#include "ATen/ops/index_select.h"
#include "ATen/ops/reflection_pad1d.h"
#include "ATen/ops/reflection_pad2d.h"
#include "ATen/ops/reflection_pad3d.h"
#include "ATen/ops/replication_pad1d.h"
#include "ATen/ops/replication_pad2d.h"
#include "ATen/ops/replication_pad3d.h"
#include "c10/util/SmallVector.h"
#include "fmt/format.h"
#include "parallel/base/traced_calls.h"
#include "parallel/collectives/call/pieces.h"
#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/dispatch/operator_table.h"
#include "parallel/shard/operators/windows.h"
#include "parallel/shard/redistribute/redistribution_plans.h"

namespace meshrun {
namespace {

enum class Mode : uint8_t { kConstant, kReflect, kReplicate, kCircular };

// The rule of window plans whose key has the mode and the widths.
const char kPaddingRule = 0;

// By dimension; `pad` begins with the last one.
struct Pads {
  Pads(const at::Tensor& self, at::IntArrayRef pad, Mode mode);

  std::vector<int64_t> low, high, outputs;
  // `pad` with zeros for the dimensions that are cut.
  std::vector<int64_t> uncut(const WindowPlan& plan) const;
  size_t count = 0;  // dimensions that `pad` names
};

Pads::Pads(const at::Tensor& self, at::IntArrayRef pad, Mode mode)
    : low(static_cast<size_t>(self.dim())), high(low), count(pad.size() / 2) {
  if (pad.size() % 2 != 0 || count > low.size()) {
    throw ShardTensorError(
        fmt::format("pad: {} for a tensor of {}", to_words(pad), to_words(self.sizes())));
  }
  for (size_t i = 0; i < count; ++i) {
    low[low.size() - 1 - i] = pad[2 * i];
    high[low.size() - 1 - i] = pad[2 * i + 1];
  }
  for (size_t d = 0; d < low.size(); ++d) {
    const int64_t extent = self.size(static_cast<int64_t>(d));
    outputs.push_back(extent + low[d] + high[d]);
    const int64_t most = mode == Mode::kReflect ? extent - 1 : extent;
    const bool is_too_wide = (mode == Mode::kReflect || mode == Mode::kCircular) &&
                             std::max(low[d], high[d]) > std::max<int64_t>(most, 0);
    const bool reads_nothing = mode != Mode::kConstant && extent == 0 && outputs[d] > 0;
    if (outputs[d] < 0 || is_too_wide || reads_nothing) {
      throw ShardTensorError(
          fmt::format("pad: {} and {} for an extent of {}", low[d], high[d], extent));
    }
  }
}

std::vector<int64_t> Pads::uncut(const WindowPlan& plan) const {
  std::vector<int64_t> pad;
  for (size_t i = 0; i < count; ++i) {
    const size_t d = low.size() - 1 - i;
    const bool is_cut = plan.cut(static_cast<int64_t>(d)) != nullptr;
    pad.push_back(is_cut ? 0 : low[d]);
    pad.push_back(is_cut ? 0 : high[d]);
  }
  return pad;
}

std::vector<WindowedDim> windows_of(const at::Tensor& self, const Pads& pads, Mode mode) {
  std::vector<WindowedDim> windows;
  for (size_t d = 0; d < pads.low.size(); ++d) {
    const int64_t last = self.size(static_cast<int64_t>(d)) - 1;
    if (mode == Mode::kConstant || mode == Mode::kCircular) {
      windows.push_back(WindowedDim::sliding(pads.outputs[d], 1, 1, pads.low[d], 1));
      continue;
    }
    std::vector<int64_t> positions;
    for (int64_t output = 0; output < pads.outputs[d]; ++output) {
      int64_t position = output - pads.low[d];
      if (mode == Mode::kReplicate) {
        position = std::clamp<int64_t>(position, 0, last);
      } else if (position < 0) {
        position = -position;
      } else if (position > last) {
        position = 2 * last - position;
      }
      positions.push_back(position);
    }
    windows.push_back(WindowedDim::picking(std::move(positions), pads.low[d]));
  }
  return windows;
}

at::Tensor pad_locally(const at::Tensor& local, at::IntArrayRef pad, Mode mode,
                       const at::Scalar& value) {
  const size_t dims = pad.size() / 2;
  switch (mode) {
    case Mode::kConstant:
      return at::constant_pad_nd(local, pad, value);
    case Mode::kCircular:
      return at::_pad_circular(local, pad);
    case Mode::kReflect:
      return dims == 1   ? at::reflection_pad1d(local, pad)
             : dims == 2 ? at::reflection_pad2d(local, pad)
                         : at::reflection_pad3d(local, pad);
    case Mode::kReplicate:
      break;
  }
  return dims == 1   ? at::replication_pad1d(local, pad)
         : dims == 2 ? at::replication_pad2d(local, pad)
                     : at::replication_pad3d(local, pad);
}

at::Tensor pad(const at::Tensor& self, at::IntArrayRef pad, Mode mode, const at::Scalar& value) {
  const Pads pads(self, pad, mode);
  const SpecPtr spec = windowed_spec(spec_of(self), {});
  const std::vector<WindowedDim> windows = windows_of(self, pads, mode);
  c10::SmallVector<int64_t, 24> key = {rule_number(&kPaddingRule), static_cast<int64_t>(mode)};
  key.append(pads.low.begin(), pads.low.end());
  key.append(pads.high.begin(), pads.high.end());
  const WindowPlan plan(spec, {.periodic = mode == Mode::kCircular}, key, [&] { return windows; });
  const at::Tensor local = to_local(redistribute(self, spec));
  at::Tensor result = plan.gather(local, value);
  const std::vector<int64_t> uncut = pads.uncut(plan);
  const bool pads_uncut =
      std::any_of(uncut.begin(), uncut.end(), [](int64_t count) { return count != 0; });
  const bool is_picked = mode == Mode::kReflect || mode == Mode::kReplicate;
  if (!plan.computes()) {
    return from_local(plan.nothing(result, is_picked && pads_uncut), plan.result());
  }
  if (is_picked) {
    for (const WindowPlan::Cut& cut : plan.cuts()) {
      const WindowedDim& window = windows[static_cast<size_t>(cut.dim)];
      std::vector<int64_t> positions;
      for (int64_t output = cut.owned.begin; output < cut.owned.end; ++output) {
        positions.push_back(window.reads(output).begin - cut.range.begin);
      }
      result = result.index_select(cut.dim, constant(positions).to(local.device()));
    }
  }
  if (pads_uncut) result = pad_locally(result, uncut, mode, value);
  if (result.is_alias_of(local)) result = result.clone();
  return from_local(result, plan.result());
}

at::Tensor constant_pad(const at::Tensor& self, at::IntArrayRef counts, const at::Scalar& value) {
  return pad(self, counts, Mode::kConstant, value);
}

template <Mode mode>
at::Tensor pad_as(const at::Tensor& self, at::IntArrayRef counts) {
  return pad(self, counts, mode, 0);
}

const Movement kConstant = {"any Shard, Replicate", "nothing; a Partial is reduced", "nothing"};
const Movement kFromElsewhere = {"any Shard, Replicate",
                                 "what the mode reads from other ranks' pieces; a Partial is "
                                 "reduced",
                                 "the same, back"};

const bool kRegistered =
    OperatorFamily("padding")
        .above_autograd("aten::constant_pad_nd", &constant_pad, kConstant)
        .above_autograd("aten::reflection_pad1d", &pad_as<Mode::kReflect>, kFromElsewhere)
        .above_autograd("aten::reflection_pad2d", &pad_as<Mode::kReflect>, kFromElsewhere)
        .above_autograd("aten::reflection_pad3d", &pad_as<Mode::kReflect>, kFromElsewhere)
        .above_autograd("aten::replication_pad1d", &pad_as<Mode::kReplicate>, kFromElsewhere)
        .above_autograd("aten::replication_pad2d", &pad_as<Mode::kReplicate>, kFromElsewhere)
        .above_autograd("aten::replication_pad3d", &pad_as<Mode::kReplicate>, kFromElsewhere)
        .above_autograd("aten::_pad_circular", &pad_as<Mode::kCircular>, kFromElsewhere)
        .registered();

}  // namespace
}  // namespace meshrun
