#include "parallel/comm/interface/call_check.h"

#include "ATen/MemoryOverlap.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "parallel/base/extents.h"

namespace meshrun {

bool CallCheck::is_dense(const at::Tensor& tensor, std::string_view name) {
  if (is_wrong()) return false;
  return require(tensor.defined(),
                 [&] { return fmt::format("{} is an undefined tensor", name); }) &&
         require(tensor.layout() == at::kStrided && !tensor.is_quantized(),
                 [&] {
                   return fmt::format(
                       "{} is not a dense tensor: it is {}", name,
                       tensor.is_quantized() ? "quantized" : c10::str(tensor.layout()));
                 }) &&
         // Autograd makes such gradients.
         require(!tensor._is_zerotensor(), [&] {
           return fmt::format("{} is a tensor of zeros without memory; pass its clone()", name);
         });
}

bool CallCheck::has_own_elements(const at::Tensor& tensor, std::string_view name) {
  if (is_wrong()) return false;
  return require(at::has_internal_overlap(tensor) != at::MemOverlap::Yes, [&] {
    return fmt::format("{} is expanded: several of its elements are the same memory", name);
  });
}

bool CallCheck::has_extent(const at::Tensor& tensor, int64_t dim, int64_t extent,
                           std::string_view name) {
  return require(tensor.defined(),
                 [&] { return fmt::format("{} is an undefined tensor", name); }) &&
         require(dim >= 0 && dim < tensor.dim() && tensor.size(dim) == extent, [&] {
           return fmt::format("{} is [{}], and must have {} along dim {}", name,
                              fmt::join(tensor.sizes(), ", "), extent, dim);
         });
}

bool CallCheck::are_sizes(at::IntArrayRef sizes, int world, std::string_view name) {
  if (!is_wrong()) problem_ = check_extents(name, sizes, -1, world);
  return !is_wrong();
}

bool CallCheck::is_rank(int64_t rank, int world, std::string_view name) {
  if (!is_wrong()) problem_ = check_rank(name, rank, world);
  return !is_wrong();
}

bool CallCheck::fits(const CollectiveSpec& spec, int rank, int world, const at::Tensor& output,
                     const at::Tensor& input) {
  using Kind = CollectiveSpec::Kind;
  const Cut& cut = spec.cut;
  if (spec.kind == Kind::kAllToAllV) {
    return are_sizes(cut.sizes, world, "input_sizes") &&
           are_sizes(spec.received.sizes, world, "output_sizes") &&
           has_extent(input, cut.dim, cut.total(), "the input") &&
           has_extent(output, spec.received.dim, spec.received.total(), "the output") &&
           have_equal_ndim(input, output);
  }
  const bool is_rooted = spec.kind == Kind::kGatherV || spec.kind == Kind::kScatterV;
  if (!are_sizes(cut.sizes, world) || (is_rooted && !is_rank(spec.root, world, "the root"))) {
    return false;
  }
  const bool is_gathered = spec.kind == Kind::kAllGatherV || spec.kind == Kind::kGatherV;
  const bool has_input = spec.kind != Kind::kScatterV || rank == spec.root;
  const bool has_output = spec.kind != Kind::kGatherV || rank == spec.root;
  const int64_t own = cut.of(rank), all = cut.total();
  return (!has_input || has_extent(input, cut.dim, is_gathered ? own : all, "the input")) &&
         (!has_output || has_extent(output, cut.dim, is_gathered ? all : own, "the output")) &&
         (!has_input || !has_output || are_equal_beside(input, output, cut.dim));
}

bool CallCheck::are_equal_beside(const at::Tensor& input, const at::Tensor& output, int64_t dim) {
  if (is_wrong()) return false;
  bool equal = input.dim() == output.dim();
  for (int64_t d = 0; equal && d < input.dim(); ++d) {
    equal = d == dim || input.size(d) == output.size(d);
  }
  return require(equal, [&] {
    return fmt::format("input [{}] and output [{}] differ beside dim {}",
                       fmt::join(input.sizes(), ", "), fmt::join(output.sizes(), ", "), dim);
  });
}

bool CallCheck::have_equal_ndim(const at::Tensor& input, const at::Tensor& output) {
  if (is_wrong()) return false;
  return require(input.dim() == output.dim(), [&] {
    return fmt::format("the input has {} dims and the output {}", input.dim(), output.dim());
  });
}

bool CallCheck::are_of_one_kind(const at::Tensor& input, const at::Tensor& output) {
  if (is_wrong()) return false;
  return require(input.scalar_type() == output.scalar_type() && input.device() == output.device(),
                 [&] {
                   return fmt::format("the input is {} on {}, the output {} on {}",
                                      c10::toString(input.scalar_type()), input.device().str(),
                                      c10::toString(output.scalar_type()), output.device().str());
                 });
}

}  // namespace meshrun
