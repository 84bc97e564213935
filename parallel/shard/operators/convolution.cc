// Convolutions, transposed too: conv1d to conv3d and conv_transpose1d to conv_transpose3d all end
// in aten::convolution.
//
// Each rank gathers the rows that its outputs read and convolves them alone, with the padding of
// cut dimensions gathered as zeros. The graph keeps the piece and the halos, never the gathered
// tensor: the piece is mostly kept by the operator before, too.
#include "ATen/ops/convolution.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>
#include <vector>

#include "ATen/ops/cat.h"
#include "ATen/ops/constant_pad_nd.h"
#include "ATen/ops/convolution_backward.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/zeros.h"
#include "ATen/ops/zeros_like.h"
#include "c10/util/SmallVector.h"
#include "fmt/format.h"
#include "parallel/collectives/call/pieces.h"
#include "parallel/collectives/tie.h"
#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/dispatch/operator_table.h"
#include "parallel/shard/dispatch/same_mesh.h"
#include "parallel/shard/operators/windows.h"
#include "parallel/shard/redistribute/redistribution_plans.h"
#include "torch/csrc/autograd/custom_function.h"

namespace meshrun {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct ConvolutionArguments {
  std::vector<int64_t> kernel, stride, padding, dilation, output_padding;
  bool transposed = false;
  int64_t groups = 1;

  size_t dims() const { return kernel.size(); }
  // That a window spans.
  int64_t reach(size_t i) const { return dilation[i] * (kernel[i] - 1) + 1; }
};

// The rule of window plans whose key has the arguments.
const char kConvolutionRule = 0;

// Below this many multiplications the inner part is not computed by itself.
constexpr int64_t kLeastInnerWork = int64_t{1} << 18;

// What this rank computes: a convolution of the gathered tensor, of whose result a part is taken.
struct ConvolutionPlan : torch::CustomClassHolder {
  ConvolutionPlan(WindowPlan windows, ConvolutionArguments global);

  at::Tensor convolve(const at::Tensor& input, const at::Tensor& weight,
                      const at::Tensor& bias) const;
  // The outputs that need no halo of the last cut while that travels, then the others.
  at::Tensor convolve_around(const WindowPlan::Cut& cut, const at::Tensor& input,
                             const at::Tensor& weight, const at::Tensor& bias,
                             AsyncTensor& halo) const;
  SplitRange inner_outputs(const WindowPlan::Cut& cut) const;
  bool computes_around(const at::Tensor& weight) const;
  // Gradient of the result that convolve() computes before it takes a part, from the gradient of
  // that part.
  at::Tensor whole_gradient(const at::Tensor& gradient) const;
  std::array<at::Tensor, 3> gradients(const at::Tensor& gradient, const at::Tensor& input,
                                      const at::Tensor& weight, bool has_bias,
                                      std::array<bool, 3> wanted) const;

