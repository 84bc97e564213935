// Collectives on pieces of uneven size, along any dimension.
#include <algorithm>
#include <numeric>
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

int64_t sum(at::IntArrayRef sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
}

// Of a slice of extent 1 along `dim`.
int64_t elements_beside(const at::Tensor& tensor, int64_t dim) {
  int64_t elements = 1;
  for (int64_t d = 0; d < tensor.dim(); ++d) elements *= d == dim ? 1 : tensor.size(d);
  return elements;
}

// What all ranks have alike: `tensor`, except its extent along `dim`, and the sizes there.
void agree_on(Call& call, const at::Tensor& tensor, at::IntArrayRef sizes, int64_t dim) {
  call.shape = at::DimVector(tensor.sizes());
  call.shape[static_cast<size_t>(dim)] = -1;
  call.shape_agrees = true;
  call.sizes = at::DimVector(sizes);
  call.sizes_agree = true;
  call.dim = static_cast<int>(dim);
  call.bytes =
      static_cast<int64_t>(tensor.element_size()) * elements_beside(tensor, dim) * sum(sizes);
}

Call::Slices slices_of(const at::Tensor& tensor, int64_t dim, at::IntArrayRef extents,
                       int64_t cut_dim) {
  return {tensor.sizes(), static_cast<int64_t>(tensor.element_size()), dim, extents, cut_dim};
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

}  // namespace

Call UcxBackend::v_call(OpType type, OperationKind kind, VCall given) const {
  Call call(type, kind, given.timeout, given.async);
  call.requires_grad = given.requires_grad;
  call.agreed = given.agreed * 2 + (given.use_fp32 ? 1 : 0);
  call.details = std::move(given.details);
  call.fill = std::move(given.fill);
  // A sum says it itself.
  if (!given.use_fp32 && kind != OperationKind::kReduceScatterV) {
    call.details = [details = std::move(call.details)] {
      return ", use_fp32 false" + (details ? details() : std::string());
    };
  }
  call.wrong(std::move(given.problem));
  return call;
}

UcxBackend::WorkPtr UcxBackend::all_gather_v(const at::Tensor& output, const at::Tensor& input,
                                             at::IntArrayRef sizes, int64_t dim, VCall given) {
  Call call = v_call(OpType::ALLGATHER, OperationKind::kAllGatherV, std::move(given));
  if (call.are_sizes(sizes, size_) && call.takes(input, "the input") &&
      call.takes_output(output, "the output") &&
      call.has_extent(input, dim, sizes[static_cast<size_t>(rank_)], "the input") &&
      call.has_extent(output, dim, sum(sizes), "the output") &&
      call.are_equal_beside(input, output, dim)) {
    call.results = {output};
    agree_on(call, input, sizes, dim);
    call.add_input(call.whole_to_read(input, Form::kRows), row_of(input, dim));
    call.add_outputs(call.whole_to_write(output, Form::kContiguous),
                     slices_of(output, dim, sizes, dim));
    call.in_place = is_same_memory(call.inputs[0], call.outputs[static_cast<size_t>(rank_)]);
  }
  return submit(std::move(call));
}

UcxBackend::WorkPtr UcxBackend::reduce_scatter_v(const at::Tensor& output, const at::Tensor& input,
                                                 at::IntArrayRef sizes, int64_t dim, VCall given) {
  const Accumulate accumulate = given.use_fp32 ? Accumulate::kWide : Accumulate::kNative;
  Call call = v_call(OpType::REDUCE_SCATTER, OperationKind::kReduceScatterV, std::move(given));
  if (call.are_sizes(sizes, size_) && call.takes(input, "the input") &&
      call.takes_output(output, "the output") &&
      call.has_extent(input, dim, sum(sizes), "the input") &&
      call.has_extent(output, dim, sizes[static_cast<size_t>(rank_)], "the output") &&
      call.are_equal_beside(input, output, dim)) {
    call.results = {output};
    agree_on(call, input, sizes, dim);
    call.reduces_by(c10d::ReduceOp::SUM, size_, accumulate);
  }
  if (!call.is_wrong()) {
    call.add_inputs(call.whole_to_read(input, Form::kContiguous),
                    slices_of(input, dim, sizes, dim));
    call.add_output(call.whole_to_write(output, Form::kRows), row_of(output, dim));
  }
  return submit(std::move(call));
}

UcxBackend::WorkPtr UcxBackend::gather_v(const at::Tensor& output, const at::Tensor& input,
                                         at::IntArrayRef sizes, int64_t dim, int root,
                                         VCall given) {
  Call call = v_call(OpType::GATHER, OperationKind::kGatherV, std::move(given));
  if (call.are_sizes(sizes, size_) && call.takes_root(root, size_) &&
      call.takes(input, "the input") &&
      call.has_extent(input, dim, sizes[static_cast<size_t>(rank_)], "the input")) {
    agree_on(call, input, sizes, dim);
    if (rank_ == root && call.takes_output(output, "the output") &&
        call.has_extent(output, dim, sum(sizes), "the output") &&
        call.are_equal_beside(input, output, dim)) {
      call.results = {output};
      call.add_outputs(call.whole_to_write(output, Form::kContiguous),
                       slices_of(output, dim, sizes, dim));
    }
    call.add_input(call.whole_to_read(input, Form::kRows), row_of(input, dim));
  }
  return submit(std::move(call));
}

