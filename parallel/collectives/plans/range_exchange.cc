#include "parallel/collectives/plans/range_exchange.h"

#include <algorithm>
#include <utility>

#include "ATen/ops/cat.h"
#include "ATen/ops/full.h"
#include "ATen/ops/zeros.h"
#include "fmt/format.h"
#include "parallel/base/collective_errors.h"
#include "parallel/base/digest.h"
#include "parallel/collectives/call/autograd_node.h"
#include "parallel/comm/interface/call_check.h"

namespace meshrun {

struct RangeExchangeState : torch::CustomClassHolder {
  CollectivePtr collective;  // what is sent along dim, and received
  RangeTransfer transfer;
  int64_t own = 0;
  bool calls = false;
  bool is_identity = false;
};

namespace {

using StatePtr = c10::intrusive_ptr<RangeExchangeState>;

uint64_t digest_of(int64_t dim, const std::vector<int64_t>& sizes,
                   const std::vector<SplitRange>& ranges, bool periodic) {
  Digest digest;
  digest.add(dim).add(periodic).add(sizes);
  for (const SplitRange& range : ranges) digest.add(range.begin).add(range.end);
  return digest.value() | 1;  // 0: nothing to compare
}

std::string words_of(int64_t dim, const std::vector<int64_t>& sizes,
                     const std::vector<SplitRange>& ranges, bool periodic) {
  std::string text;
  for (const SplitRange& range : ranges) {
    text += fmt::format("{}[{}, {})", text.empty() ? "" : ", ", range.begin, range.end);
  }
  return fmt::format(" (of {}dim {} {} the ranges {})", periodic ? "periodic " : "", dim,
                     to_words(sizes), text);
}

at::Tensor joined(const at::Tensor& tensor, int64_t dim, const std::vector<at::Tensor>& parts) {
  if (parts.empty()) return tensor.narrow(dim, 0, 0);
  return parts.size() == 1 ? parts[0] : at::cat(parts, dim);
}

// The collective for a call with this tensor, which has `extent` along dim; a wrong one where it
// does not fit.
CollectivePtr checked(const RangeExchangeState& state, const at::Tensor& tensor, int64_t extent) {
  const CollectivePtr& collective = state.collective;
  if (collective->is_wrong()) return collective;
  const int64_t dim = collective->spec.cut.dim;
  std::string problem = tensor_problem(tensor);
  if (!problem.empty()) {
    // That is it.
  } else if (tensor.dim() <= dim) {
    problem =
        fmt::format("the tensor has {} dimensions, and the halo is of dim {}", tensor.dim(), dim);
  } else if (tensor.size(dim) != extent) {
    problem = fmt::format("the tensor has {} along dim {}, and {} is expected on rank {}",
                          tensor.size(dim), dim, extent, collective->rank);
  }
  if (problem.empty()) return collective;
  if (!state.calls) throw CollectiveArgumentError(problem);
  return with_problem(*collective, std::move(problem));
}

at::Tensor pack(const RangeExchangeState& state, const at::Tensor& tensor) {
  const int64_t dim = state.collective->spec.cut.dim;
  std::vector<at::Tensor> slices;
  for (const SplitRange& range : state.transfer.given) {
    slices.push_back(tensor.narrow(dim, range.begin, range.size()));
  }
  return joined(tensor, dim, slices);
}

// Pieces to halos; back: gradients of halos to slices of pieces. in_node: in the forward() of a
// node, where the grad mode is off.
at::Tensor travel(const RangeExchangeState& state, const at::Tensor& tensor, Pass pass,
                  WorkPtr* work, bool in_node = false) {
  const bool is_back = pass == Pass::kBackward;
  const CollectivePtr collective =
      checked(state, tensor, is_back ? state.transfer.num_received() : state.own);
  if (!state.calls) return tensor.narrow(collective->spec.cut.dim, 0, 0);
  const bool packs = !collective->is_wrong() && !is_back;
  const at::Tensor sent = packs ? pack(state, tensor) : tensor;
  if (in_node) return launch(*collective, sent, {pass, /*requires_grad=*/true, work});
  return differentiable(sent, collective, pass, work);
}

RangeExchange save(AutogradContext* ctx, const StatePtr& state, const at::Tensor& tensor) {
  // What no rank's backward sends has no number: some ranks make no node for it.
  if (state->calls && tensor.requires_grad())
    save_number(ctx, number_of_node(*state->collective->group, tensor));
  ctx->saved_data.emplace("state", at::IValue::make_capsule(state));
  return RangeExchange(state);
}

StatePtr saved(AutogradContext* ctx) {
  return c10::static_intrusive_pointer_cast<RangeExchangeState>(
      ctx->saved_data.at("state").toCapsule());
}

struct GatherRange : torch::autograd::Function<GatherRange> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& tensor, const StatePtr& state,
                            const c10::Scalar& padding) {
    const RangeExchange exchange = save(ctx, state, tensor);
    AsyncTensor halo = asynchronously([&](WorkPtr* work) {
      return travel(*state, tensor, Pass::kForward, work, tensor.requires_grad());
    });
    return exchange.assemble(tensor, halo.wait(), padding);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const NodeNumber::Scope scope(saved_number(ctx));
    return only_first(RangeExchange(saved(ctx)).scatter(grads[0]));
  }
};

