#include "parallel/collectives/call/collective.h"

#include <string_view>
#include <utility>

#include "ATen/ops/empty.h"
#include "ATen/ops/full.h"
#include "fmt/format.h"
#include "parallel/base/digest.h"
#include "parallel/base/sharded_key.h"
#include "parallel/base/split.h"
#include "parallel/collectives/call/launch.h"
#include "parallel/comm/v_collectives_of.h"

namespace meshrun {
namespace {

using Kind = CollectiveSpec::Kind;

// A piece of one element for each rank, with the root and the problem of `collective`.
CollectiveSpec ones_of(const Collective& collective, Kind kind) {
  CollectiveSpec spec;
  spec.kind = kind;
  spec.cut.sizes.assign(static_cast<size_t>(collective.world), 1);
  spec.root = collective.spec.root;
  spec.problem = collective.spec.problem;
  return spec;
}

// How large the equal pieces of rank src's tensor are, told by src to all. A scatter itself, so
// that what is wrong on any rank is heard by all, as ever.
int64_t tell_extent(const at::Tensor& tensor, const Collective& collective, int64_t extent) {
  const auto device = device_of(tensor, *collective.group);
  const at::TensorOptions options = at::TensorOptions(device).dtype(at::kLong);
  const at::Tensor told = at::empty({1}, options);
  const at::Tensor all =
      collective.is_root() ? at::full({collective.world}, extent, options) : at::Tensor();
  call_backend(collective.group, device, told, all,
               ones_of(collective, CollectiveSpec::Kind::kScatterV), collective.spec.problem, {});
  return told.item<int64_t>();
}

// `tensor` may be undefined, which is a problem.
CollectivePtr make(Kind kind, Role role, const at::Tensor& tensor, const Sizes& sizes, int64_t dim,
                   const GroupArgument& group) {
  CollectivePtr collective = make_collective(group);
  CollectiveSpec& spec = collective->spec;
  spec.kind = kind;
  spec.problem = tensor_problem(tensor);
  if (collective->is_wrong()) return collective;
  Pieces pieces = cut(role, sizes, tensor.sizes(), dim, collective->rank, collective->world);
  spec.problem = std::move(pieces.problem);
  spec.cut = {pieces.dim, std::move(pieces.extents)};
  return collective;
}

// `name`: of the argument.
void set_root(Collective& collective, std::string_view name, int64_t root) {
  CollectiveSpec& spec = collective.spec;
  spec.root = 0;  // until it is known to be one
  std::string problem = check_rank(name, root, collective.world);
  if (problem.empty()) {
    spec.root = root;
  } else if (spec.problem.empty()) {
    spec.problem = std::move(problem);
  }
}

}  // namespace

const char* tensor_problem(const at::Tensor& tensor) {
  if (!tensor.defined()) return "the tensor is undefined";
  return is_sharded(tensor) ? kTakesLocalTensors : "";
}

CollectivePtr make_collective(const GroupArgument& group) {
  auto collective = c10::make_intrusive<Collective>();
  collective->group = group.get();
  collective->rank = collective->group->getRank();
  collective->world = collective->group->getSize();
  return collective;
}

CollectivePtr with_problem(const Collective& collective, std::string problem) {
  auto wrong = c10::make_intrusive<Collective>(collective);
  wrong->spec.problem = std::move(problem);
  return wrong;
}

CollectivePtr make_all_gather(const at::Tensor& tensor, const Sizes& sizes, int64_t dim,
                              bool use_fp32, const GroupArgument& group) {
  CollectivePtr collective = make(Kind::kAllGatherV, Role::kPiece, tensor, sizes, dim, group);
  collective->spec.use_fp32 = use_fp32;
  return collective;
}

CollectivePtr make_reduce_scatter(const at::Tensor& tensor, const Sizes& sizes, int64_t dim,
                                  bool use_fp32, const GroupArgument& group) {
  CollectivePtr collective = make(Kind::kReduceScatterV, Role::kWhole, tensor, sizes, dim, group);
  collective->spec.use_fp32 = use_fp32;
  return collective;
}

CollectivePtr make_gather(const at::Tensor& tensor, const Sizes& sizes, int64_t dim, int64_t dst,
                          const GroupArgument& group) {
  CollectivePtr collective = make(Kind::kGatherV, Role::kPiece, tensor, sizes, dim, group);
  set_root(*collective, "dst", dst);
  return collective;
}

CollectivePtr make_scatter(const at::Tensor& tensor, const Sizes& sizes, int64_t dim, int64_t src,
                           const GroupArgument& group) {
  const auto resolved = group.get();
  const bool is_src = resolved->getRank() == src;
  // Without sizes the extent along dim has no meaning off src, so that any template is a piece.
  const Role role = is_src ? Role::kWhole : sizes.is_absent() ? Role::kPiece : Role::kTemplate;
  CollectivePtr collective = make(Kind::kScatterV, role, tensor, sizes, dim, resolved);
  set_root(*collective, "src", src);
  if (!sizes.is_absent()) return collective;
  const int64_t own = collective->is_wrong() ? 0 : collective->own();
  collective->spec.cut.sizes.assign(static_cast<size_t>(collective->world),
                                    tell_extent(tensor, *collective, own));
  return collective;
}

CollectivePtr make_all_to_all(const at::Tensor& tensor, at::IntArrayRef input_sizes,
                              at::IntArrayRef output_sizes, int64_t input_dim, int64_t output_dim,
                              const GroupArgument& group) {
  CollectivePtr collective = make_collective(group);
  CollectiveSpec& spec = collective->spec;
  spec.kind = Kind::kAllToAllV;
  std::string& problem = spec.problem;
  problem = tensor_problem(tensor);
  if (problem.empty()) problem = wrap_dim("input_dim", input_dim, tensor.dim());
  if (problem.empty()) problem = wrap_dim("output_dim", output_dim, tensor.dim());
  if (problem.empty()) {
    problem = check_extents("input_sizes", input_sizes, tensor.size(input_dim), collective->world);
  }
  if (problem.empty()) problem = check_extents("output_sizes", output_sizes, -1, collective->world);
  if (problem.empty() && input_dim != output_dim) {
    problem = check_piece("output_sizes", output_sizes, collective->rank, tensor.size(output_dim),
                          output_dim);
  }
  if (!problem.empty()) return collective;
  const auto own = static_cast<size_t>(collective->rank);
  if (input_dim == output_dim && output_sizes[own] != input_sizes[own]) {
    problem = fmt::format("output_sizes[{}] is {} on rank {}, which sends {} to itself",
                          collective->rank, output_sizes[own], collective->rank, input_sizes[own]);
    return collective;
  }
  spec.cut = {input_dim, Extents(input_sizes.begin(), input_sizes.end())};
  spec.received = {output_dim, Extents(output_sizes.begin(), output_sizes.end())};
  return collective;
}

CollectivePtr make_transpose(const at::Tensor& tensor, int64_t dim0, int64_t dim1,
                             const std::optional<std::vector<int64_t>>& dim1_sizes,
                             const GroupArgument& group) {
  CollectivePtr collective = make_collective(group);
  CollectiveSpec& spec = collective->spec;
  spec.kind = Kind::kAllToAllV;
  std::string& problem = spec.problem;
  problem = tensor_problem(tensor);
  if (problem.empty()) problem = wrap_dim("dim0", dim0, tensor.dim());
  if (problem.empty()) problem = wrap_dim("dim1", dim1, tensor.dim());
  if (problem.empty() && dim0 == dim1) {
    problem = fmt::format("dim0 and dim1 are both {}; a transpose needs two dimensions", dim0);
  }
  if (!dim1_sizes) {
    spec.received.sizes =
        tell_extents(tensor, *collective, problem.empty() ? tensor.size(dim1) : 0);
  } else if (problem.empty()) {
    spec.received.sizes.assign(dim1_sizes->begin(), dim1_sizes->end());
    problem = check_extents("dim1_sizes", *dim1_sizes, -1, collective->world);
    if (problem.empty()) {
      problem = check_piece("dim1_sizes", *dim1_sizes, collective->rank, tensor.size(dim1), dim1);
    }
  }
  if (!problem.empty()) return collective;
  const std::vector<int64_t> pieces = compute_split_shapes(tensor.size(dim0), collective->world);
  spec.cut = {dim0, Extents(pieces.begin(), pieces.end())};
  spec.received.dim = dim1;
  agree_on_transpose(spec);
  return collective;
}

void agree_on_transpose(CollectiveSpec& spec, const std::string& also) {
  const Cut& cut = spec.cut;
  const Cut& received = spec.received;
  Digest digest;
  digest.add(cut.dim).add(received.dim).add(static_cast<int64_t>(digest_of(also)));
  digest.add(cut.sizes).add(received.sizes);
  spec.agreed = digest.value() | 1;  // 0: nothing to compare
  spec.say([cut, received, also] {
    return fmt::format(" ({}{}transpose of dim {} {} and dim {} {})", also,
                       also.empty() ? "" : ", by ", cut.dim, to_words(cut.sizes), received.dim,
                       to_words(received.sizes));
  });
}

Extents tell_extents(const at::Tensor& tensor, const Collective& collective, int64_t extent) {
  const auto device = device_of(tensor, *collective.group);
  const at::TensorOptions options = at::TensorOptions(device).dtype(at::kLong);
  const at::Tensor own = at::full({1}, extent, options);
  const at::Tensor all = at::empty({collective.world}, options);
  call_backend(collective.group, device, all, own, ones_of(collective, Kind::kAllGatherV),
               collective.spec.problem, {});
  const at::Tensor here = all.cpu();
  const int64_t* const extents = here.const_data_ptr<int64_t>();
  return {extents, extents + collective.world};
}

}  // namespace meshrun
