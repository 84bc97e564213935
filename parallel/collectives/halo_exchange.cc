#include "parallel/collectives/halo_exchange.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "parallel/collectives/call/pieces.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun {
namespace {

// The exchange, and how much lies before one's own part of its result.
struct Plan {
  RangeExchange exchange;
  int64_t low = 0;
};

std::string check_width(const HaloWidth& width, bool periodic, int64_t whole) {
  if (width.low < 0 || width.high < 0) {
    return fmt::format("width is {} and {}; numbers of positions are expected",
                       static_cast<int64_t>(width.low), static_cast<int64_t>(width.high));
  }
  if (periodic && std::max<int64_t>(width.low, width.high) > whole) {
    return fmt::format("width is {} and {} of a periodic dimension of {}",
                       static_cast<int64_t>(width.low), static_cast<int64_t>(width.high), whole);
  }
  return {};
}

Plan plan_of(const at::Tensor& tensor, int64_t dim, const HaloWidth& width, const Sizes& sizes,
             bool periodic, const GroupArgument& group) {
  const GroupArgument::Handle handle = group.get();
  RangeExchange::Options options{periodic, /*compares=*/true, {}};
  Pieces pieces;
  if (!tensor.defined()) {
    options.problem = "the tensor is undefined";
  } else {
    pieces = cut(Role::kPiece, sizes, tensor.sizes(), dim, handle->getRank(), handle->getSize());
    options.problem = pieces.problem;
  }
  if (options.problem.empty()) options.problem = check_width(width, periodic, pieces.total);
  std::vector<int64_t> extents;
  std::vector<SplitRange> ranges;
  int64_t low = 0;
  if (options.problem.empty()) {
    extents.assign(pieces.extents.begin(), pieces.extents.end());
    int64_t begin = 0;
    for (const int64_t extent : extents) {
      const int64_t behind = pieces.total - begin - extent;
      const int64_t before = std::min<int64_t>(width.low, periodic ? pieces.total : begin);
      const int64_t after = std::min<int64_t>(width.high, periodic ? pieces.total : behind);
      if (static_cast<int>(ranges.size()) == handle->getRank()) low = before;
      ranges.push_back({begin - before, begin + extent + after});
      begin += extent;
    }
  }
  return {RangeExchange(pieces.dim, extents, ranges, handle, options), low};
}

}  // namespace

at::Tensor halo_exchange(const at::Tensor& tensor, IntArgument dim, const HaloWidth& width,
                         const Sizes& sizes, BoolArgument periodic, const GroupArgument& group) {
  at::Tensor result = plan_of(tensor, dim, width, sizes, periodic, group).exchange.gather(tensor);
  return result.is_alias_of(tensor) ? result.clone() : result;
}

PendingHalo::PendingHalo(RangeExchange exchange, at::Tensor tensor, int64_t low)
    : exchange_(std::move(exchange)),
      tensor_(std::move(tensor)),
      halo_(exchange_.receive_async(tensor_)),
      low_(low) {}

at::Tensor PendingHalo::wait() {
  if (!result_.defined()) {
    const at::Tensor halo = halo_.wait();
    result_ = exchange_.assemble(tensor_, halo);
    if (result_.is_alias_of(tensor_)) result_ = result_.clone();
    tensor_.reset();
  }
  return result_;
}

PendingHalo halo_exchange_async(const at::Tensor& tensor, IntArgument dim, const HaloWidth& width,
                                const Sizes& sizes, BoolArgument periodic,
                                const GroupArgument& group) {
  Plan plan = plan_of(tensor, dim, width, sizes, periodic, group);
  return {std::move(plan.exchange), tensor, plan.low};
}

}  // namespace meshrun
