#include "parallel/collectives/range_exchange.h"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <utility>

#include "ATen/ops/cat.h"
#include "ATen/ops/full.h"
#include "ATen/ops/zeros.h"
#include "core/fingerprint.h"
#include "fmt/format.h"
#include "parallel/base/collective_errors.h"
#include "parallel/collectives/differentiable.h"

namespace meshrun {

struct RangeExchangeState : torch::CustomClassHolder {
  ExchangePtr exchange;  // what is sent along dim, and received
  RangeTransfer transfer;
  int64_t own = 0;
  bool calls = false;
  bool is_identity = false;
};

namespace {

using StatePtr = c10::intrusive_ptr<RangeExchangeState>;

uint64_t digest_of(int64_t dim, const std::vector<int64_t>& sizes,
                   const std::vector<SplitRange>& ranges, bool periodic) {
  std::vector<int64_t> values = {dim, periodic};
  values.insert(values.end(), sizes.begin(), sizes.end());
  for (const SplitRange& range : ranges) {
    values.push_back(range.begin);
    values.push_back(range.end);
  }
  const std::string_view bytes(reinterpret_cast<const char*>(values.data()),
                               values.size() * sizeof(int64_t));
  return Fingerprint(bytes) | 1;  // 0: nothing to compare
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

// The exchange for a call with this tensor, which has `extent` along dim; another one where it does
// not fit.
ExchangePtr checked(const RangeExchangeState& state, const at::Tensor& tensor, int64_t extent) {
  const ExchangePtr& exchange = state.exchange;
  if (!exchange->problem.empty()) return exchange;
  std::string problem = tensor_problem(tensor);
  if (!problem.empty()) {
    // That is it.
  } else if (tensor.dim() <= exchange->dim) {
    problem = fmt::format("the tensor has {} dimensions, and the halo is of dim {}", tensor.dim(),
                          exchange->dim);
  } else if (tensor.size(exchange->dim) != extent) {
    problem = fmt::format("the tensor has {} along dim {}, and {} is expected on rank {}",
                          tensor.size(exchange->dim), exchange->dim, extent, exchange->rank);
  }
  if (problem.empty()) return exchange;
  if (!state.calls) throw CollectiveArgumentError(problem);
  auto wrong = c10::make_intrusive<Exchange>(*exchange);
  wrong->problem = std::move(problem);
  return wrong;
}

at::Tensor pack(const RangeExchangeState& state, const at::Tensor& tensor) {
  std::vector<at::Tensor> slices;
  for (const SplitRange& range : state.transfer.given) {
    slices.push_back(tensor.narrow(state.exchange->dim, range.begin, range.size()));
  }
  return joined(tensor, state.exchange->dim, slices);
}

// Pieces to halos; `reversed`: gradients of halos to slices of pieces. in_node: in the forward() of
// a node, where the grad mode is off.
at::Tensor travel(const RangeExchangeState& state, const at::Tensor& tensor, bool reversed,
                  WorkPtr* work, bool in_node = false) {
  const int64_t extent = reversed ? state.transfer.num_received() : state.own;
  const ExchangePtr exchange = checked(state, tensor, extent);
  if (!state.calls) return tensor.narrow(exchange->dim, 0, 0);
  const bool packs = exchange->problem.empty() && !reversed;
  const at::Tensor sent = packs ? pack(state, tensor) : tensor;
  if (in_node) return all_to_all(sent, exchange, reversed, {true, work});
  return differentiable_all_to_all(sent, exchange, reversed, work);
}

RangeExchange save(AutogradContext* ctx, const StatePtr& state) {
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
    const RangeExchange exchange = save(ctx, state);
    AsyncTensor halo = asynchronously(
        [&](WorkPtr* work) { return travel(*state, tensor, false, work, tensor.requires_grad()); });
    return exchange.assemble(tensor, halo.wait(), padding);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    return only_first(RangeExchange(saved(ctx)).scatter(grads[0]));
  }
};

struct ScatterRange : torch::autograd::Function<ScatterRange> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& ranges, const StatePtr& state) {
    const RangeExchange exchange = save(ctx, state);
    const at::Tensor halo = exchange.received_part(ranges);
    AsyncTensor returned = asynchronously(
        [&](WorkPtr* work) { return travel(*state, halo, true, work, ranges.requires_grad()); });
    at::Tensor gradient = exchange.own_part(ranges);
    exchange.add(gradient, returned.wait());
    return gradient;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    return only_first(RangeExchange(saved(ctx)).gather(grads[0]));
  }
};

}  // namespace

