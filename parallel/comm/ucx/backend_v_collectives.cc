// Collectives on pieces of uneven size, along any dimension.
#include <algorithm>
#include <array>
#include <functional>
#include <string>
#include <utility>

#include "ATen/ops/_sparse_coo_tensor_unsafe.h"
#include "ATen/ops/add.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/scalar_tensor.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "parallel/base/digest.h"
#include "parallel/comm/ucx/backend_plan.h"

namespace meshrun {

namespace {

using Form = UcxBackend::Plan::Form;
using Kind = OperationKind;
using Plan = UcxBackend::Plan;

// What all ranks have alike: `tensor`, except its extent along the cut.
void agree_on_pieces(Plan& plan, const at::Tensor& tensor) {
  const Cut& cut = plan.spec.cut;
  plan.shape.assign(tensor.sizes().begin(), tensor.sizes().end());
  plan.shape[static_cast<size_t>(cut.dim)] = -1;
  plan.shape_agrees = true;
  plan.bytes =
      static_cast<int64_t>(tensor.element_size()) * slice_elements(tensor, cut.dim) * cut.total();
}

Plan::Slices slices_of(const at::Tensor& tensor, const Cut& cut, int64_t cut_dim) {
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

// All pieces, and one.
void add_whole_input(Plan& plan, const at::Tensor& input) {
  plan.add_inputs(plan.whole_to_read(input, Form::kContiguous),
                  slices_of(input, plan.spec.cut, plan.spec.cut.dim));
}
void add_whole_output(Plan& plan, const at::Tensor& output) {
  plan.add_outputs(plan.whole_to_write(output, Form::kContiguous),
                   slices_of(output, plan.spec.cut, plan.spec.cut.dim));
}
void add_own_input(Plan& plan, const at::Tensor& input) {
  plan.add_input(plan.whole_to_read(input, Form::kRows), row_of(input, plan.spec.cut.dim));
}
void add_own_output(Plan& plan, const at::Tensor& output) {
  plan.add_output(plan.whole_to_write(output, Form::kRows), row_of(output, plan.spec.cut.dim));
}

// Each kind, with arguments that fit.

void plan_all_gather(Plan& plan, int rank, const at::Tensor& output, const at::Tensor& input) {
  if (!plan.takes(input, "the input") || !plan.takes_output(output, "the output")) return;
  agree_on_pieces(plan, input);
  add_own_input(plan, input);
  add_whole_output(plan, output);
  plan.in_place = is_same_memory(plan.inputs[0], plan.outputs[static_cast<size_t>(rank)]);
}

void plan_reduce_scatter(Plan& plan, const at::Tensor& output, const at::Tensor& input) {
  if (!plan.takes(input, "the input") || !plan.takes_output(output, "the output")) return;
  agree_on_pieces(plan, input);
  plan.reduces(static_cast<int>(plan.spec.cut.sizes.size()));
  if (plan.is_wrong()) return;
  add_whole_input(plan, input);
  add_own_output(plan, output);
}

void plan_gather(Plan& plan, int rank, const at::Tensor& output, const at::Tensor& input) {
  if (!plan.takes(input, "the input")) return;
  agree_on_pieces(plan, input);
  if (rank != plan.spec.root) {
    plan.results.clear();
  } else if (plan.takes_output(output, "the output")) {
    add_whole_output(plan, output);
  }
  add_own_input(plan, input);
}

void plan_scatter(Plan& plan, int rank, const at::Tensor& output, const at::Tensor& input) {
  if (!plan.takes_output(output, "the output")) return;
  agree_on_pieces(plan, output);
  if (rank == plan.spec.root && plan.takes(input, "the input")) add_whole_input(plan, input);
  add_own_output(plan, output);
}

void plan_all_to_all(Plan& plan, int rank, const at::Tensor& output, const at::Tensor& input) {
  if (!plan.takes(input, "the input") || !plan.takes_output(output, "the output")) return;
  const CollectiveSpec& spec = plan.spec;
  const Cut& sent = spec.cut;
  const Cut& received = spec.received;
  // Sizes differ between ranks, and with them the extents along both dims.
  plan.shape.assign(input.sizes().begin(), input.sizes().end());
  plan.shape[static_cast<size_t>(sent.dim)] = plan.shape[static_cast<size_t>(received.dim)] = -1;
  plan.shape_agrees = true;
  const int64_t cut_dim = std::max(sent.dim, received.dim);
  const ConstStridedSpan memory = spec.fill == nullptr
                                      ? plan.whole_to_read(input, Form::kContiguous)
                                      : contiguous(nullptr, static_cast<int64_t>(input.nbytes()));
  plan.add_inputs(memory, slices_of(input, sent, cut_dim));
  plan.add_outputs(plan.whole_to_write(output, Form::kContiguous),
                   slices_of(output, received, cut_dim));
  const auto own = static_cast<size_t>(rank);
  if (sent.of(rank) == 0) {
    // The caller has written it.
    plan.outputs[own] = {};
    plan.output_cuts[own] = 1;
  } else if (received.of(rank) == 0) {
    // The caller reads it where it is.
    plan.inputs[own] = {};
    plan.input_cuts[own] = 1;
  }
  plan.require(spec.fill == nullptr || sent.of(rank) == 0,
               [] { return "what is put together as it is sent has a piece of this rank's own"; });
  plan.require(plan.inputs[own].layout.bytes() == plan.outputs[own].layout.bytes(), [&] {
    return fmt::format("it sends {} bytes to itself and expects {}",
                       plan.inputs[own].layout.bytes(), plan.outputs[own].layout.bytes());
  });
  if (plan.is_wrong()) return;
  ucx::PieceSizes& sizes = plan.own_sizes;
  sizes.sent.assign(sent.sizes.begin(), sent.sizes.end());
  sizes.expected.assign(received.sizes.begin(), received.sizes.end());
  sizes.sent_slice = slice_elements(input, sent.dim);
  sizes.expected_slice = slice_elements(output, received.dim);
}

void plan_pieces(Plan& plan, int rank, const at::Tensor& output, const at::Tensor& input) {
  switch (plan.spec.kind) {
    case Kind::kAllGatherV:
      return plan_all_gather(plan, rank, output, input);
    case Kind::kReduceScatterV:
      return plan_reduce_scatter(plan, output, input);
    case Kind::kGatherV:
      return plan_gather(plan, rank, output, input);
    case Kind::kScatterV:
      return plan_scatter(plan, rank, output, input);
    case Kind::kAllToAllV:
      return plan_all_to_all(plan, rank, output, input);
    default:
      plan.wrong(fmt::format("{} is not on pieces", name_of(plan.spec.kind)));
  }
}

// What a rank passes to a sum of sparse tensors, which all have alike except the elements.
std::string words_of_sparse(const at::Tensor& tensor) {
  return fmt::format("a sparse {} [{}] with {} sparse dims", c10::toString(tensor.scalar_type()),
                     fmt::join(tensor.sizes(), ", "), tensor.sparse_dim());
}

std::string problem_of_sparse(const UcxBackend::Tensors& tensors,
                              const c10d::AllreduceOptions& options) {
  if (tensors.size() != 1) return fmt::format("{} tensors were passed; pass one", tensors.size());
  const at::Tensor& tensor = tensors[0];
  if (!tensor.defined() || !tensor.is_sparse() || !tensor.device().is_cpu()) {
    return "the tensor is not a sparse COO tensor on the CPU";
  }
  if (tensor.sparse_dim() == 0) return "the tensor has no sparse dimension: call to_dense()";
  if (options.reduceOp != c10d::ReduceOp::SUM) return "sparse tensors have no reduction but SUM";
  return "";
}

// In rank order, like every sum here.
at::Tensor sum_of_sparse(const at::Tensor& indices, const at::Tensor& values,
                         at::IntArrayRef counts, at::IntArrayRef shape) {
  at::Tensor sum;
  int64_t first = 0;
  for (const int64_t count : counts) {
    at::Tensor part = at::_sparse_coo_tensor_unsafe(indices.narrow(0, first, count).t(),
                                                    values.narrow(0, first, count), shape);
    part._coalesced_(true);
    sum = sum.defined() ? at::add(sum, part) : part;
    first += count;
  }
  return sum;
}

}  // namespace

UcxBackend::WorkPtr UcxBackend::allreduce_sparse(Tensors& tensors,
                                                 const c10d::AllreduceOptions& options) {
  const CallScope scope("all_reduce of a sparse tensor");
  std::string problem = problem_of_sparse(tensors, options);
  const at::Tensor mine = problem.empty() ? tensors[0].detach().coalesce() : at::Tensor();
  // First the counts: they are this rank's alone.
  const std::vector<int64_t> ones(static_cast<size_t>(size_), 1);
  CollectiveSpec spec = CollectiveSpec::all_gather_v(ones, 0);
  spec.timeout = options.timeout;
  if (problem.empty()) {
    Digest digest;
    digest.add(static_cast<int64_t>(mine.scalar_type())).add(mine.sparse_dim()).add(mine.sizes());
    spec.agreed = digest.value();
    spec.say([words = words_of_sparse(mine)] { return " for the sum of " + words; });
  }
  spec.problem = std::move(problem);
  const at::Tensor all = at::empty({size_}, at::kLong);
  const at::Tensor own = at::scalar_tensor(mine.defined() ? mine._nnz() : 0, at::kLong).view({1});
  run(all, own, spec)->wait();
  const std::vector<int64_t> counts(all.const_data_ptr<int64_t>(),
                                    all.const_data_ptr<int64_t>() + size_);
  // Then all elements, at once.
  spec = CollectiveSpec::all_gather_v(counts, 0);
  spec.timeout = options.timeout;
  spec.async = options.asyncOp;
  std::array<at::Tensor, 2> gathered;
  const std::array<at::Tensor, 2> given = {mine._indices().t().contiguous(),
                                           mine._values().contiguous()};
  auto plans = std::make_shared<Plans>();
  for (size_t i = 0; i < given.size(); ++i) {
    std::vector<int64_t> shape = given[i].sizes().vec();
    shape[0] = spec.cut.total();
    gathered[i] = at::empty(shape, given[i].options());
    Plan& plan = plans->emplace_back(CollectiveSpec(spec));
    if (plan.fits(plan.spec, rank_, size_, gathered[i], given[i])) {
      plan_pieces(plan, rank_, gathered[i], given[i]);
    }
  }
  plans->front().results.push_back(tensors[0]);
  std::function<void()> add = [gathered, counts, to = tensors[0]]() mutable {
    to.copy_(sum_of_sparse(gathered[0], gathered[1], counts, to.sizes()));
  };
  return submit(std::move(plans), c10d::OpType::_ALLREDUCE_SPARSE, {}, &add);
}

UcxBackend::WorkPtr UcxBackend::run(const at::Tensor& output, const at::Tensor& input,
                                    CollectiveSpec spec) {
  const c10d::OpType type = op_type_of(spec.kind);
  auto plans = Plans::of_one(std::move(spec), output);
  Plan& plan = plans->front();
  if (plan.fits(plan.spec, rank_, size_, output, input)) plan_pieces(plan, rank_, output, input);
  return submit(std::move(plans), type);
}

UcxBackend::WorkPtr UcxBackend::compare(Comparison comparison) {
  CollectiveSpec spec;
  spec.kind = Kind::kCompare;
  spec.agreed = comparison.digest;
  spec.problem = std::move(comparison.problem);
  spec.async = comparison.async;
  spec.timeout = comparison.timeout;
  if (!comparison.what.empty()) {
    spec.say([what = std::move(comparison.what)] { return " before " + what; });
  }
  auto plans = Plans::of_one(std::move(spec));
  Plan& plan = plans->front();
  const ComparedRow& row = comparison.row;
  if (!plan.is_wrong() && !row.sent.empty()) {
    plan.own_sizes.sent.assign(row.sent.begin(), row.sent.end());
    plan.own_sizes.expected.assign(row.expected.begin(), row.expected.end());
    plan.own_sizes.sent_slice = plan.own_sizes.expected_slice = 1;
    plan.own_sizes.call = row.call;
  }
  return submit(std::move(plans), c10d::OpType::BARRIER);
}

}  // namespace meshrun