  WindowPlan windows;
  ConvolutionArguments local;
  // Part of the computed result that is kept, by dimension; empty: all of it.
  std::vector<SplitRange> taken;
  std::vector<int64_t> computed;  // extents before the part is taken
};

using PlanPtr = c10::intrusive_ptr<ConvolutionPlan>;

ConvolutionPlan::ConvolutionPlan(WindowPlan plan, ConvolutionArguments global)
    : windows(std::move(plan)), local(std::move(global)) {
  bool takes_part = false;
  for (size_t i = 0; i < local.dims(); ++i) {
    const WindowPlan::Cut* cut = windows.cut(static_cast<int64_t>(i) + 2);
    const int64_t outputs = windows.result()->local_shape()[i + 2];
    SplitRange part{0, outputs};
    int64_t extent = outputs;
    if (cut != nullptr && !local.transposed) {
      local.padding[i] = 0;
    } else if (cut != nullptr && outputs > 0) {
      // Without padding the rank's inputs reach all of `full` positions, of which it owns those
      // from `before` on; `behind` are too many at the end, or too few.
      const int64_t full = (cut->range.size() - 1) * local.stride[i] + local.reach(i);
      const int64_t before =
          local.padding[i] + cut->owned.begin - cut->range.begin * local.stride[i];
      const int64_t behind = full - before - outputs;
      const int64_t most = std::max(local.stride[i], local.dilation[i]);
      if (before - behind >= 0 && before - behind < most) {
        local.padding[i] = before;
        local.output_padding[i] = before - behind;
      } else {
        local.padding[i] = std::min(before, std::max<int64_t>(behind, 0));
        local.output_padding[i] = std::max<int64_t>(-behind, 0);
      }
      const int64_t begin = before - local.padding[i];
      extent = full - 2 * local.padding[i] + local.output_padding[i];
      part = {begin, begin + outputs};
    }
    takes_part |= part.size() != extent;
    taken.push_back(part);
    computed.push_back(extent);
  }
  if (!takes_part) taken.clear();
}

at::Tensor ConvolutionPlan::convolve(const at::Tensor& input, const at::Tensor& weight,
                                     const at::Tensor& bias) const {
  at::Tensor result =
      at::convolution(input, weight, bias, local.stride, local.padding, local.dilation,
                      local.transposed, local.output_padding, local.groups);
  for (size_t i = 0; i < taken.size(); ++i) {
    result = result.narrow(static_cast<int64_t>(i) + 2, taken[i].begin, taken[i].size());
  }
  return taken.empty() ? result : result.contiguous();
}

SplitRange ConvolutionPlan::inner_outputs(const WindowPlan::Cut& cut) const {
  const auto i = static_cast<size_t>(cut.dim - 2);
  const int64_t stride = local.stride[i];
  // The range begins with the first window.
  const int64_t lack = cut.piece.begin - cut.range.begin;
  const int64_t begin = lack <= 0 ? 0 : (lack + stride - 1) / stride;
  const int64_t room = cut.piece.end - cut.range.begin - local.reach(i);
  const int64_t end = room < 0 ? 0 : std::min(room / stride + 1, cut.owned.size());
  return {begin, std::max(begin, end)};
}

bool ConvolutionPlan::computes_around(const at::Tensor& weight) const {
  if (local.transposed || windows.cuts().empty() || !windows.computes()) return false;
  const WindowPlan::Cut& cut = windows.cuts().back();
  if (cut.exchange.transfer().num_received() == 0) return false;
  const std::vector<int64_t>& shape = windows.result()->local_shape();
  const int64_t outputs =
      std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  return 2 * inner_outputs(cut).size() >= cut.owned.size() &&
         outputs * (weight.numel() / weight.size(0)) >= kLeastInnerWork;
}

at::Tensor ConvolutionPlan::convolve_around(const WindowPlan::Cut& cut, const at::Tensor& input,
                                            const at::Tensor& weight, const at::Tensor& bias,
                                            AsyncTensor& halo) const {
  const auto i = static_cast<size_t>(cut.dim - 2);
  const SplitRange inner = inner_outputs(cut);
  // Positions of the range that some outputs read.
  const auto read = [&](int64_t begin, int64_t end) {
    return SplitRange{begin * local.stride[i], (end - 1) * local.stride[i] + local.reach(i)};
  };
  const SplitRange own = read(inner.begin, inner.end);
  const int64_t skipped = cut.range.begin - cut.piece.begin;
  const at::Tensor middle =
      convolve(input.narrow(cut.dim, own.begin + skipped, own.size()), weight, bias);
  const at::Tensor received = halo.wait();
  std::vector<at::Tensor> parts;
  const auto add_border = [&](int64_t begin, int64_t end) {
    if (begin == end) return;
    parts.push_back(
        convolve(cut.exchange.assemble_part(input, received, read(begin, end)), weight, bias));
  };
  add_border(0, inner.begin);
  parts.push_back(middle);
  add_border(inner.end, cut.owned.size());
  return at::cat(parts, cut.dim);
}

at::Tensor ConvolutionPlan::whole_gradient(const at::Tensor& gradient) const {
  if (taken.empty()) return gradient;
  std::vector<int64_t> padding;
  for (size_t i = taken.size(); i-- > 0;) {
    padding.push_back(taken[i].begin);
    padding.push_back(computed[i] - taken[i].end);
  }
  return at::constant_pad_nd(gradient, padding);
}

std::array<at::Tensor, 3> ConvolutionPlan::gradients(const at::Tensor& gradient,
                                                     const at::Tensor& input,
                                                     const at::Tensor& weight, bool has_bias,
                                                     std::array<bool, 3> wanted) const {
  const std::vector<int64_t> bias_sizes = {gradient.size(1)};
  auto [of_input, of_weight, of_bias] = at::convolution_backward(
      gradient, input, weight,
      has_bias ? at::OptionalIntArrayRef(bias_sizes) : at::OptionalIntArrayRef(), local.stride,
      local.padding, local.dilation, local.transposed, local.output_padding, local.groups, wanted);
  return {of_input, of_weight, of_bias};
}

struct Convolution : torch::autograd::Function<Convolution> {
  // An absent bias is not among the inputs: LibTorch asks each input for its device.
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& input, const at::Tensor& weight,
                            const std::optional<at::Tensor>& optional_bias, const PlanPtr& plan) {
    const at::Tensor bias = optional_bias.value_or(at::Tensor());
    const auto& cuts = plan->windows.cuts();
    variable_list saved = {input, weight};
    at::Tensor gathered = input;
    at::Tensor result;
    const bool around = plan->computes_around(weight);
    for (const WindowPlan::Cut& cut : cuts) {
      AsyncTensor halo = cut.exchange.receive_async(gathered);
      if (around && &cut == &cuts.back()) {
        result = plan->convolve_around(cut, gathered, weight, bias, halo);
        saved.push_back(halo.wait());
        break;
      }
      saved.push_back(halo.wait());
      gathered = cut.exchange.assemble(gathered, saved.back());
    }
    if (!plan->windows.computes()) {
      result = at::zeros(plan->windows.result()->local_shape(), input.options());
    } else if (!result.defined()) {
      result = plan->convolve(gathered, weight, bias);
    }
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data.emplace("plan", c10::IValue::make_capsule(plan));
    ctx->saved_data.emplace("has_bias", bias.defined());
    return result;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const auto plan =
        c10::static_intrusive_pointer_cast<ConvolutionPlan>(ctx->saved_data.at("plan").toCapsule());
    const auto& cuts = plan->windows.cuts();
    const bool has_bias = ctx->saved_data.at("has_bias").toBool();
    const bool wants_input = ctx->needs_input_grad(0);
    const std::array<bool, 3> others = {false, ctx->needs_input_grad(1),
                                        has_bias && ctx->needs_input_grad(2)};
    // Before each exchange, for the shapes of those that follow it. A derivative of this derivative
    // needs the halos as functions of the pieces.
    const bool is_graph = c10::GradMode::is_enabled();
    at::Tensor gathered = saved[0];
    for (size_t i = 0; i < cuts.size(); ++i) {
      gathered = is_graph ? cuts[i].exchange.gather(gathered)
                          : cuts[i].exchange.assemble(gathered, saved[2 + i]);
    }
    const at::Tensor& weight = saved[1];
    const bool computes = plan->windows.computes();
    const at::Tensor whole = computes ? plan->whole_gradient(grads[0]) : grads[0];
    variable_list results(4);
    // To what other ranks compute from, for derivatives of higher order.
    const auto tied = [&](const at::Tensor& zeros) {
      return tie(tie(tie(zeros, grads[0]), gathered), weight);
    };
    const auto compute_others = [&] {
      if (!others[1] && !others[2]) return;
      if (computes) {
        auto [none, of_weight, of_bias] =
            plan->gradients(whole, gathered, weight, has_bias, others);
        results[1] = of_weight;
        results[2] = of_bias;
        return;
      }
      if (others[1]) results[1] = tied(at::zeros_like(weight));
      if (others[2]) results[2] = tied(at::zeros({grads[0].size(1)}, weight.options()));
    };
    if (!wants_input) {
      compute_others();
      return results;
    }
    at::Tensor gradient =
        computes ? plan->gradients(whole, gathered, weight, has_bias, {true, false, false})[0]
                 : tied(at::zeros_like(gathered));
    if (is_graph) {
      for (size_t i = cuts.size(); i-- > 0;) gradient = cuts[i].exchange.scatter(gradient);
      compute_others();
    } else {
      // The halos' gradients travel while the weight's is computed.
      for (size_t i = cuts.size(); i-- > 0;) {
        const RangeExchange& exchange = cuts[i].exchange;
        AsyncTensor returned = exchange.send_back_async(exchange.received_part(gradient));
        if (i + 1 == cuts.size()) compute_others();
        gradient = exchange.own_part(gradient);
        exchange.add(gradient, returned.wait());
      }
      if (cuts.empty()) compute_others();
    }
    results[0] = gradient;
    return results;
  }
};

