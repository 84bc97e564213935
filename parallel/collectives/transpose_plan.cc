#include "parallel/collectives/transpose_plan.h"

#include <algorithm>
#include <utility>

#include "c10/util/Exception.h"
#include "fmt/format.h"
#include "parallel/base/collective_errors.h"
#include "parallel/collectives/call/autograd_node.h"

namespace meshrun {
namespace {

Cut checked_cut(const char* name, int64_t dim, const std::vector<int64_t>& sizes, int world) {
  const std::string problem = check_extents(name, sizes, -1, world);
  TORCH_CHECK_VALUE(problem.empty(), "TransposePlan: ", problem);
  return {dim, Extents(sizes.begin(), sizes.end())};
}

}  // namespace

TransposePlan::TransposePlan(IntArgument dim0, std::vector<int64_t> dim0_sizes, IntArgument dim1,
                             std::vector<int64_t> dim1_sizes, const GroupArgument& group,
                             IntArgument also_agreed)
    : collective_(make_collective(group)) {
  TORCH_CHECK_VALUE(dim0 >= 0 && dim1 >= 0 && dim0 != dim1, "TransposePlan: dims ",
                    static_cast<int64_t>(dim0), " and ", static_cast<int64_t>(dim1),
                    " should be two, counted from the front");
  CollectiveSpec& spec = collective_->spec;
  spec.kind = CollectiveSpec::Kind::kAllToAllV;
  spec.cut = checked_cut("dim0_sizes", dim0, dim0_sizes, collective_->world);
  spec.received = checked_cut("dim1_sizes", dim1, dim1_sizes, collective_->world);
  agree_on_transpose(spec, static_cast<uint64_t>(also_agreed));
}

TransposePlan::TransposePlan(const TransposePlan&) = default;
TransposePlan& TransposePlan::operator=(const TransposePlan&) = default;
TransposePlan::~TransposePlan() = default;

CollectivePtr TransposePlan::checked(const at::Tensor& tensor, bool back) const {
  const CollectiveSpec& spec = collective_->spec;
  const Cut& cut = back ? spec.received : spec.cut;
  const Cut& held = back ? spec.cut : spec.received;
  const int64_t whole = cut.total();
  const int64_t own = held.of(collective_->rank);
  std::string problem = tensor_problem(tensor);
  if (!problem.empty()) {
    // That is it.
  } else if (tensor.dim() <= std::max(cut.dim, held.dim)) {
    problem = fmt::format("the tensor has {} dimensions, and the plan moves dim {} and dim {}",
                          tensor.dim(), cut.dim, held.dim);
  } else if (tensor.size(cut.dim) != whole || tensor.size(held.dim) != own) {
    problem = fmt::format(
        "the tensor has {} along dim {} and {} along dim {}; the plan has {} and, on rank {}, {}",
        tensor.size(cut.dim), cut.dim, tensor.size(held.dim), held.dim, whole, collective_->rank,
        own);
  }
  return problem.empty() ? collective_ : with_problem(*collective_, std::move(problem));
}

at::Tensor TransposePlan::to_dim0(const at::Tensor& tensor) const {
  return differentiable(tensor, checked(tensor, false));
}

at::Tensor TransposePlan::to_dim1(const at::Tensor& tensor) const {
  return differentiable(tensor, checked(tensor, true), Direction::kBack);
}

AsyncTensor TransposePlan::to_dim0_async(const at::Tensor& tensor) const {
  return asynchronously([&](WorkPtr* work) {
    return differentiable(tensor, checked(tensor, false), Direction::kForward, work);
  });
}

AsyncTensor TransposePlan::to_dim1_async(const at::Tensor& tensor) const {
  return asynchronously([&](WorkPtr* work) {
    return differentiable(tensor, checked(tensor, true), Direction::kBack, work);
  });
}

void TransposePlan::refuse(const std::string& problem) const {
  launch(*with_problem(*collective_, problem), {});
  throw CollectiveArgumentError(problem);
}

const GroupArgument::Handle& TransposePlan::group() const { return collective_->group; }
int TransposePlan::rank() const { return collective_->rank; }
int TransposePlan::world() const { return collective_->world; }

int64_t TransposePlan::bytes_sent(IntArgument element_size) const {
  const CollectiveSpec& spec = collective_->spec;
  const int64_t others = spec.cut.total() - collective_->own();
  return others * spec.received.of(collective_->rank) * element_size;
}

std::vector<int64_t> gather_extents(IntArgument extent, const std::string& problem,
                                    const GroupArgument& group, const at::Tensor& on_device_of) {
  const CollectivePtr collective = make_collective(group);
  collective->spec.problem = problem;
  const Extents extents = tell_extents(on_device_of, *collective, extent);
  return {extents.begin(), extents.end()};
}

}  // namespace meshrun