RangeExchange::RangeExchange(IntArgument dim, const std::vector<int64_t>& sizes,
                             const std::vector<SplitRange>& ranges, const GroupArgument& group,
                             const Options& options)
    : state_(c10::make_intrusive<RangeExchangeState>()) {
  const ExchangePtr exchange = make_exchange(group);
  state_->exchange = exchange;
  exchange->problem = options.problem;
  if (exchange->problem.empty()) {
    exchange->problem = check_extents("sizes", sizes, -1, exchange->world);
  }
  if (exchange->problem.empty() && ranges.size() != sizes.size()) {
    exchange->problem =
        fmt::format("{} ranges are given for {} ranks", ranges.size(), exchange->world);
  }
  state_->calls = options.compares || !exchange->problem.empty();
  if (!exchange->problem.empty()) return;
  state_->transfer = plan_ranges(sizes, ranges, exchange->rank, options.periodic);
  const bool travels = anything_travels(sizes, ranges, options.periodic);
  state_->calls = state_->calls || travels;
  state_->own = sizes[static_cast<size_t>(exchange->rank)];
  state_->is_identity = !state_->calls && state_->transfer.extent() == state_->own &&
                        state_->transfer.low_padding == 0 && state_->transfer.high_padding == 0;
  exchange->dim = exchange->other_dim = dim;
  exchange->sizes.assign(state_->transfer.sent.begin(), state_->transfer.sent.end());
  exchange->other_sizes.assign(state_->transfer.received.begin(), state_->transfer.received.end());
  exchange->agreed = digest_of(dim, sizes, ranges, options.periodic);
  exchange->words = words_of(dim, sizes, ranges, options.periodic);
}

RangeExchange::RangeExchange(StatePtr state) : state_(std::move(state)) {}
RangeExchange::RangeExchange(const RangeExchange&) = default;
RangeExchange& RangeExchange::operator=(const RangeExchange&) = default;
RangeExchange::~RangeExchange() = default;

int64_t RangeExchange::dim() const { return state_->exchange->dim; }
const RangeTransfer& RangeExchange::transfer() const { return state_->transfer; }
bool RangeExchange::is_identity() const { return state_->is_identity; }

at::Tensor RangeExchange::gather(const at::Tensor& tensor, const c10::Scalar& padding) const {
  const ExchangePtr exchange = checked(*state_, tensor, state_->own);
  if (!exchange->problem.empty()) return travel(*state_, tensor, false, nullptr);
  if (state_->is_identity) return tensor;
  if (wants_gradient(tensor)) return GatherRange::apply(tensor, state_, padding);
  const c10::NoGradGuard no_grad;
  return assemble(tensor, receive(tensor), padding);
}

at::Tensor RangeExchange::scatter(const at::Tensor& ranges) const {
  return state_->is_identity ? ranges : ScatterRange::apply(ranges, state_);
}

at::Tensor RangeExchange::receive(const at::Tensor& tensor) const {
  return travel(*state_, tensor, false, nullptr);
}

AsyncTensor RangeExchange::receive_async(const at::Tensor& tensor) const {
  return asynchronously([&](WorkPtr* work) { return travel(*state_, tensor, false, work); });
}

at::Tensor RangeExchange::send_back(const at::Tensor& halo) const {
  return travel(*state_, halo, true, nullptr);
}

AsyncTensor RangeExchange::send_back_async(const at::Tensor& halo) const {
  return asynchronously([&](WorkPtr* work) { return travel(*state_, halo, true, work); });
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
  // Of the next `count` positions those that are asked for: their first one, and how many.
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
