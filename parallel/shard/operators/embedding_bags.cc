// Sums, means and largest elements of bags of a table's rows.
//
// A bag lies on one rank: where the input is cut within a bag, the elements on one side of the cut
// move to the other. Where the table is cut along its rows, each rank looks up those that it has.
// Their sums are Partial; of the largest elements the rank that has one is the only one with a
// summand. In both cases the host reads the offsets.
#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "ATen/TensorOperators.h"
#include "ATen/WrapDimUtils.h"
#include "ATen/ops/bincount.h"
#include "ATen/ops/zeros.h"
#include "parallel/collectives/call/autograd_node.h"
#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/dispatch/operator_table.h"
#include "parallel/shard/dispatch/same_mesh.h"
#include "parallel/shard/layout/layout_draft.h"
#include "parallel/shard/operators/aligned.h"
#include "parallel/shard/operators/bags.h"
#include "parallel/shard/operators/lookup.h"
#include "parallel/shard/operators/moments.h"
#include "parallel/shard/operators/reduced.h"

namespace meshrun {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
// The bags, the bag of each element, their sizes, and the rows of largest elements.
using BagResults = std::tuple<Tensor, Tensor, Tensor, Tensor>;

struct BagCall {
  const Tensor& weight;
  const Tensor& indices;
  const Tensor& offsets;
  bool scales_by_frequency = false;
  int64_t mode = kSumOfBag;
  bool is_sparse = false;
  Tensor sample_weights;  // undefined: none
  bool has_last_offset = false;
  int64_t padding = -1;  // row that does not count; -1: none