struct ScatterRange : torch::autograd::Function<ScatterRange> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& ranges, const StatePtr& state) {
    const RangeExchange exchange = save(ctx, state, ranges);
    const at::Tensor halo = exchange.received_part(ranges);
    AsyncTensor returned = asynchronously([&](WorkPtr* work) {
      return travel(*state, halo, Pass::kBackward, work, ranges.requires_grad());
    });
    at::Tensor gradient = exchange.own_part(ranges);
    exchange.add(gradient, returned.wait());
    return gradient;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const NodeNumber::Scope scope(saved_number(ctx));
    return only_first(RangeExchange(saved(ctx)).gather(grads[0]));
  }
};

}  // namespace

RangeExchange::RangeExchange(IntArgument dim, const std::vector<int64_t>& sizes,
                             const std::vector<SplitRange>& ranges, const GroupArgument& group,
                             const Options& options)
    : state_(c10::make_intrusive<RangeExchangeState>()) {
  const CollectivePtr collective = make_collective(group);
  state_->collective = collective;
  CollectiveSpec& spec = collective->spec;
  spec.kind = CollectiveSpec::Kind::kAllToAllV;
  CallCheck check(options.problem);
  check.are_sizes(sizes, collective->world);
  check.require(ranges.size() == sizes.size(), [&] {
    return fmt::format("{} ranges are given for {} ranks", ranges.size(), collective->world);
  });
  state_->calls = options.compares || check.is_wrong();
  spec.problem = check.take_problem();
  if (collective->is_wrong()) return;
  state_->transfer = plan_ranges(sizes, ranges, collective->rank, options.periodic);
  const RangeTransfer& transfer = state_->transfer;
  const bool travels = anything_travels(sizes, ranges, options.periodic);
  state_->calls = state_->calls || travels;
  state_->own = sizes[static_cast<size_t>(collective->rank)];
  state_->is_identity = !state_->calls && transfer.extent() == state_->own &&
                        transfer.low_padding == 0 && transfer.high_padding == 0;
  spec.cut = {dim, Extents(transfer.sent.begin(), transfer.sent.end())};
  spec.received = {dim, Extents(transfer.received.begin(), transfer.received.end())};
  spec.agreed = digest_of(dim, sizes, ranges, options.periodic);
  spec.say([dim = int64_t{dim}, sizes, ranges, periodic = bool{options.periodic}] {
    return words_of(dim, sizes, ranges, periodic);
  });
}

RangeExchange::RangeExchange(StatePtr state) : state_(std::move(state)) {}
RangeExchange::RangeExchange(const RangeExchange&) = default;
RangeExchange& RangeExchange::operator=(const RangeExchange&) = default;
RangeExchange::~RangeExchange() = default;

int64_t RangeExchange::dim() const { return state_->collective->spec.cut.dim; }
const RangeTransfer& RangeExchange::transfer() const { return state_->transfer; }
bool RangeExchange::is_identity() const { return state_->is_identity; }

at::Tensor RangeExchange::gather(const at::Tensor& tensor, const c10::Scalar& padding) const {
  if (checked(*state_, tensor, state_->own)->is_wrong()) return receive(tensor);  // which raises
  if (state_->is_identity) return tensor;
  if (wants_gradient(tensor)) return GatherRange::apply(tensor, state_, padding);
  const c10::NoGradGuard no_grad;
  return assemble(tensor, receive(tensor), padding);
}

at::Tensor RangeExchange::scatter(const at::Tensor& ranges) const {
  return state_->is_identity ? ranges : ScatterRange::apply(ranges, state_);
}

at::Tensor RangeExchange::receive(const at::Tensor& tensor) const {
  return travel(*state_, tensor, Pass::kForward, nullptr);
}