void check(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
           const ConvolutionArguments& arguments) {
  const int64_t channels = weight.dim() < 2       ? 0
                           : arguments.transposed ? weight.size(0)
                                                  : weight.size(1) * arguments.groups;
  const bool fits = input.dim() >= 3 && weight.dim() == input.dim() && arguments.groups > 0 &&
                    weight.size(0) % arguments.groups == 0 && input.size(1) == channels;
  if (!fits) {
    throw ShardTensorError(
        fmt::format("convolution: an input of {} and a weight of {} do not fit in {} groups",
                    to_words(input.sizes()), to_words(weight.sizes()), arguments.groups));
  }
  const int64_t made = arguments.transposed ? weight.size(1) * arguments.groups : weight.size(0);
  if (bias.defined() && (bias.dim() != 1 || bias.size(0) != made)) {
    throw ShardTensorError(fmt::format("convolution: a bias of {}, and {} channels are made",
                                       to_words(bias.sizes()), made));
  }
  for (size_t i = 0; i < arguments.dims(); ++i) {
    const bool padded =
        arguments.padding[i] >= 0 && arguments.output_padding[i] >= 0 &&
        (!arguments.transposed ||
         arguments.output_padding[i] < std::max(arguments.stride[i], arguments.dilation[i]));
    if (arguments.stride[i] <= 0 || arguments.dilation[i] <= 0 || !padded) {
      throw ShardTensorError(fmt::format(
          "convolution: stride {}, padding {}, dilation {}, output_padding {} in one dimension",
          arguments.stride[i], arguments.padding[i], arguments.dilation[i],
          arguments.output_padding[i]));
    }
  }
}

