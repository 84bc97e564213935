// Collectives on pieces of uneven size, along any dimension.
#include <algorithm>
#include <string>
#include <utility>

#include "fmt/format.h"
#include "parallel/comm/ucx/backend_call.h"

namespace meshrun {

using c10d::OpType;
using ucx::OperationKind;
using Form = UcxBackend::Call::Form;

namespace {

using Call = UcxBackend::Call;
using Kind = CollectiveSpec::Kind;

// Of a slice of extent 1 along `dim`.
int64_t elements_beside(const at::Tensor& tensor, int64_t dim) {
  int64_t elements = 1;
  for (int64_t d = 0; d < tensor.dim(); ++d) elements *= d == dim ? 1 : tensor.size(d);
  return elements;
}

// What all ranks have alike: `tensor`, except its extent along `dim`, and the sizes there.
void agree_on(Call& call, const at::Tensor& tensor, const Cut& cut) {
  call.shape = at::DimVector(tensor.sizes());
  call.shape[static_cast<size_t>(cut.dim)] = -1;
  call.shape_agrees = true;
  call.sizes = at::DimVector(cut.sizes.begin(), cut.sizes.end());
  call.sizes_agree = true;
  call.dim = static_cast<int>(cut.dim);
  call.bytes =
      static_cast<int64_t>(tensor.element_size()) * elements_beside(tensor, cut.dim) * cut.total();
}

Call::Slices slices_of(const at::Tensor& tensor, const Cut& cut, int64_t cut_dim) {
  return {tensor.sizes(), static_cast<int64_t>(tensor.element_size()), cut.dim, cut.sizes, cut_dim};
}

// The cut of a piece that its owner has whole: where the other end, which has it as a slice, has
// its rows.
int64_t row_of(const at::Tensor& piece, int64_t dim) {
  auto row = static_cast<int64_t>(piece.element_size());
  for (int64_t d = dim; d < piece.dim(); ++d) row *= piece.size(d);
  return row;
}

bool is_same_memory(const ConstStridedSpan& a, const ConstStridedSpan& b) {
  return a.data == b.data && a.layout.rows == b.layout.rows &&
         a.layout.row_bytes == b.layout.row_bytes &&
         (a.layout.rows == 1 || a.layout.pitch == b.layout.pitch);
}

// What the engine is told of each kind. The call's arguments fit.

void describe_all_gather(Call& call, const CollectiveSpec& spec, int rank, const at::Tensor& output,
                         const at::Tensor& input) {
  if (!call.takes(input, "the input") || !call.takes_output(output, "the output")) return;
  call.results = {output};
  agree_on(call, input, spec.cut);
  call.add_input(call.whole_to_read(input, Form::kRows), row_of(input, spec.cut.dim));
  call.add_outputs(call.whole_to_write(output, Form::kContiguous),
                   slices_of(output, spec.cut, spec.cut.dim));
  call.in_place = is_same_memory(call.inputs[0], call.outputs[static_cast<size_t>(rank)]);
}

void describe_reduce_scatter(Call& call, const CollectiveSpec& spec, int, const at::Tensor& output,
                             const at::Tensor& input) {
  if (!call.takes(input, "the input") || !call.takes_output(output, "the output")) return;
  call.results = {output};
  agree_on(call, input, spec.cut);
  call.reduces_by(c10d::ReduceOp::SUM, static_cast<int>(spec.cut.sizes.size()),
                  spec.use_fp32 ? Accumulate::kWide : Accumulate::kNative);
  if (call.is_wrong()) return;
  call.add_inputs(call.whole_to_read(input, Form::kContiguous),
                  slices_of(input, spec.cut, spec.cut.dim));
  call.add_output(call.whole_to_write(output, Form::kRows), row_of(output, spec.cut.dim));
}

void describe_gather(Call& call, const CollectiveSpec& spec, int rank, const at::Tensor& output,
                     const at::Tensor& input) {
  call.root = spec.root;
  if (!call.takes(input, "the input")) return;
  agree_on(call, input, spec.cut);
  if (rank == spec.root && call.takes_output(output, "the output")) {
    call.results = {output};
    call.add_outputs(call.whole_to_write(output, Form::kContiguous),
                     slices_of(output, spec.cut, spec.cut.dim));
  }
  call.add_input(call.whole_to_read(input, Form::kRows), row_of(input, spec.cut.dim));
}

void describe_scatter(Call& call, const CollectiveSpec& spec, int rank, const at::Tensor& output,
                      const at::Tensor& input) {
  call.root = spec.root;
  if (!call.takes_output(output, "the output")) return;
  call.results = {output};
  agree_on(call, output, spec.cut);
  if (rank == spec.root && call.takes(input, "the input")) {
    call.add_inputs(call.whole_to_read(input, Form::kContiguous),
                    slices_of(input, spec.cut, spec.cut.dim));
  }
  call.add_output(call.whole_to_write(output, Form::kRows), row_of(output, spec.cut.dim));
}

void describe_all_to_all(Call& call, const CollectiveSpec& spec, int rank, const at::Tensor& output,
                         const at::Tensor& input) {
  if (!call.takes(input, "the input") || !call.takes_output(output, "the output")) return;
  const Cut& sent = spec.cut;
  const Cut& received = spec.received;
  call.results = {output};
  // Sizes differ between ranks, and with them the extents along both dims.
  call.shape = at::DimVector(input.sizes());
  call.shape[static_cast<size_t>(sent.dim)] = call.shape[static_cast<size_t>(received.dim)] = -1;
  call.shape_agrees = true;
  call.dim = static_cast<int>(sent.dim);
  if (received.dim != sent.dim) call.output_dim = static_cast<int>(received.dim);
  const int64_t cut_dim = std::max(sent.dim, received.dim);
  const ConstStridedSpan memory = call.fill == nullptr
                                      ? call.whole_to_read(input, Form::kContiguous)
                                      : contiguous(nullptr, static_cast<int64_t>(input.nbytes()));
  call.add_inputs(memory, slices_of(input, sent, cut_dim));
  call.add_outputs(call.whole_to_write(output, Form::kContiguous),
                   slices_of(output, received, cut_dim));
  const auto own = static_cast<size_t>(rank);
  if (sent.of(rank) == 0) {
    // The caller has written it.
    call.outputs[own] = {};
    call.output_pieces[own] = {};
  } else if (received.of(rank) == 0) {
    // The caller reads it where it is.
    call.inputs[own] = {};
    call.input_pieces[own] = {};
  }
  call.require(call.fill == nullptr || sent.of(rank) == 0,
               [] { return "what is put together as it is sent has a piece of this rank's own"; });
  call.require(call.inputs[own].layout.bytes() == call.outputs[own].layout.bytes(), [&] {
    return fmt::format("it sends {} bytes to itself and expects {}",
                       call.inputs[own].layout.bytes(), call.outputs[own].layout.bytes());
  });
  if (call.is_wrong()) return;
  ucx::PieceSizes& sizes = call.own_sizes;
  sizes.sent.assign(sent.sizes.begin(), sent.sizes.end());
  sizes.expected.assign(received.sizes.begin(), received.sizes.end());
  sizes.sent_slice = elements_beside(input, sent.dim);
  sizes.expected_slice = elements_beside(output, received.dim);
}

struct KindRow {
  OpType type;
  OperationKind operation;
  void (*describe)(Call&, const CollectiveSpec&, int rank, const at::Tensor& output,
                   const at::Tensor& input);
};

// By CollectiveSpec::Kind.
constexpr KindRow kKinds[] = {
    {OpType::ALLGATHER, OperationKind::kAllGatherV, &describe_all_gather},
    {OpType::REDUCE_SCATTER, OperationKind::kReduceScatterV, &describe_reduce_scatter},
    {OpType::GATHER, OperationKind::kGatherV, &describe_gather},
    {OpType::SCATTER, OperationKind::kScatterV, &describe_scatter},
    {OpType::ALLTOALL, OperationKind::kAllToAllV, &describe_all_to_all},
};

}  // namespace

UcxBackend::WorkPtr UcxBackend::run(const at::Tensor& output, const at::Tensor& input,
                                    CollectiveSpec spec) {
  const KindRow& kind = kKinds[static_cast<size_t>(spec.kind)];
  Call call(kind.type, kind.operation, spec.timeout, spec.async);
  call.requires_grad = spec.requires_grad;
  call.agreed = spec.agreed * 2 + (spec.use_fp32 ? 1 : 0);
  call.fill = std::move(spec.fill);
  if (spec.words) call.details = [words = std::move(spec.words)] { return (*words)(); };
  // A sum says it itself.
  if (!spec.use_fp32 && spec.kind != Kind::kReduceScatterV) {
    call.details = [details = std::move(call.details)] {
      return ", use_fp32 false" + (details ? details() : std::string());
    };
  }
  call.wrong(std::move(spec.problem));
  if (call.fits(spec, rank_, size_, output, input)) {
    kind.describe(call, spec, rank_, output, input);
  }
  return submit(std::move(call));
}

UcxBackend::WorkPtr UcxBackend::compare(Comparison comparison) {
  Call call(OpType::BARRIER, OperationKind::kCompare, comparison.timeout, comparison.async);
  call.agreed = comparison.digest;
  call.wrong(std::move(comparison.problem));
  const ComparedRow& row = comparison.row;
  if (!call.is_wrong() && !row.sent.empty()) {
    call.own_sizes.sent.assign(row.sent.begin(), row.sent.end());
    call.own_sizes.expected.assign(row.expected.begin(), row.expected.end());
    call.own_sizes.sent_slice = call.own_sizes.expected_slice = 1;
    call.own_sizes.call = row.call;
  }
  if (!comparison.what.empty()) {
    call.details = [what = std::move(comparison.what)] { return " before " + what; };
  }
  return submit(std::move(call));
}

}  // namespace meshrun