UcxBackend::WorkPtr UcxBackend::scatter_v(const at::Tensor& output, const at::Tensor& input,
                                          at::IntArrayRef sizes, int64_t dim, int root,
                                          VCall given) {
  Call call = v_call(OpType::SCATTER, OperationKind::kScatterV, std::move(given));
  if (call.are_sizes(sizes, size_) && call.takes_root(root, size_) &&
      call.takes_output(output, "the output") &&
      call.has_extent(output, dim, sizes[static_cast<size_t>(rank_)], "the output")) {
    call.results = {output};
    agree_on(call, output, sizes, dim);
    if (rank_ == root && call.takes(input, "the input") &&
        call.has_extent(input, dim, sum(sizes), "the input") &&
        call.are_equal_beside(input, output, dim)) {
      call.add_inputs(call.whole_to_read(input, Form::kContiguous),
                      slices_of(input, dim, sizes, dim));
    }
    call.add_output(call.whole_to_write(output, Form::kRows), row_of(output, dim));
  }
  return submit(std::move(call));
}

UcxBackend::WorkPtr UcxBackend::all_to_all_v(const at::Tensor& output, at::IntArrayRef output_sizes,
                                             int64_t output_dim, const at::Tensor& input,
                                             at::IntArrayRef input_sizes, int64_t input_dim,
                                             VCall given) {
  Call call = v_call(OpType::ALLTOALL, OperationKind::kAllToAllV, std::move(given));
  if (!call.are_sizes(input_sizes, size_, "input_sizes") ||
      !call.are_sizes(output_sizes, size_, "output_sizes") || !call.takes(input, "the input") ||
      !call.takes_output(output, "the output") ||
      !call.has_extent(input, input_dim, sum(input_sizes), "the input") ||
      !call.has_extent(output, output_dim, sum(output_sizes), "the output") ||
      !call.have_equal_ndim(input, output)) {
    return submit(std::move(call));
  }
  call.results = {output};
  // Sizes differ between ranks, and with them the extents along both dims.
  call.shape = at::DimVector(input.sizes());
  call.shape[static_cast<size_t>(input_dim)] = call.shape[static_cast<size_t>(output_dim)] = -1;
  call.shape_agrees = true;
  call.dim = static_cast<int>(input_dim);
  if (output_dim != input_dim) call.output_dim = static_cast<int>(output_dim);
  const int64_t cut_dim = std::max(input_dim, output_dim);
  const int64_t bytes = input.numel() * static_cast<int64_t>(input.element_size());
  const ConstStridedSpan sent = call.fill == nullptr ? call.whole_to_read(input, Form::kContiguous)
                                                     : contiguous(nullptr, bytes);
  call.add_inputs(sent, slices_of(input, input_dim, input_sizes, cut_dim));
  call.add_outputs(call.whole_to_write(output, Form::kContiguous),
                   slices_of(output, output_dim, output_sizes, cut_dim));
  const auto own = static_cast<size_t>(rank_);
  if (input_sizes[own] == 0) {
    // The caller has written it.
    call.outputs[own] = {};
    call.output_pieces[own] = {};
  } else if (output_sizes[own] == 0) {
    // The caller reads it where it is.
    call.inputs[own] = {};
    call.input_pieces[own] = {};
  }
  call.require(call.fill == nullptr || input_sizes[own] == 0,
               [] { return "what is put together as it is sent has a piece of this rank's own"; });
  call.require(call.inputs[own].layout.bytes() == call.outputs[own].layout.bytes(), [&] {
    return fmt::format("it sends {} bytes to itself and expects {}",
                       call.inputs[own].layout.bytes(), call.outputs[own].layout.bytes());
  });
  if (!call.is_wrong()) {
    ucx::PieceSizes& sizes = call.own_sizes;
    sizes.sent.assign(input_sizes.begin(), input_sizes.end());
    sizes.expected.assign(output_sizes.begin(), output_sizes.end());
    sizes.sent_slice = elements_beside(input, input_dim);
    sizes.expected_slice = elements_beside(output, output_dim);
  }
  return submit(std::move(call));
}

UcxBackend::WorkPtr UcxBackend::compare(std::string what, uint64_t digest, VCall given) {
  const ComparedRow row = std::move(given.row);
  Call call = v_call(OpType::BARRIER, OperationKind::kCompare, std::move(given));
  call.agreed = digest;
  if (!call.is_wrong() && !row.sent.empty()) {
    call.own_sizes.sent.assign(row.sent.begin(), row.sent.end());
    call.own_sizes.expected.assign(row.expected.begin(), row.expected.end());
    call.own_sizes.sent_slice = call.own_sizes.expected_slice = 1;
    call.own_sizes.call = row.call;
  }
  if (!what.empty()) {
    call.details = [what = std::move(what)] { return " before " + what; };
  }
  return submit(std::move(call));
}

}  // namespace meshrun
