#include "parallel/collectives/planned_collective.h"

#include <algorithm>
#include <utility>

#include "c10/util/Exception.h"
#include "fmt/format.h"
#include "parallel/base/collective_errors.h"
#include "parallel/base/sharded_key.h"
#include "parallel/collectives/exchange.h"

namespace meshrun {
namespace {

void set_pieces(const char* name, const PlannedCollective::Along& along, int world, int64_t& dim,
                Extents& sizes) {
  TORCH_CHECK_VALUE(along.dim >= 0, "PlannedCollective: dim ", static_cast<int64_t>(along.dim),
                    " should count from the front");
  const std::string problem = check_extents(name, along.sizes, -1, world);
  TORCH_CHECK_VALUE(problem.empty(), "PlannedCollective: ", problem);
  dim = along.dim;
  sizes.assign(along.sizes.begin(), along.sizes.end());
}

}  // namespace

PlannedCollective::PlannedCollective(Kind kind, Along pieces, Along received,
                                     const GroupArgument& group, Agreement agreement)
    : kind_(kind), exchange_(make_exchange(group)) {
  Exchange& exchange = *exchange_;
  set_pieces("sizes", pieces, exchange.world, exchange.dim, exchange.sizes);
  extent_ = kind == Kind::kAllGather ? exchange.own() : exchange.total();
  if (kind == Kind::kAllToAll) {
    set_pieces("received sizes", received, exchange.world, exchange.other_dim,
               exchange.other_sizes);
    if (exchange.other_dim != exchange.dim) {
      other_extent_ = exchange.other_sizes[static_cast<size_t>(exchange.rank)];
    }
  }
  exchange.agreed = agreement.digest;
  exchange.words = std::move(agreement.words);
}

PlannedCollective PlannedCollective::all_gather(Along pieces, const GroupArgument& group,
                                                Agreement agreement) {
  return {Kind::kAllGather, std::move(pieces), {}, group, std::move(agreement)};
}

PlannedCollective PlannedCollective::reduce_scatter(Along pieces, const GroupArgument& group,
                                                    Agreement agreement) {
  return {Kind::kReduceScatter, std::move(pieces), {}, group, std::move(agreement)};
}

PlannedCollective PlannedCollective::scatter(Along pieces, IntArgument src,
                                             const GroupArgument& group, Agreement agreement) {
  PlannedCollective made(Kind::kScatter, std::move(pieces), {}, group, std::move(agreement));
  made.exchange_->root = src.to_int();
  if (!made.exchange_->is_root()) made.extent_ = -1;
  return made;
}

PlannedCollective PlannedCollective::all_to_all(Along sent, Along received,
                                                const GroupArgument& group, Agreement agreement) {
  return {Kind::kAllToAll, std::move(sent), std::move(received), group, std::move(agreement)};
}

PlannedCollective::PlannedCollective(const PlannedCollective&) = default;
PlannedCollective& PlannedCollective::operator=(const PlannedCollective&) = default;
PlannedCollective::~PlannedCollective() = default;

std::string PlannedCollective::problem_of(const at::Tensor& tensor) const {
  if (!tensor.defined() || is_sharded(tensor)) return tensor_problem(tensor);
  const int64_t last = std::max(exchange_->dim, exchange_->other_dim);
  if (tensor.dim() <= last) {
    return fmt::format("the tensor has {} dimensions, and dim {} is moved", tensor.dim(), last);
  }
  if (extent_ >= 0 && tensor.size(exchange_->dim) != extent_) {
    return fmt::format("the tensor has {} along dim {}, and {} is expected on rank {}",
                       tensor.size(exchange_->dim), exchange_->dim, extent_, exchange_->rank);
  }
  if (other_extent_ >= 0 && tensor.size(exchange_->other_dim) != other_extent_) {
    return fmt::format("the tensor has {} along dim {}, and {} is expected on rank {}",
                       tensor.size(exchange_->other_dim), exchange_->other_dim, other_extent_,
                       exchange_->rank);
  }
  return {};
}

at::Tensor PlannedCollective::call(const at::Tensor& tensor, const ExchangePtr& exchange,
                                   WorkPtr* work) const {
  const CallForm form{false, work};
  switch (kind_) {
    case Kind::kAllGather:
      return meshrun::all_gather(tensor, *exchange, form);
    case Kind::kReduceScatter:
      return meshrun::reduce_scatter(tensor, *exchange, form);
    case Kind::kScatter:
      return meshrun::scatter(tensor, *exchange, form);
    case Kind::kAllToAll:
      break;
  }
  return meshrun::all_to_all(tensor, exchange, false, form);
}

at::Tensor PlannedCollective::operator()(const at::Tensor& tensor, WorkPtr* work) const {
  std::string problem = problem_of(tensor);
  if (problem.empty()) return call(tensor, exchange_, work);
  auto wrong = c10::make_intrusive<Exchange>(*exchange_);
  wrong->problem = std::move(problem);
  return call(tensor, wrong, work);
}

void PlannedCollective::refuse(const std::string& problem) const {
  auto wrong = c10::make_intrusive<Exchange>(*exchange_);
  wrong->problem = problem;
  call({}, wrong, nullptr);
  throw CollectiveArgumentError(problem);
}

}  // namespace meshrun
