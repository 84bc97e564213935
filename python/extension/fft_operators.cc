// rfft2 and irfft2 of a field that the ranks hold in pieces, canonical layout, with their adjoints:
// see parallel/fft/distributed_fft.h.
//
// `s`: -1 for an extent that the tensors tell. The adjoints take the arguments of their operator
// and, as `extents`, what its tensor on this rank has along dim. Results lie in memory with the
// transformed dimensions last.
//
// A traced call cannot ask the other ranks, so that s or input_sizes has to tell the extent that is
// split.
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ATen/WrapDimUtils.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/zeros.h"
#include "c10/util/Exception.h"
#include "fmt/format.h"
#include "parallel/collectives/call/autograd_node.h"
#include "parallel/collectives/plans/transpose_plan.h"
#include "parallel/fft/distributed_fft.h"
#include "parallel/fft/fft_arguments.h"
#include "parallel/fft/fft_plan.h"
#include "python/extension/linear_operator.h"
#include "python/extension/operators.h"
#include "torch/library.h"

namespace meshrun::python {
namespace {

using at::IntArrayRef;
using at::OptionalIntArrayRef;
using at::OptionalSymIntArrayRef;
using at::Tensor;
using c10::SymInt;
using c10::SymIntArrayRef;
using fft::Direction;
using std::string_view;
using Saved = const std::vector<Tensor>&;

using Transform = Tensor(const Tensor&, OptionalSymIntArrayRef, IntArrayRef, string_view,
                         OptionalSymIntArrayRef, OptionalSymIntArrayRef, string_view);
using TransformAdjoint = Tensor(const Tensor&, SymIntArrayRef, OptionalSymIntArrayRef, IntArrayRef,
                                string_view, OptionalSymIntArrayRef, OptionalSymIntArrayRef,
                                string_view);

const auto& transform_operator(Direction direction) {
  static const auto forward = find_operator<Transform>("meshrun::rfft2");
  static const auto inverse = find_operator<Transform>("meshrun::irfft2");
  return direction == Direction::kForward ? forward : inverse;
}
const auto& adjoint_operator(Direction direction) {
  static const auto forward = find_operator<TransformAdjoint>("meshrun::rfft2_adjoint");
  static const auto inverse = find_operator<TransformAdjoint>("meshrun::irfft2_adjoint");
  return direction == Direction::kForward ? forward : inverse;
}

std::optional<std::vector<int64_t>> vector_of(OptionalIntArrayRef list) {
  if (!list.has_value()) return std::nullopt;
  return list->vec();
}

FftOptions options_of(OptionalIntArrayRef s, IntArrayRef dim, string_view norm,
                      OptionalIntArrayRef input_sizes, OptionalIntArrayRef output_sizes,
                      string_view group) {
  FftOptions options;
  if (s.has_value()) {
    for (const int64_t extent : *s) {
      options.s.push_back(extent == -1 ? std::optional<IntArgument>() : IntArgument(extent));
    }
  }
  options.dim.assign(dim.begin(), dim.end());
  options.norm = std::string(norm);
  options.group = group_named(group);
  options.input_sizes = vector_of(input_sizes);
  options.output_sizes = vector_of(output_sizes);
  return options;
}

// In the order of memory that the Meta kernels promise; most results have it already.
Tensor planes_last(const Tensor& result, IntArrayRef dim) {
  return result.movedim(dim, {-2, -1}).contiguous().movedim({-2, -1}, dim);
}

// CPU and CUDA.

template <Direction kDirection>
Tensor transform_kernel(const Tensor& input, OptionalIntArrayRef s, IntArrayRef dim,
                        string_view norm, OptionalIntArrayRef input_sizes,
                        OptionalIntArrayRef output_sizes, string_view group) {
  const c10::NoGradGuard no_grad;
  const FftOptions options = options_of(s, dim, norm, input_sizes, output_sizes, group);
  return planes_last(kDirection == Direction::kForward ? distributed_rfft2(input, options)
                                                       : distributed_irfft2(input, options),
                     dim);
}

// Whether `dim` is two different dimensions of a tensor; then as they count from the front.
bool read_dims(IntArrayRef dim, int64_t ndim, int64_t& dim0, int64_t& dim1) {
  if (dim.size() != 2) return false;
  dim0 = dim[0] < 0 ? dim[0] + ndim : dim[0];
  dim1 = dim[1] < 0 ? dim[1] + ndim : dim[1];
  return dim0 >= 0 && dim1 >= 0 && dim0 < ndim && dim1 < ndim && dim0 != dim1;
}

template <Direction kDirection>
Tensor adjoint_kernel(const Tensor& cotangent, IntArrayRef extents, OptionalIntArrayRef s,
                      IntArrayRef dim, string_view norm, OptionalIntArrayRef input_sizes,
                      OptionalIntArrayRef output_sizes, string_view group) {
  constexpr bool is_forward = kDirection == Direction::kForward;
  const c10::NoGradGuard no_grad;
  const FftOptions options = options_of(s, dim, norm, input_sizes, output_sizes, group);
  const at::ScalarType real = c10::toRealValueType(cotangent.scalar_type());
  std::vector<int64_t> shape = cotangent.sizes().vec();
  int64_t dim0 = 0;
  int64_t dim1 = 0;
  const bool has_dims = read_dims(dim, cotangent.dim(), dim0, dim1) && extents.size() == 2 &&
                        extents[0] >= 0 && extents[1] >= 0;
  if (has_dims) {
    shape[static_cast<size_t>(dim0)] = extents[0];
    shape[static_cast<size_t>(dim1)] = extents[1];
  }
  // Stands for the tensor of the call whose adjoint this is: its shape and dtype alone are read.
  const bool has_dtype = at::isFloatingType(real);
  const at::ScalarType dtype = is_forward || !has_dtype ? real : c10::toComplexType(real);
  const Tensor like = at::zeros({}, cotangent.options().dtype(dtype)).expand(shape);
  fft::Arguments arguments = fft::read_arguments(like, options, kDirection);
  if (arguments.problem.empty() && !has_dims) {
    arguments.problem = "extents are two numbers, of the tensor along dim";
  }
  if (arguments.problem.empty() && cotangent.is_complex() != is_forward) {
    arguments.problem =
        fmt::format("the adjoint of {}rfft2 takes {} numbers, not {}", is_forward ? "" : "i",
                    is_forward ? "complex" : "real", c10::toString(cotangent.scalar_type()));
  }
  const auto plan = fft::make_plan(like, options, arguments);
  const int64_t rows = is_forward ? plan->own_rows() : int64_t{plan->shape().field_height};
  const int64_t columns =
      is_forward ? int64_t{plan->shape().spectrum_columns} : plan->own_columns();
  if (cotangent.size(dim0) != rows || cotangent.size(dim1) != columns) {
    plan->refuse(fmt::format("the tensor is {} x {} along dim; {} x {} is expected",
                             cotangent.size(dim0), cotangent.size(dim1), rows, columns));
  }
  const fft::Planes planes(cotangent, options.dim);
  Tensor result;
  if (is_forward) {
    result = plan->inverse(planes.tensor * plan->weights(0.5, planes.tensor), arguments.scale);
  } else {
    result = plan->forward(planes.tensor, arguments.scale);
    result = result * plan->weights(2, result);
  }
  return planes_last(planes.restored(result), dim);
}

// Meta.

Tensor empty_planes(const Tensor& like, IntArrayRef dim, at::ScalarType dtype,
                    const SymInt& extent0, const SymInt& extent1) {
  std::vector<SymInt> shape = like.movedim(dim, {-2, -1}).sym_sizes().vec();
  shape[shape.size() - 2] = extent0;
  shape[shape.size() - 1] = extent1;
  return at::empty_symint(shape, like.options().dtype(dtype)).movedim({-2, -1}, dim);
}

// s[index], or the absent value.
std::optional<SymInt> given(OptionalSymIntArrayRef s, size_t index) {
  if (!s.has_value() || (*s)[index] == -1) return std::nullopt;
  return (*s)[index];
}

SymInt sum_of(const char* name, OptionalSymIntArrayRef input_sizes, const char* extent) {
  TORCH_CHECK_VALUE(input_sizes.has_value(), name, ": without ", extent,
                    " or input_sizes the ranks tell each other their extents, so that a traced "
                    "call needs one of them");
  SymInt sum = 0;
  for (const SymInt& size : *input_sizes) sum = sum + size;
  return sum;
}

SymInt own_output(OptionalSymIntArrayRef output_sizes, const SymInt& extent, string_view name) {
  const GroupHandle group = group_named(name);
  if (!output_sizes.has_value()) {
    return sym_split(extent, group->getSize(), group->getRank()).size;
  }
  TORCH_CHECK_VALUE(static_cast<int>(output_sizes->size()) == group->getSize(), "output_sizes has ",
                    output_sizes->size(), " elements for a group of ", group->getSize(), " ranks");
  return (*output_sizes)[static_cast<size_t>(group->getRank())];
}

void check_lists(const Tensor& input, OptionalSymIntArrayRef s, IntArrayRef dim) {
  int64_t dim0 = 0;
  int64_t dim1 = 0;
  TORCH_CHECK_VALUE(read_dims(dim, input.dim(), dim0, dim1) && (!s.has_value() || s->size() == 2),
                    "a two-dimensional transform takes two different dims and two extents, or none,"
                    " as s; dim is ",
                    dim, " for ", input.dim(), " dimensions");
}

Tensor rfft2_meta(const Tensor& input, OptionalSymIntArrayRef s, IntArrayRef dim, string_view,
                  OptionalSymIntArrayRef input_sizes, OptionalSymIntArrayRef output_sizes,
                  string_view group) {
  check_lists(input, s, dim);
  const std::optional<SymInt> height = given(s, 0);
  const std::optional<SymInt> width = given(s, 1);
  const SymInt rows = height ? *height : input.sym_size(dim[0]);
  const SymInt columns = (width ? *width : sum_of("rfft2", input_sizes, "s[1]")) / 2 + 1;
  return empty_planes(input, dim, c10::toComplexType(input.scalar_type()),
                      own_output(output_sizes, rows, group), columns);
}

Tensor irfft2_meta(const Tensor& input, OptionalSymIntArrayRef s, IntArrayRef dim, string_view,
                   OptionalSymIntArrayRef input_sizes, OptionalSymIntArrayRef output_sizes,
                   string_view group) {
  check_lists(input, s, dim);
  const std::optional<SymInt> height = given(s, 0);
  const std::optional<SymInt> width = given(s, 1);
  const SymInt rows = height ? *height : sum_of("irfft2", input_sizes, "s[0]");
  const SymInt columns = width ? *width : (input.sym_size(dim[1]) - 1) * 2;
  return empty_planes(input, dim, c10::toRealValueType(input.scalar_type()), rows,
                      own_output(output_sizes, columns, group));
}

template <Direction kDirection>
Tensor adjoint_meta(const Tensor& cotangent, SymIntArrayRef extents, OptionalSymIntArrayRef s,
                    IntArrayRef dim, string_view, OptionalSymIntArrayRef, OptionalSymIntArrayRef,
                    string_view) {
  check_lists(cotangent, s, dim);
  TORCH_CHECK_VALUE(extents.size() == 2, "extents are two numbers, of the tensor along dim");
  const at::ScalarType real = c10::toRealValueType(cotangent.scalar_type());
  return empty_planes(cotangent, dim,
                      kDirection == Direction::kForward ? real : c10::toComplexType(real),
                      extents[0], extents[1]);
}

// Autograd.

// The backward pass needs the extents that the ranks tell each other, so they do it here, once.
template <Direction kDirection>
SymSizes input_sizes_told(const Tensor& input, OptionalSymIntArrayRef s, IntArrayRef dim,
                          string_view norm, OptionalSymIntArrayRef input_sizes, string_view group) {
  if (input_sizes.has_value() || has_no_memory(input) || !wants_gradient(input)) {
    return kept(input_sizes);
  }
  std::optional<std::vector<int64_t>> extents;
  if (s.has_value()) extents = C10_AS_INTARRAYREF_SLOW(*s).vec();
  const FftOptions options = options_of(extents ? OptionalIntArrayRef(*extents) : std::nullopt, dim,
                                        norm, std::nullopt, std::nullopt, group);
  const fft::Arguments arguments = fft::read_arguments(input, options, kDirection);
  const int64_t cut = kDirection == Direction::kForward ? arguments.dim1 : arguments.dim0;
  const c10::NoGradGuard no_grad;
  const std::vector<int64_t> told = gather_extents(arguments.problem.empty() ? input.size(cut) : 0,
                                                   arguments.problem, options.group, input);
  return std::vector<SymInt>(told.begin(), told.end());
}

// What the adjoint's closure keeps of a call.
struct KeptCall {
  SymSizes s, input_sizes, output_sizes;
  std::vector<int64_t> dim;
  std::string norm, group;
};

template <Direction kDirection>
Tensor transform_autograd(const Tensor& input, OptionalSymIntArrayRef s, IntArrayRef dim,
                          string_view norm, OptionalSymIntArrayRef input_sizes,
                          OptionalSymIntArrayRef output_sizes, string_view group) {
  const SymSizes told = input_sizes_told<kDirection>(input, s, dim, norm, input_sizes, group);
  return linear(
      input, group,
      [&](bool, string_view in) {
        return transform_operator(kDirection)
            .call(input, s, dim, norm, view_of(told), output_sizes, in);
      },
      [&](const Tensor&) -> Adjoint {
        std::vector<SymInt> extents = {input.sym_size(dim[0]), input.sym_size(dim[1])};
        return [call = KeptCall{kept(s), told, kept(output_sizes), dim.vec(), std::string(norm),
                                std::string(group)},
                extents = std::move(extents)](const Tensor& cotangent, Saved) {
          return adjoint_operator(kDirection)
              .call(cotangent, extents, view_of(call.s), call.dim, call.norm,
                    view_of(call.input_sizes), view_of(call.output_sizes), call.group);
        };
      });
}

template <Direction kDirection>
Tensor adjoint_autograd(const Tensor& cotangent, SymIntArrayRef extents, OptionalSymIntArrayRef s,
                        IntArrayRef dim, string_view norm, OptionalSymIntArrayRef input_sizes,
                        OptionalSymIntArrayRef output_sizes, string_view group) {
  return linear(
      cotangent, group,
      [&](bool, string_view in) {
        return adjoint_operator(kDirection)
            .call(cotangent, extents, s, dim, norm, input_sizes, output_sizes, in);
      },
      [&](const Tensor&) -> Adjoint {
        return
            [call = KeptCall{kept(s), kept(input_sizes), kept(output_sizes), dim.vec(),
                             std::string(norm), std::string(group)}](const Tensor& again, Saved) {
              return transform_operator(kDirection)
                  .call(again, view_of(call.s), call.dim, call.norm, view_of(call.input_sizes),
                        view_of(call.output_sizes), call.group);
            };
      });
}

void define(torch::Library& m, const char* name, const char* extents) {
  const std::string schema = fmt::format(
      "{}(Tensor input, {}SymInt[]? s=None, int[] dim=[-2, -1], str norm=\"ortho\", "
      "SymInt[]? input_sizes=None, SymInt[]? output_sizes=None, str group=\"\") -> Tensor",
      name, extents);
  m.def(schema.c_str(), {at::Tag::pt2_compliant_tag});
}

constexpr Direction kForward = Direction::kForward;
constexpr Direction kInverse = Direction::kInverse;

}  // namespace

TORCH_LIBRARY_FRAGMENT(meshrun, m) {
  define(m, "rfft2", "");
  define(m, "irfft2", "");
  define(m, "rfft2_adjoint", "SymInt[] extents, ");
  define(m, "irfft2_adjoint", "SymInt[] extents, ");
}

TORCH_LIBRARY_IMPL(meshrun, CPU, m) {
  m.impl("rfft2", TORCH_FN(transform_kernel<kForward>));
  m.impl("irfft2", TORCH_FN(transform_kernel<kInverse>));
  m.impl("rfft2_adjoint", TORCH_FN(adjoint_kernel<kForward>));
  m.impl("irfft2_adjoint", TORCH_FN(adjoint_kernel<kInverse>));
}
TORCH_LIBRARY_IMPL(meshrun, CUDA, m) {
  m.impl("rfft2", TORCH_FN(transform_kernel<kForward>));
  m.impl("irfft2", TORCH_FN(transform_kernel<kInverse>));
  m.impl("rfft2_adjoint", TORCH_FN(adjoint_kernel<kForward>));
  m.impl("irfft2_adjoint", TORCH_FN(adjoint_kernel<kInverse>));
}
TORCH_LIBRARY_IMPL(meshrun, Meta, m) {
  m.impl("rfft2", TORCH_FN(rfft2_meta));
  m.impl("irfft2", TORCH_FN(irfft2_meta));
  m.impl("rfft2_adjoint", TORCH_FN(adjoint_meta<kForward>));
  m.impl("irfft2_adjoint", TORCH_FN(adjoint_meta<kInverse>));
}
TORCH_LIBRARY_IMPL(meshrun, Autograd, m) {
  m.impl("rfft2", TORCH_FN(transform_autograd<kForward>));
  m.impl("irfft2", TORCH_FN(transform_autograd<kInverse>));
  m.impl("rfft2_adjoint", TORCH_FN(adjoint_autograd<kForward>));
  m.impl("irfft2_adjoint", TORCH_FN(adjoint_autograd<kInverse>));
}

}  // namespace meshrun::python
