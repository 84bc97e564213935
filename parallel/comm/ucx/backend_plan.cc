#include "parallel/comm/ucx/backend_plan.h"

#include <algorithm>

#include "ATen/ops/empty.h"
#include "c10/core/GradMode.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "parallel/base/digest.h"
#include "parallel/base/tensor_layout.h"
#include "parallel/comm/interface/node_number.h"

namespace meshrun {
namespace {

at::Tensor temporary_for(const at::Tensor& tensor) {
  return at::empty(tensor.sizes(), tensor.options().requires_grad(false).memory_format(
                                       at::MemoryFormat::Contiguous));
}

std::optional<ReductionOp> reduce_op_of(c10d::ReduceOp::RedOpType op) {
  using c10d::ReduceOp;
  switch (op) {
    case ReduceOp::SUM:
      return ReductionOp::kSum;
    case ReduceOp::AVG:
      return ReductionOp::kAverage;
    case ReduceOp::PRODUCT:
      return ReductionOp::kProduct;
    case ReduceOp::MIN:
      return ReductionOp::kMin;
    case ReduceOp::MAX:
      return ReductionOp::kMax;
    case ReduceOp::BAND:
      return ReductionOp::kAnd;
    case ReduceOp::BOR:
      return ReductionOp::kOr;
    case ReduceOp::BXOR:
      return ReductionOp::kXor;
    default:
      return std::nullopt;
  }
}

bool can_be_used(const std::optional<StridedSpan>& span, UcxBackend::Plan::Form form) {
  return span && (form == UcxBackend::Plan::Form::kRows || span->layout.is_contiguous());
}

template <typename Spans, typename Cuts>
void append_pieces(UcxBackend::Plan::Key& key, const Spans& spans, const Cuts& cuts) {
  key.push_back(static_cast<int64_t>(spans.size()));
  for (size_t i = 0; i < spans.size(); ++i) {
    const Layout& layout = spans[i].layout;
    key.push_back(layout.rows);
    key.push_back(layout.row_bytes);
    key.push_back(layout.pitch);
    key.push_back(cuts[i]);
  }
}

template <typename Spans, typename Cuts>
std::vector<ucx::Piece> pieces_of(const Spans& spans, const Cuts& cuts) {
  std::vector<ucx::Piece> pieces;
  for (size_t i = 0; i < spans.size(); ++i) pieces.push_back({spans[i].layout, cuts[i]});
  return pieces;
}

}  // namespace

bool UcxBackend::Plan::takes(const at::Tensor& tensor, std::string_view name) {
  if (!is_dense(tensor, name)) return false;
  const std::optional<DType> its = dtype_of(tensor.scalar_type());
  if (!require(tensor.device().is_cpu(),
               [&] {
                 return fmt::format("{} is on {}; this backend takes tensors on the CPU", name,
                                    tensor.device().str());
               }) ||
      !require(its.has_value(), [&] {
        return fmt::format("{} has the dtype {}, which this backend does not know", name,
                           c10::toString(tensor.scalar_type()));
      })) {
    return false;
  }
  if (!dtype) dtype = its;
  return require(*dtype == *its, [&] {
    return fmt::format("{} has dtype {}, the other tensors of the call have {}", name,
                       name_of(*its), name_of(*dtype));
  });
}

bool UcxBackend::Plan::takes_output(const at::Tensor& tensor, std::string_view name) {
  return takes(tensor, name) && has_own_elements(tensor, name);
}

void UcxBackend::Plan::agree_on_equal_parts(const at::Tensor& part, int size) {
  shape = {part.numel()};
  shape_agrees = true;
  bytes = static_cast<int64_t>(part.nbytes()) * size;
}

void UcxBackend::Plan::reduces(int size) {
  if (is_wrong()) return;
  const std::optional<ReductionOp> op = reduce_op_of(spec.op);
  if (!op) {
    return wrong(spec.op == c10d::ReduceOp::PREMUL_SUM
                     ? "PREMUL_SUM is for NCCL alone: multiply first, then take SUM"
                     : "this reduction is unknown");
  }
  const Accumulate accumulate = spec.rounds_between_hosts ? Accumulate::kWideInLevels
                                : spec.use_fp32           ? Accumulate::kWide
                                                          : Accumulate::kNative;
  reduction = {*op, *dtype, accumulate, *op == ReductionOp::kAverage ? size : 1};
  if (std::string text = reduction_problem(*op, *dtype); !text.empty()) wrong(std::move(text));
}

ConstStridedSpan UcxBackend::Plan::whole_to_read(const at::Tensor& tensor, Form form) {
  owners.push_back(tensor);
  const std::optional<StridedSpan> span = span_of(tensor);
  if (can_be_used(span, form)) return *span;
  const c10::NoGradGuard no_grad;
  owners.back() = temporary_for(tensor).copy_(tensor);
  return *span_of(owners.back());
}

StridedSpan UcxBackend::Plan::whole_to_write(const at::Tensor& tensor, Form form) {
  owners.push_back(tensor);
  const std::optional<StridedSpan> span = span_of(tensor);
  if (can_be_used(span, form)) return *span;
  owners.back() = temporary_for(tensor);
  to_copy.emplace_back(tensor, owners.back());
  return *span_of(owners.back());
}

StridedSpan UcxBackend::Plan::update(const at::Tensor& tensor) {
  const StridedSpan span = whole_to_write(tensor, Form::kContiguous);
  const c10::NoGradGuard no_grad;
  if (!owners.back().is_same(tensor)) owners.back().copy_(tensor);
  return span;
}

void UcxBackend::Plan::read(const at::Tensor& tensor, Form form) {
  add_input(whole_to_read(tensor, form));
}

void UcxBackend::Plan::write(const at::Tensor& tensor, Form form) {
  add_output(whole_to_write(tensor, form));
}

void UcxBackend::Plan::add_input(const ConstStridedSpan& span, int64_t cut) {
  inputs.push_back(span);
  input_cuts.push_back(cut > 0 ? cut : std::max<int64_t>(1, span.layout.bytes()));
}

void UcxBackend::Plan::add_output(const StridedSpan& span, int64_t cut) {
  outputs.push_back(span);
  output_cuts.push_back(cut > 0 ? cut : std::max<int64_t>(1, span.layout.bytes()));
}

namespace {

bool is_same(const ConstStridedSpan& a, const ConstStridedSpan& b) {
  return a.data == b.data && a.layout.rows == b.layout.rows &&
         a.layout.row_bytes == b.layout.row_bytes &&
         (a.layout.rows <= 1 || a.layout.pitch == b.layout.pitch);
}

// Perhaps more often than they do: rows of other pitches may lie between each other.
bool overlap(const ConstStridedSpan& a, const ConstStridedSpan& b) {
  if (a.data == nullptr || b.data == nullptr) return false;
  if (a.layout.bytes() == 0 || b.layout.bytes() == 0) return false;
  if (a.data + a.layout.extent() <= b.data || b.data + b.layout.extent() <= a.data) return false;
  if (a.layout.is_contiguous() || b.layout.is_contiguous()) {
    if (a.layout.is_contiguous() && b.layout.is_contiguous()) return true;
    const ConstStridedSpan& rows = a.layout.is_contiguous() ? b : a;
    const ConstStridedSpan& run = a.layout.is_contiguous() ? a : b;
    const int64_t begin = run.data - rows.data, end = begin + run.layout.bytes();
    if (begin < 0) return true;
    // Within the gap behind one row.
    const int64_t in_pitch = begin % rows.layout.pitch;
    return in_pitch < rows.layout.row_bytes || end - begin + in_pitch > rows.layout.pitch;
  }
  const int64_t pitch = a.layout.pitch;
  if (pitch != b.layout.pitch) return true;
  const int64_t shift = ((b.data - a.data) % pitch + pitch) % pitch;
  return shift < a.layout.row_bytes || shift + b.layout.row_bytes > pitch;
}

// Whether no byte between the first and the last one of the inputs is one of the outputs'.
bool lie_apart(const ucx::InputSpans& inputs, const ucx::OutputSpans& outputs) {
  const auto range_of = [](const auto& spans) {
    std::pair<const std::byte*, const std::byte*> range(nullptr, nullptr);
    for (const auto& span : spans) {
      if (span.data == nullptr) continue;
      const std::byte* const end = span.data + span.layout.extent();
      if (range.first == nullptr || span.data < range.first) range.first = span.data;
      if (end > range.second) range.second = end;
    }
    return range;
  };
  const auto read = range_of(inputs), written = range_of(outputs);
  return read.second <= written.first || written.second <= read.first;
}

}  // namespace

void UcxBackend::Plan::keep_inputs_apart(int rank) {
  switch (spec.kind) {
    case OperationKind::kAllGather:
    case OperationKind::kGather:
    case OperationKind::kScatter:
    case OperationKind::kReduceScatter:
    case OperationKind::kAllToAll:
    case OperationKind::kAllGatherV:
    case OperationKind::kGatherV:
    case OperationKind::kScatterV:
    case OperationKind::kReduceScatterV:
    case OperationKind::kAllToAllV:
      break;
    default:
      return;
  }
  if (inputs.empty() || outputs.empty() || lie_apart(inputs, outputs)) return;
  const auto own_of = [&](const auto& spans) {
    return spans.size() == 1 ? size_t{0} : static_cast<size_t>(rank);
  };
  const size_t own_input = own_of(inputs), own_output = own_of(outputs);
  for (size_t i = 0; i < inputs.size(); ++i) {
    bool lies_in_outputs = false;
    for (size_t o = 0; o < outputs.size() && !lies_in_outputs; ++o) {
      const bool is_in_place = i == own_input && o == own_output && is_same(inputs[i], outputs[o]);
      lies_in_outputs = !is_in_place && overlap(inputs[i], outputs[o]);
    }
    if (!lies_in_outputs) continue;
    const int64_t length = inputs[i].layout.bytes();
    owners.push_back(at::empty({length}, at::kByte));
    const StridedSpan kept = contiguous(owners.back().mutable_data_ptr(), length);
    copy(inputs[i], 0, kept, 0, length);
    inputs[i] = kept;
    if (i == own_input) in_place = false;
  }
}

namespace {

// Calls add(layout, offset, cut) for each slice.
template <class Add>
void for_slices(const UcxBackend::Plan::Slices& slices, Add add) {
  const at::IntArrayRef shape = slices.shape;
  const auto ndim = static_cast<int64_t>(shape.size());
  int64_t inner = slices.element_size;
  for (int64_t d = slices.dim + 1; d < ndim; ++d) inner *= shape[d];
  int64_t begin = 0;
  for (const int64_t extent : slices.extents) {
    int64_t cut = slices.element_size;
    for (int64_t d = slices.cut_dim; d < ndim; ++d) cut *= d == slices.dim ? extent : shape[d];
    add(slice_layout(shape, slices.dim, extent, slices.element_size), begin * inner, cut);
    begin += extent;
  }
}

}  // namespace

void UcxBackend::Plan::add_inputs(const ConstStridedSpan& whole, const Slices& slices) {
  for_slices(slices, [&](const Layout& layout, int64_t offset, int64_t cut) {
    if (layout.bytes() == 0) return add_input({});
    add_input({whole.data == nullptr ? nullptr : whole.data + offset, layout}, cut);
  });
}

void UcxBackend::Plan::add_outputs(const StridedSpan& whole, const Slices& slices) {
  for_slices(slices, [&](const Layout& layout, int64_t offset, int64_t cut) {
    layout.bytes() == 0 ? add_output({}) : add_output({whole.data + offset, layout}, cut);
  });
}

at::IntArrayRef UcxBackend::Plan::agreed_sizes() const {
  if (spec.kind == OperationKind::kAllToAllV) return {};
  return {spec.cut.sizes.data(), spec.cut.sizes.size()};
}

void UcxBackend::Plan::append_key(Key& key) const {
  key.push_back(static_cast<int64_t>(spec.kind));
  key.push_back(spec.root);
  key.push_back(in_place);
  key.push_back(static_cast<int64_t>(reduction.op));
  key.push_back(static_cast<int64_t>(reduction.dtype));
  key.push_back(static_cast<int64_t>(reduction.accumulate));
  key.push_back(reduction.divisor);
  append_pieces(key, inputs, input_cuts);
  append_pieces(key, outputs, output_cuts);
  // In a gather or a scatter only the root has all pieces; the slots of the headers depend on all.
  const at::IntArrayRef sizes = agreed_sizes();
  key.push_back(bytes);
  key.push_back(static_cast<int64_t>(sizes.size()));
  key.insert(key.end(), sizes.begin(), sizes.end());
}

void UcxBackend::Plan::append_agreed(Digest& digest) const {
  digest.add(static_cast<int64_t>(spec.kind))
      .add(dtype ? static_cast<int64_t>(*dtype) : -1)
      .add(spec.root)
      .add(bytes)
      .add(static_cast<int64_t>(reduction.op))
      .add(static_cast<int64_t>(reduction.accumulate))
      .add(spec.requires_grad)
      .add(spec.cut.dim)
      .add(spec.received.dim)
      .add(spec.use_fp32)
      .add(static_cast<int64_t>(spec.agreed));
  if (scope.is_compared) digest.add(static_cast<int64_t>(digest_of(scope.text)));
  if (shape_agrees) digest.add(std::span<const int64_t>(shape.data(), shape.size()));
  const at::IntArrayRef sizes = agreed_sizes();
  if (!sizes.empty()) digest.add(std::span<const int64_t>(sizes.data(), sizes.size()));
}

std::vector<int64_t> UcxBackend::Plan::piece_bytes(int size) const {
  const int64_t elements = spec.cut.total();
  if (elements == 0) {
    return std::vector<int64_t>(static_cast<size_t>(size), bytes / size);
  }
  std::vector<int64_t> result;
  for (const int64_t each : spec.cut.sizes) result.push_back(bytes / elements * each);
  return result;
}

ucx::Schedule UcxBackend::Plan::schedule(const ucx::Place& place) const {
  const auto elements = [&](const ucx::Piece& piece) {
    return piece.layout.bytes() / element_size(reduction.dtype);
  };
  const auto root = static_cast<int>(spec.root);
  const std::vector<ucx::Piece> input_pieces = pieces_of(inputs, input_cuts);
  const std::vector<ucx::Piece> output_pieces = pieces_of(outputs, output_cuts);
  switch (spec.kind) {
    case OperationKind::kBroadcast:
      return ucx::plan_broadcast(place, place.rank == root ? input_pieces[0] : output_pieces[0],
                                 root);
    case OperationKind::kAllReduce:
      return ucx::plan_all_reduce(place, elements(output_pieces[0]), reduction);
    case OperationKind::kReduce:
      return ucx::plan_reduce(place, elements(input_pieces[0]), root, reduction);
    case OperationKind::kAllGather:
    case OperationKind::kAllGatherV:
      return ucx::plan_all_gather(place, input_pieces[0], output_pieces, in_place);
    case OperationKind::kGather:
    case OperationKind::kGatherV:
      return ucx::plan_gather(place, input_pieces[0], output_pieces, piece_bytes(place.size), root);
    case OperationKind::kScatter:
    case OperationKind::kScatterV:
      return ucx::plan_scatter(place, input_pieces, output_pieces[0], piece_bytes(place.size),
                               root);
    case OperationKind::kReduceScatter:
    case OperationKind::kReduceScatterV:
      return ucx::plan_reduce_scatter(place, input_pieces, output_pieces[0], reduction);
    case OperationKind::kAllToAll:
    case OperationKind::kAllToAllV:
      return ucx::plan_all_to_all(place, input_pieces, output_pieces);
    default:
      return ucx::plan_barrier(place);
  }
}

std::string UcxBackend::Plan::own_words() const {
  const at::IntArrayRef sizes = agreed_sizes();
  std::string text = name_of(spec.kind);
  // First: what is long is cut.
  text += NodeNumber::words(node_number);
  if (dtype) text += fmt::format(" of {}", name_of(*dtype));
  if (dtype && (sizes.empty() || shape_agrees)) {
    std::vector<std::string> extents;
    for (const int64_t extent : shape) {
      extents.push_back(extent < 0 ? "*" : std::to_string(extent));
    }
    text += fmt::format(" [{}]", fmt::join(extents, ", "));
  }
  if (!sizes.empty()) text += fmt::format(", sizes [{}]", fmt::join(sizes, ", "));
  if (!spec.cut.sizes.empty() && spec.cut.dim >= 0) {
    text += fmt::format(", dim {}", spec.cut.dim);
    const bool is_transpose =
        spec.kind == OperationKind::kAllToAllV && spec.received.dim != spec.cut.dim;
    if (is_transpose) text += fmt::format(" to {}", spec.received.dim);
  }
  if (reduction.op != ReductionOp::kNone) {
    text += fmt::format(", {}", name_of(reduction.op));
    if (reduction.accumulate == Accumulate::kNative) text += " without float32";
    if (reduction.accumulate == Accumulate::kWideInLevels) text += " rounded between hosts";
  } else if (!spec.use_fp32) {
    text += ", use_fp32 false";
  }
  if (spec.root >= 0) text += fmt::format(", root {}", spec.root);
  if (spec.requires_grad) text += ", with gradient";
  if (spec.words) text += (*spec.words)();
  return text;
}

std::string UcxBackend::Plan::words() const {
  return CallScope::words_in(scope.text, name_of(spec.kind), own_words());
}

}  // namespace meshrun