  int64_t num_bags() const { return offsets.numel() - (has_last_offset ? 1 : 0); }
};

// LibTorch's errors on all ranks.
void check_bag_call(const BagCall& call) {
  const auto is_index = [](const Tensor& tensor) {
    return tensor.scalar_type() == at::kLong || tensor.scalar_type() == at::kInt;
  };
  const int64_t ndim = call.indices.dim();
  TORCH_CHECK(call.weight.dim() == 2, "embedding_bag: weight has to be a 2D Tensor, but got ",
              call.weight.sizes());
  TORCH_CHECK(ndim == 1 || ndim == 2,
              "input has to be a 1D or 2D Tensor, but got Tensor of dimension ", ndim);
  TORCH_CHECK_NOT_IMPLEMENTED(
      ndim == 1,
      "embedding_bag of sharded tensors takes a 1D input: flatten the 2D one, as "
      "torch.nn.functional.embedding_bag does");
  TORCH_CHECK(call.offsets.dim() == 1,
              "offsets has to be a 1D Tensor, but got Tensor of dimension ", call.offsets.dim());
  TORCH_CHECK(is_index(call.indices) && is_index(call.offsets),
              "embedding_bag: expected indices and offsets of Long or Int, but got ",
              call.indices.scalar_type(), " and ", call.offsets.scalar_type());
  TORCH_CHECK(at::isFloatingType(call.weight.scalar_type()),
              "embedding_bag: expected a floating-point weight, but got ",
              call.weight.scalar_type());
  TORCH_CHECK(call.mode >= kSumOfBag && call.mode <= kMaxOfBag,
              "embedding_bag: mode has to be 0 (sum), 1 (mean) or 2 (max), but got ", call.mode);
  TORCH_CHECK(!call.has_last_offset || call.offsets.numel() >= 1,
              "include_last_offset: number of offset should be at least 1");
  TORCH_CHECK(call.num_bags() > 0 || call.indices.numel() == 0, "embedding_bag: no bags for ",
              call.indices.numel(), " elements");
  TORCH_CHECK_NOT_IMPLEMENTED(!call.is_sparse || !wants_gradient(call.weight),
                              "embedding_bag: gradients of sharded tensors are not sparse");
  if (!call.sample_weights.defined()) return;
  TORCH_CHECK(call.mode == kSumOfBag,
              "embedding_bag: per_sample_weights only supported with mode='sum'");
  TORCH_CHECK(call.sample_weights.scalar_type() == call.weight.scalar_type(),
              "embedding_bag: expected per_sample_weights of ", call.weight.scalar_type(),
              ", but got ", call.sample_weights.scalar_type());
  TORCH_CHECK(call.sample_weights.sizes() == call.indices.sizes(),
              "embedding_bag: per_sample_weights of ", call.sample_weights.sizes(),
              " for an input of ", call.indices.sizes());
}

// Where each bag begins among `count` elements.
std::vector<int64_t> bag_starts(const Tensor& offsets, const BagCall& call) {
  const int64_t count = call.indices.numel();
  const Tensor on_host = offsets.to(at::kCPU, at::kLong).contiguous();
  const auto* data = on_host.const_data_ptr<int64_t>();
  std::vector<int64_t> starts(data, data + on_host.numel());
  TORCH_CHECK(starts.empty() || starts.front() == 0,
              "offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to start "
              "from position 0. However, got ",
              starts.front());
  TORCH_CHECK(starts.empty() || starts.back() <= count,
              "offsets[-1] can not be greater than input's length ", count,
              " but got offsets[-1] of ", starts.back());
  TORCH_CHECK_NOT_IMPLEMENTED(std::is_sorted(starts.begin(), starts.end()),
                              "embedding_bag of cut tensors: offsets that decrease");
  if (!call.has_last_offset) return starts;
  TORCH_CHECK_NOT_IMPLEMENTED(starts.back() == count, "embedding_bag of cut tensors: the last ",
                              "offset is ", starts.back(), " and the input has ", count,
                              " elements");
  starts.pop_back();
  return starts;
}

// How bags are cut, and the elements that they hold.
struct BagCut {
  DimCut bags;
  DimCut elements;
};

// Number of the bag, `least` or a later one, that begins nearest to a place among `count` elements;
// behind the last one it is their number.
int64_t nearest_start(const std::vector<int64_t>& starts, int64_t place, int64_t least,
                      int64_t count) {
  const auto after = std::lower_bound(starts.begin() + least, starts.end(), place);
  const int64_t bag = after - starts.begin();
  const int64_t until_after = (after == starts.end() ? count : *after) - place;
  return bag > least && place - *(after - 1) < until_after ? bag - 1 : bag;
}

// Next to `wish`, a cut of the elements or else of the offsets, with every bag in one piece.
BagCut cut_between_bags(const DimCut& wish, bool is_of_elements, const std::vector<int64_t>& starts,
                        int64_t count) {
  const auto num_bags = static_cast<int64_t>(starts.size());
  BagCut cut{{wish.axes, {}}, {wish.axes, {}}};
  int64_t end = 0;
  int64_t bag = 0;
  int64_t element = 0;
  for (size_t piece = 0; piece < wish.sizes.size(); ++piece) {
    end += wish.sizes[piece];
    int64_t next = num_bags;
    if (piece + 1 < wish.sizes.size()) {
      next = is_of_elements ? nearest_start(starts, end, bag, count) : std::min(end, num_bags);
    }
    const int64_t next_element = next < num_bags ? starts[static_cast<size_t>(next)] : count;
    cut.bags.sizes.push_back(next - bag);
    cut.elements.sizes.push_back(next_element - element);
    bag = next;
    element = next_element;
  }
  return cut;
}

// How often each row of this rank's piece of the table is an element of a bag.
Tensor row_frequencies(const Tensor& elements, const SpecPtr& of_elements,
                       const SpecPtr& of_table) {
  const int64_t rows = of_table->global_shape()[0];
  const Tensor index = lookup(elements.to(at::kLong), {0, rows, rows}, /*wraps=*/false).index;
  const Tensor counts = at::bincount(index, {}, rows);
  all_reduce_over(of_elements, {0}, counts, PartialOp::kSum);
  return counts.narrow(0, of_table->box().offsets[0], of_table->box().sizes[0]);
}

SpecPtr vector_spec(const ShardMesh::Ptr& mesh, int64_t extent, const DimCut& cut) {
  LayoutDraft draft(mesh->shape(), {extent});
  draft.cut(0, cut);
  return make_spec(mesh, draft.layout());
}

BagResults embedding_bags(const BagCall& call) {
  check_bag_call(call);
  const ShardMesh::Ptr mesh =
      mesh_of({&call.weight, &call.indices, &call.offsets, &call.sample_weights}, "embedding_bag");
  const int64_t count = call.indices.numel();
  Tensor table = promote(call.weight, mesh);
  table = call.mode == kMaxOfBag ? without_summands(table) : with_sums_only(table);
  const Tensor elements = promote(call.indices, mesh);
  const Tensor given_offsets = promote(call.offsets, mesh);
  const Tensor sample_weights = promote(call.sample_weights, mesh);
  const SpecPtr& spec = spec_of(table);
  const ShardLayout& layout = spec->layout();
  const bool has_cut_rows = !axes_that_cut(*spec, {0}).empty();

  LayoutDraft draft(mesh->shape(), {call.num_bags(), call.weight.size(1)});
  for (int64_t axis = 0; axis < mesh->ndim(); ++axis) {
    const Placement& placement = layout.placements()[static_cast<size_t>(axis)];
    if (placement.is_partial()) draft.set(axis, placement);
  }
  draft.cut(1, layout.cuts()[1]);
  for (const int64_t axis : layout.cuts()[0].axes) draft.set(axis, Partial());
  // How the elements are cut, else their weights, else the offsets.
  DimCut wish;
  bool is_of_elements = true;
  for (const Tensor* leader : {&elements, &sample_weights, &given_offsets}) {
    if (!leader->defined() || !wish.axes.empty() || call.num_bags() == 0) continue;
    const DimCut& cut = spec_of(*leader)->layout().cuts()[0];
    if (!draft.may_cut(0, cut)) continue;
    wish = cut;
    is_of_elements = leader != &given_offsets;
  }

  OwnBags own;
  own.offsets = local_of(redistribute(given_offsets, replicated_spec(mesh, call.offsets.sizes())));
  own.has_last_offset = call.has_last_offset;
  own.padding = call.padding;
  BagCut cut{{{}, {call.num_bags()}}, {{}, {count}}};
  if (!wish.axes.empty() || has_cut_rows) {
    const std::vector<int64_t> starts = bag_starts(own.offsets, call);
    own.offsets = own.offsets.narrow(0, 0, call.num_bags());
    own.has_last_offset = false;
    if (!wish.axes.empty()) {
      cut = cut_between_bags(wish, is_of_elements, starts, count);
      draft.cut(0, cut.bags);
    }
  }
  const SpecPtr result = make_spec(mesh, draft.layout());
  const SpecPtr of_bags = vector_spec(mesh, call.num_bags(), cut.bags);
  const SpecPtr of_elements = vector_spec(mesh, count, cut.elements);
  const int64_t first_bag = of_bags->box().offsets[0];
  if (!wish.axes.empty()) {
    own.offsets =
        own.offsets.narrow(0, first_bag, of_bags->box().sizes[0]) - of_elements->box().offsets[0];
  }
  own.elements = local_of(redistribute(elements, of_elements));
  if (sample_weights.defined()) {
    own.sample_weights = to_local(redistribute(sample_weights, of_elements),
                                  partial_where_replicated(of_elements, result));
  }
  const Tensor local = to_local(table, partial_where_replicated(spec, result));
  if (call.scales_by_frequency && call.mode != kMaxOfBag && wants_gradient(local)) {
    const Tensor frequencies =
        row_frequencies(own.elements, of_elements, spec).clamp_min(1).unsqueeze(1);
    local.register_hook([frequencies](const Tensor& gradient) { return gradient / frequencies; });
  }

  const BagsOfRows bags = has_cut_rows ? bags_of_cut_rows(local, spec, own, call.mode)
                                       : bags_of_whole_rows(local, own, call.mode);
  Tensor values = from_local(bags.values, result);
  const at::ScalarType type =
      at::promote_types(call.indices.scalar_type(), call.offsets.scalar_type());
  if (call.mode == kSumOfBag) {
    // LibTorch's kernels return what their own gradients need, which differs by dtype and device.
    const auto zeros = [&](int64_t extent) {
      return wrap(at::zeros({extent}, own.elements.options().dtype(type)),
                  replicated_spec(mesh, {extent}));
    };
    return {std::move(values), zeros(0), zeros(call.num_bags()), zeros(call.num_bags())};
  }
  const Tensor sizes = wrap(bags.sizes.to(type), of_bags);
  return {std::move(values), wrap((bags.bag_of + first_bag).to(type), of_elements), sizes,
          call.mode == kMaxOfBag ? wrap(bags.rows.to(type), result) : sizes};
}

BagResults bags_without_padding(const Tensor& weight, const Tensor& indices, const Tensor& offsets,
                                bool scale_grad_by_freq, int64_t mode, bool sparse,
                                const OptionalTensor& sample_weights, bool include_last_offset) {
  return embedding_bags({weight, indices, offsets, scale_grad_by_freq, mode, sparse,
                         sample_weights.value_or(Tensor()), include_last_offset});
}

BagResults bags_by_padding(const Tensor& weight, const Tensor& indices, const Tensor& offsets,
                           bool scale_grad_by_freq, int64_t mode, bool sparse,
                           const OptionalTensor& sample_weights, bool include_last_offset,
                           int64_t padding_idx) {
  return embedding_bags({weight, indices, offsets, scale_grad_by_freq, mode, sparse,
                         sample_weights.value_or(Tensor()), include_last_offset, padding_idx});
}

BagResults bags_forward_only(const Tensor& weight, const Tensor& indices, const Tensor& offsets,
                             bool scale_grad_by_freq, int64_t mode, bool sparse,
                             const OptionalTensor& sample_weights, bool include_last_offset,
                             int64_t padding_idx) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !wants_gradient(weight) && (!sample_weights || !wants_gradient(*sample_weights)),
      "the derivative for 'aten::_embedding_bag_forward_only' is not implemented");
  return bags_by_padding(weight, indices, offsets, scale_grad_by_freq, mode, sparse, sample_weights,
                         include_last_offset, padding_idx);
}