AsyncTensor RangeExchange::receive_async(const at::Tensor& tensor) const {
  return asynchronously(
      [&](WorkPtr* work) { return travel(*state_, tensor, Pass::kForward, work); });
}

at::Tensor RangeExchange::send_back(const at::Tensor& halo) const {
  return travel(*state_, halo, Pass::kBackward, nullptr);
}

AsyncTensor RangeExchange::send_back_async(const at::Tensor& halo) const {
  return asynchronously(
      [&](WorkPtr* work) { return travel(*state_, halo, Pass::kBackward, work); });
}

at::Tensor RangeExchange::assemble(const at::Tensor& tensor, const at::Tensor& halo,
                                   const c10::Scalar& padding) const {
  return assemble_part(tensor, halo, {0, state_->transfer.extent()}, padding);
}

at::Tensor RangeExchange::assemble_part(const at::Tensor& tensor, const at::Tensor& halo,
                                        SplitRange part, const c10::Scalar& padding) const {
  const RangeTransfer& transfer = state_->transfer;
  const auto format = tensor.suggest_memory_format();
  std::vector<at::Tensor> slices;
  int64_t at = 0;
  // Those of the next `count` positions that are asked for: their first one, and how many.
  const auto next = [&](int64_t count) {
    const int64_t begin = std::max(part.begin - at, int64_t{0});
    const int64_t end = std::min(part.end - at, count);
    at += count;
    return SplitRange{begin, std::max(begin, end)};
  };
  const auto pad = [&](int64_t count) {
    at::DimVector shape(tensor.sizes());
    shape[static_cast<size_t>(dim())] = next(count).size();
    if (shape[static_cast<size_t>(dim())] == 0) return;
    slices.push_back(at::full(shape, padding, tensor.options()).contiguous(format));
  };
  pad(transfer.low_padding);
  for (const RangeTransfer::Part& run : transfer.parts) {
    const SplitRange taken = next(run.count);
    if (taken.size() == 0) continue;
    const at::Tensor& source = run.own ? tensor : halo;
    at::Tensor slice = source.narrow(dim(), run.begin + taken.begin, taken.size());
    slices.push_back(run.own ? slice : slice.contiguous(format));
  }
  pad(transfer.high_padding);
  // A rank that receives nothing may give: its part of the backward pass hangs on the halo.
  if (wants_gradient(halo) && halo.size(dim()) == 0) slices.push_back(halo);
  return joined(tensor, dim(), slices);
}

at::Tensor RangeExchange::received_part(const at::Tensor& range) const {
  std::vector<std::pair<int64_t, at::Tensor>> parts;
  int64_t at = state_->transfer.low_padding;
  for (const RangeTransfer::Part& part : state_->transfer.parts) {
    if (!part.own) parts.emplace_back(part.begin, range.narrow(dim(), at, part.count));
    at += part.count;
  }
  std::sort(parts.begin(), parts.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<at::Tensor> tensors;
  tensors.reserve(parts.size());
  for (auto& [begin, tensor] : parts) tensors.push_back(std::move(tensor));
  return joined(range, dim(), tensors);
}

at::Tensor RangeExchange::own_part(const at::Tensor& range) const {
  at::DimVector shape(range.sizes());
  shape[static_cast<size_t>(dim())] = state_->own;
  at::Tensor own;
  int64_t at = state_->transfer.low_padding;
  for (const RangeTransfer::Part& part : state_->transfer.parts) {
    if (part.own) {
      const at::Tensor slice = range.narrow(dim(), at, part.count);
      if (!own.defined() && part.count == state_->own) {
        own = slice.clone(range.suggest_memory_format());
      } else {
        if (!own.defined()) {
          own = at::zeros(shape, range.options()).contiguous(range.suggest_memory_format());
        }
        own.narrow(dim(), part.begin, part.count).add_(slice);
      }
    }
    at += part.count;
  }
  return own.defined() ? own : at::zeros(shape, range.options());
}

void RangeExchange::add(at::Tensor& gradient, const at::Tensor& returned) const {
  const bool in_float =
      state_->transfer.gives_twice && at::isReducedFloatingType(gradient.scalar_type());
  at::Tensor sum = in_float ? gradient.to(at::kFloat) : gradient;
  int64_t at = 0;
  for (const SplitRange& range : state_->transfer.given) {
    sum.narrow(dim(), range.begin, range.size()).add_(returned.narrow(dim(), at, range.size()));
    at += range.size();
  }
  if (in_float) gradient.copy_(sum);
}

}  // namespace meshrun
