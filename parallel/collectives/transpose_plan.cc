#include "parallel/collectives/transpose_plan.h"

#include <numeric>
#include <utility>

#include "c10/util/Exception.h"
#include "fmt/format.h"
#include "parallel/base/collective_errors.h"
#include "parallel/collectives/differentiable.h"

namespace meshrun {
namespace {

void check_sizes(const char* name, const std::vector<int64_t>& sizes, int world) {
  const std::string problem = check_extents(name, sizes, -1, world);
  TORCH_CHECK_VALUE(problem.empty(), "TransposePlan: ", problem);
}

}  // namespace

TransposePlan::TransposePlan(IntArgument dim0, std::vector<int64_t> dim0_sizes, IntArgument dim1,
                             std::vector<int64_t> dim1_sizes, const GroupArgument& group,
                             IntArgument also_agreed)
    : exchange_(make_exchange(group)) {
  TORCH_CHECK_VALUE(dim0 >= 0 && dim1 >= 0 && dim0 != dim1, "TransposePlan: dims ",
                    static_cast<int64_t>(dim0), " and ", static_cast<int64_t>(dim1),
                    " should be two, counted from the front");
  check_sizes("dim0_sizes", dim0_sizes, exchange_->world);
  check_sizes("dim1_sizes", dim1_sizes, exchange_->world);
  exchange_->dim = dim0;
  exchange_->sizes.assign(dim0_sizes.begin(), dim0_sizes.end());
  exchange_->other_dim = dim1;
  exchange_->other_sizes.assign(dim1_sizes.begin(), dim1_sizes.end());
  agree_on_transpose(*exchange_, static_cast<uint64_t>(also_agreed));
}

TransposePlan::TransposePlan(const TransposePlan&) = default;
TransposePlan& TransposePlan::operator=(const TransposePlan&) = default;
TransposePlan::~TransposePlan() = default;

ExchangePtr TransposePlan::checked(const at::Tensor& tensor, bool back) const {
  const Extents& cut = back ? exchange_->other_sizes : exchange_->sizes;
  const Extents& held = back ? exchange_->sizes : exchange_->other_sizes;
  const int64_t cut_dim = back ? exchange_->other_dim : exchange_->dim;
  const int64_t held_dim = back ? exchange_->dim : exchange_->other_dim;
  const int64_t whole = std::accumulate(cut.begin(), cut.end(), int64_t{0});
  const int64_t own = held[static_cast<size_t>(exchange_->rank)];
  std::string problem = tensor_problem(tensor);
  if (!problem.empty()) {
    // That is it.
  } else if (tensor.dim() <= std::max(cut_dim, held_dim)) {
    problem = fmt::format("the tensor has {} dimensions, and the plan moves dim {} and dim {}",
                          tensor.dim(), cut_dim, held_dim);
  } else if (tensor.size(cut_dim) != whole || tensor.size(held_dim) != own) {
    problem = fmt::format(
        "the tensor has {} along dim {} and {} along dim {}; the plan has {} and, on rank {}, {}",
        tensor.size(cut_dim), cut_dim, tensor.size(held_dim), held_dim, whole, exchange_->rank,
        own);
  }
  if (problem.empty()) return exchange_;
  auto wrong = c10::make_intrusive<Exchange>(*exchange_);
  wrong->problem = std::move(problem);
  return wrong;
}

at::Tensor TransposePlan::to_dim0(const at::Tensor& tensor) const {
  return differentiable_all_to_all(tensor, checked(tensor, false), false);
}

at::Tensor TransposePlan::to_dim1(const at::Tensor& tensor) const {
  return differentiable_all_to_all(tensor, checked(tensor, true), true);
}

AsyncTensor TransposePlan::to_dim0_async(const at::Tensor& tensor) const {
  return asynchronously([&](WorkPtr* work) {
    return differentiable_all_to_all(tensor, checked(tensor, false), false, work);
  });
}

AsyncTensor TransposePlan::to_dim1_async(const at::Tensor& tensor) const {
  return asynchronously([&](WorkPtr* work) {
    return differentiable_all_to_all(tensor, checked(tensor, true), true, work);
  });
}

void TransposePlan::refuse(const std::string& problem) const {
  auto wrong = c10::make_intrusive<Exchange>(*exchange_);
  wrong->problem = problem;
  differentiable_all_to_all({}, wrong, false);
  throw CollectiveArgumentError(problem);
}

const GroupArgument::Handle& TransposePlan::group() const { return exchange_->group; }
int TransposePlan::rank() const { return exchange_->rank; }
int TransposePlan::world() const { return exchange_->world; }

int64_t TransposePlan::bytes_sent(IntArgument element_size) const {
  const int64_t others = exchange_->total() - exchange_->own();
  return others * exchange_->other_sizes[static_cast<size_t>(exchange_->rank)] * element_size;
}

std::vector<int64_t> gather_extents(IntArgument extent, const std::string& problem,
                                    const GroupArgument& group, const at::Tensor& on_device_of) {
  const ExchangePtr exchange = make_exchange(group);
  exchange->problem = problem;
  const Extents extents = tell_extents(on_device_of, *exchange, extent);
  return {extents.begin(), extents.end()};
}

}  // namespace meshrun
