// What the operators torch.ops.meshrun.* share. Each is a function of parallel/ as PyTorch's
// dispatcher has it, so that autograd, torch.compile and torch.export see it.
//
//   Autograd    linear_operator.h: the node, whose backward calls the adjoint operator
//   CPU, CUDA   the call itself. The interpreter lock is not held: torch.ops releases it
//   Meta        the result's shape, from symbolic extents. Nothing is sent
//
// Arguments that all have:
//   group           name of a c10d group (ProcessGroup.group_name); "": torch.distributed's default
//   sizes           extents by rank along `dim`, or the ranks' full shapes one after another;
//                   absent: all pieces are as large as this rank's
//   differentiable  whether this rank has a node for the call, which the ranks compare. The
//                   Autograd kernels set it, and traced graphs keep it: compiled and eager ranks
//                   agree
//
// Errors: those of the C++ functions, on every rank. Meta kernels raise on this rank alone; the
// shapes that they are asked for are the program's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "c10/core/SymInt.h"
#include "c10/util/intrusive_ptr.h"
#include "parallel/base/sizes.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun::python {

using GroupHandle = c10::intrusive_ptr<c10d::ProcessGroup>;

// Raises RuntimeError where this process has no group of that name.
GroupHandle group_named(std::string_view name);

// meshrun/_torch_entry.py's: a group of the same name has other members now.
void forget_traced_programs();

// What traced operators keep of `sizes`.
using SymSizes = std::optional<std::vector<c10::SymInt>>;
SymSizes kept(at::OptionalSymIntArrayRef sizes);
at::OptionalSymIntArrayRef view_of(const SymSizes& sizes);

// `sizes` of an operator for a tensor of `ndim` dimensions.
Sizes sizes_of(at::OptionalIntArrayRef sizes, int64_t ndim, int world);

// What Meta kernels compute with. `dim` counts from the front.
struct SymPieces {
  int64_t dim = 0;
  // By rank; empty where sizes are absent.
  std::vector<c10::SymInt> extents;

  c10::SymInt total() const;
};
// ValueError, IndexError: `sizes` or `dim` do not fit.
SymPieces sym_pieces(const at::Tensor& tensor, at::OptionalSymIntArrayRef sizes, int64_t dim,
                     int world);
// Piece of `rank` by compute_split_shapes (parallel/base/split.h).
struct SymRange {
  c10::SymInt begin, size;
};
SymRange sym_split(const c10::SymInt& extent, int world, int rank);
// Like `tensor` except its extent along `dim`. Uninitialised, contiguous.
at::Tensor meta_with_extent(const at::Tensor& tensor, int64_t dim, const c10::SymInt& extent);

// A tensor of a trace, or of shapes alone. Such a call must not ask a peer.
bool has_no_memory(const at::Tensor& tensor);

// A group's name as traced graphs have it: its mark says, when the graph runs, that nobody knows
// which call of a backward pass that is (NodeNumber::untold). group_named() takes both.
std::string in_trace(std::string_view group);
bool is_in_trace(std::string_view group);

template <typename Function>
c10::TypedOperatorHandle<Function> find_operator(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Function>();
}

// all_gather_v, which the mappings use too, and reduce_scatter_v.
using SymmetricOperator = at::Tensor(const at::Tensor& tensor, at::OptionalSymIntArrayRef sizes,
                                     int64_t dim, bool use_fp32, std::string_view group,
                                     bool differentiable);
const c10::TypedOperatorHandle<SymmetricOperator>& all_gather_v_operator();

}  // namespace meshrun::python