// A padding that counts from the back, as LibTorch checks it.
BagResults bags_of_optional_padding(const Tensor& weight, const Tensor& indices,
                                    const Tensor& offsets, bool scale_grad_by_freq, int64_t mode,
                                    bool sparse, const OptionalTensor& sample_weights,
                                    bool include_last_offset, std::optional<int64_t> padding_idx) {
  int64_t padding = -1;
  if (padding_idx) {
    const int64_t rows = weight.size(0);
    TORCH_CHECK(*padding_idx >= -rows && *padding_idx < rows,
                "padding_idx must be within the number of embeddings, -", rows, " through ",
                rows - 1, ", but got ", *padding_idx);
    padding = at::maybe_wrap_dim(*padding_idx, rows);
  }
  return bags_by_padding(weight, indices, offsets, scale_grad_by_freq, mode, sparse, sample_weights,
                         include_last_offset, padding);
}

const Movement kBags = {
    "Shard of the bags, cut alike by input, offsets or per_sample_weights, beside a table that is "
    "whole on that axis; Shard of either dimension of the table beside a whole input; Replicate; a "
    "Partial(sum) table for sum and mean",
    "where a cut divides a bag, its elements on one side, the smaller number; offsets that are cut "
    "are gathered. Where the table is cut the input is gathered on that axis; cut rows: every rank "
    "looks up what it has, the result is Partial; max of them: two numbers an element, all-reduced",
    "what reduces that Partial, to Replicate; where the bags alone were cut the gradient of the "
    "table is Partial; scale_grad_by_freq: one count a row, all-reduced"};

const bool kRegistered =
    OperatorFamily("indexing")
        .above_autograd("aten::embedding_bag", &bags_without_padding, kBags)
        .above_autograd("aten::embedding_bag.padding_idx", &bags_of_optional_padding, kBags)
        .above_autograd("aten::_embedding_bag", &bags_by_padding, kBags)
        .above_autograd("aten::_embedding_bag_forward_only", &bags_forward_only, kBags)
        .registered();

}  // namespace
}  // namespace meshrun
