#include "parallel/collectives/planned_collective.h"

#include <algorithm>
#include <utility>

#include "c10/util/Exception.h"
#include "fmt/format.h"
#include "parallel/base/collective_errors.h"
#include "parallel/base/sharded_key.h"
#include "parallel/collectives/call/launch.h"

namespace meshrun {
namespace {

using Kind = CollectiveSpec::Kind;

Cut checked(const char* name, const PlannedCollective::Along& along, int world) {
  TORCH_CHECK_VALUE(along.dim >= 0, "PlannedCollective: dim ", static_cast<int64_t>(along.dim),
                    " should count from the front");
  const std::string problem = check_extents(name, along.sizes, -1, world);
  TORCH_CHECK_VALUE(problem.empty(), "PlannedCollective: ", problem);
  return {along.dim, Extents(along.sizes.begin(), along.sizes.end())};
}

std::string problem_along(const at::Tensor& tensor, int64_t dim, int64_t extent, int rank) {
  if (extent < 0 || tensor.size(dim) == extent) return {};
  return fmt::format("the tensor has {} along dim {}, and {} is expected on rank {}",
                     tensor.size(dim), dim, extent, rank);
}

}  // namespace

PlannedCollective::PlannedCollective(uint8_t kind, Along pieces, Along received,
                                     const GroupArgument& group, Agreement agreement)
    : collective_(make_collective(group)) {
  CollectiveSpec& spec = collective_->spec;
  spec.kind = static_cast<Kind>(kind);
  spec.cut = checked("sizes", pieces, collective_->world);
  extent_ = spec.kind == Kind::kAllGatherV ? collective_->own() : spec.cut.total();
  if (spec.kind == Kind::kAllToAllV) {
    spec.received = checked("received sizes", received, collective_->world);
    if (spec.received.dim != spec.cut.dim) other_extent_ = spec.received.of(collective_->rank);
  }
  if (agreement.digest == 0) return;
  spec.agreed = agreement.digest;
  spec.say([words = std::move(agreement.words)] { return words; });
}

PlannedCollective PlannedCollective::all_gather(Along pieces, const GroupArgument& group,
                                                Agreement agreement) {
  return {
      static_cast<uint8_t>(Kind::kAllGatherV), std::move(pieces), {}, group, std::move(agreement)};
}

PlannedCollective PlannedCollective::reduce_scatter(Along pieces, const GroupArgument& group,
                                                    Agreement agreement) {
  return {static_cast<uint8_t>(Kind::kReduceScatterV),
          std::move(pieces),
          {},
          group,
          std::move(agreement)};
}

PlannedCollective PlannedCollective::scatter(Along pieces, IntArgument src,
                                             const GroupArgument& group, Agreement agreement) {
  PlannedCollective made(static_cast<uint8_t>(Kind::kScatterV), std::move(pieces), {}, group,
                         std::move(agreement));
  made.collective_->spec.root = src;
  if (!made.collective_->is_root()) made.extent_ = -1;
  return made;
}

PlannedCollective PlannedCollective::all_to_all(Along sent, Along received,
                                                const GroupArgument& group, Agreement agreement) {
  return {static_cast<uint8_t>(Kind::kAllToAllV), std::move(sent), std::move(received), group,
          std::move(agreement)};
}

PlannedCollective::PlannedCollective(const PlannedCollective&) = default;
PlannedCollective& PlannedCollective::operator=(const PlannedCollective&) = default;
PlannedCollective::~PlannedCollective() = default;

std::string PlannedCollective::problem_of(const at::Tensor& tensor) const {
  if (!tensor.defined() || is_sharded(tensor)) return tensor_problem(tensor);
  const CollectiveSpec& spec = collective_->spec;
  const int64_t last = std::max(spec.cut.dim, spec.received.dim);
  if (tensor.dim() <= last) {
    return fmt::format("the tensor has {} dimensions, and dim {} is moved", tensor.dim(), last);
  }
  std::string problem = problem_along(tensor, spec.cut.dim, extent_, collective_->rank);
  if (!problem.empty()) return problem;
  return problem_along(tensor, spec.received.dim, other_extent_, collective_->rank);
}

at::Tensor PlannedCollective::operator()(const at::Tensor& tensor, WorkPtr* work) const {
  std::string problem = problem_of(tensor);
  if (problem.empty()) return launch(*collective_, tensor, {.work = work});
  return launch(*with_problem(*collective_, std::move(problem)), tensor, {.work = work});
}

void PlannedCollective::refuse(const std::string& problem) const {
  launch(*with_problem(*collective_, problem), {});
  throw CollectiveArgumentError(problem);
}

}  // namespace meshrun