std::vector<WindowedDim> windows_of(const at::Tensor& input, const ConvolutionArguments& a) {
  std::vector<WindowedDim> windows;
  for (size_t i = 0; i < a.dims(); ++i) {
    const int64_t extent = input.size(static_cast<int64_t>(i) + 2);
    const int64_t outputs = a.transposed
                                ? transposed_outputs(extent, a.kernel[i], a.stride[i], a.padding[i],
                                                     a.dilation[i], a.output_padding[i])
                                : sliding_outputs(extent, a.kernel[i], a.stride[i], a.padding[i],
                                                  a.padding[i], a.dilation[i]);
    if (outputs <= 0) {
      throw ShardTensorError(
          fmt::format("convolution: an input of {} is too small for a kernel of {} with padding "
                      "{}, dilation {}",
                      to_words(input.sizes()), to_words(a.kernel), a.padding[i], a.dilation[i]));
    }
    windows.push_back(a.transposed ? WindowedDim::transposed(outputs, a.kernel[i], a.stride[i],
                                                             a.padding[i], a.dilation[i])
                                   : WindowedDim::sliding(outputs, a.kernel[i], a.stride[i],
                                                          a.padding[i], a.dilation[i]));
  }
  return windows;
}

c10::SmallVector<int64_t, 24> key_of(const ConvolutionArguments& a) {
  c10::SmallVector<int64_t, 24> key = {rule_number(&kConvolutionRule), int64_t{a.transposed}};
  for (const auto* values : {&a.kernel, &a.stride, &a.padding, &a.dilation, &a.output_padding}) {
    key.append(values->begin(), values->end());
  }
  return key;
}

// Whole on every rank; its gradient there is a summand where ranks have parts of the input.
at::Tensor whole_operand(const at::Tensor& operand, const SpecPtr& input) {
  if (!operand.defined()) return operand;
  const at::Tensor promoted = promote(operand, input->mesh());
  const SpecPtr whole = replicated_spec(input->mesh(), promoted.sizes());
  return to_local(redistribute(promoted, whole), partial_where_replicated(whole, input));
}

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight,
                       const std::optional<at::Tensor>& optional_bias, at::IntArrayRef stride,
                       at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                       at::IntArrayRef output_padding, int64_t groups) {
  const at::Tensor bias = optional_bias.value_or(at::Tensor());
  const ShardMesh::Ptr mesh = mesh_of({&input, &weight, &bias}, "convolution");
  ConvolutionArguments arguments;
  const size_t dims = input.dim() < 2 ? 0 : static_cast<size_t>(input.dim()) - 2;
  arguments.transposed = transposed;
  arguments.groups = groups;
  arguments.stride = for_each_dim(stride, dims, "stride");
  arguments.padding = for_each_dim(padding, dims, "padding");
  arguments.dilation = for_each_dim(dilation, dims, "dilation");
  arguments.output_padding = for_each_dim(output_padding, dims, "output_padding");
  if (!transposed) arguments.output_padding.assign(dims, 0);
  arguments.kernel.assign(dims, 1);
  for (size_t i = 0; i < dims && static_cast<int64_t>(i) + 2 < weight.dim(); ++i) {
    arguments.kernel[i] = weight.size(static_cast<int64_t>(i) + 2);
  }
  check(input, weight, bias, arguments);

  const at::Tensor whole_input = promote(input, mesh);
  const SpecPtr spec = windowed_spec(spec_of(whole_input), {1});
  const at::Tensor x = redistribute(whole_input, spec);
  const at::Tensor w = whole_operand(weight, spec);
  const at::Tensor b = whole_operand(bias, spec);
  const int64_t made = transposed ? weight.size(1) * groups : weight.size(0);
  const auto plan = c10::make_intrusive<ConvolutionPlan>(
      WindowPlan(spec, {.first = 2, .channels = made}, key_of(arguments),
                 [&] { return windows_of(input, arguments); }),
      arguments);
  const auto given_bias = b.defined() ? std::optional(b) : std::nullopt;
  return from_local(Convolution::apply(to_local(x), w, given_bias, plan), plan->windows.result());
}

const bool kRegistered =
    OperatorFamily("convolution")
        .above_autograd(
            "aten::convolution", &convolution,
            {"input: Shard of the batch and of any spatial dims, Replicate; weight and bias: "
             "Replicate or plain",
             "halos of cut dims, exact bytes, while the inner part is computed; sharded channels, "
             "weights and Partial are redistributed first",
             "halos back, while the weight's gradient is computed; gradients of weight and bias "
             "are "
             "Partial(sum) over the input's axes"})
        .registered();

}  // namespace
}  // namespace meshrun
