#include "parallel/collectives/plans/planned_collective.h"

#include <algorithm>
#include <utility>

#include "c10/util/Exception.h"
#include "fmt/format.h"
#include "parallel/base/collective_errors.h"
#include "parallel/collectives/call/launch.h"

namespace meshrun {
namespace {

using Kind = CollectiveSpec::Kind;

void check(const char* name, const Cut& cut, int world) {
  TORCH_CHECK_VALUE(cut.dim >= 0, name, ": dim ", cut.dim, " should count from the front");
  const std::string problem = check_extents(name, cut.sizes, -1, world);
  TORCH_CHECK_VALUE(problem.empty(), problem);
}

// `extent` -1: any.
std::string problem_along(const at::Tensor& tensor, int64_t dim, int64_t extent, int rank) {
  if (extent < 0 || tensor.size(dim) == extent) return {};
  return fmt::format("the tensor has {} along dim {}, and {} is expected on rank {}",
                     tensor.size(dim), dim, extent, rank);
}

// Along spec.cut, of what a rank passes. Off the root of a scatter the tensor is a template.
int64_t extent_of(const CollectiveSpec& spec, Kind kind, int rank) {
  if (kind == Kind::kAllGatherV || kind == Kind::kGatherV) return spec.cut.of(rank);
  return kind == Kind::kScatterV && rank != spec.root ? -1 : spec.cut.total();
}

std::string problem_of(const at::Tensor& tensor, const Collective& collective, Pass pass) {
  std::string problem = tensor_problem(tensor);
  if (!problem.empty()) return problem;
  const CollectiveSpec& spec = collective.spec;
  const int rank = collective.rank;
  const bool is_back = pass == Pass::kBackward;
  const bool is_all_to_all = spec.kind == Kind::kAllToAllV;
  const Cut& cut = is_all_to_all && is_back ? spec.received : spec.cut;
  const Cut& held = !is_all_to_all ? cut : is_back ? spec.cut : spec.received;
  const int64_t last = std::max(cut.dim, held.dim);
  if (tensor.dim() <= last) {
    return fmt::format("the tensor has {} dimensions, and dim {} is moved", tensor.dim(), last);
  }
  const int64_t extent = is_all_to_all
                             ? cut.total()
                             : extent_of(spec, is_back ? adjoint_of(spec.kind) : spec.kind, rank);
  problem = problem_along(tensor, cut.dim, extent, rank);
  if (!problem.empty() || held.dim == cut.dim) return problem;
  return problem_along(tensor, held.dim, held.of(rank), rank);
}

}  // namespace

PlannedCollective::PlannedCollective(CollectiveSpec spec, const GroupArgument& group)
    : collective_(make_collective(group)) {
  check("sizes", spec.cut, collective_->world);
  if (spec.kind == Kind::kAllToAllV) check("received sizes", spec.received, collective_->world);
  collective_->spec = std::move(spec);
}

PlannedCollective::PlannedCollective(const PlannedCollective&) = default;
PlannedCollective& PlannedCollective::operator=(const PlannedCollective&) = default;
PlannedCollective::~PlannedCollective() = default;

CollectivePtr PlannedCollective::fitted(const at::Tensor& tensor, Pass pass) const {
  std::string problem = problem_of(tensor, *collective_, pass);
  return problem.empty() ? collective_ : with_problem(*collective_, std::move(problem));
}

at::Tensor PlannedCollective::operator()(const at::Tensor& tensor, WorkPtr* work) const {
  return launch(*fitted(tensor, Pass::kForward), tensor, {.work = work});
}

void PlannedCollective::refuse(const std::string& problem) const {
  launch(*with_problem(*collective_, problem), {});
  throw CollectiveArgumentError(problem);
}

}  // namespace meshrun
