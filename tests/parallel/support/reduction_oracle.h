// What plain loops make of the contributions of ranks, element by element: the oracle of every
// reduction, without LibTorch. tensor_oracle.h has sums of tensors. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "parallel/base/dtype.h"
#include "parallel/base/reduce.h"

namespace meshrun {

// `a op b`, an average without its division. Integers wrap; NaN wins.
template <class T>
T combined(ReductionOp op, T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    const auto x = static_cast<uint64_t>(static_cast<U>(a));
    const auto y = static_cast<uint64_t>(static_cast<U>(b));
    if (op == ReductionOp::kSum) return static_cast<T>(x + y);
    if (op == ReductionOp::kProduct) return static_cast<T>(x * y);
    if (op == ReductionOp::kAnd) return static_cast<T>(x & y);
    if (op == ReductionOp::kOr) return static_cast<T>(x | y);
    if (op == ReductionOp::kXor) return static_cast<T>(x ^ y);
  } else {
    if (op == ReductionOp::kSum || op == ReductionOp::kAverage) return a + b;
    if (op == ReductionOp::kProduct) return a * b;
  }
  if (a != a) return a;
  if (b != b) return b;
  return op == ReductionOp::kMin ? std::min(a, b) : std::max(a, b);
}

// Equally many elements of each rank, combined in rank order; one rank or more.
template <class T>
std::vector<T> reduced_in_rank_order(std::span<const std::vector<T>> of_ranks, ReductionOp op) {
  std::vector<T> result = of_ranks[0];
  for (const std::vector<T>& of_rank : of_ranks.subspan(1)) {
    for (size_t i = 0; i < result.size(); ++i) result[i] = combined(op, result[i], of_rank[i]);
  }
  if (op == ReductionOp::kAverage) {
    for (T& x : result) x /= static_cast<T>(of_ranks.size());
  }
  return result;
}

using Contribution = std::vector<std::byte>;

namespace detail {

template <class T>
Contribution sum_of_bytes(std::span<const Contribution> of_ranks) {
  std::vector<std::vector<T>> values;
  for (const Contribution& bytes : of_ranks) {
    values.emplace_back(bytes.size() / sizeof(T));
    if (!bytes.empty()) std::memcpy(values.back().data(), bytes.data(), bytes.size());
  }
  const std::vector<T> sum =
      reduced_in_rank_order(std::span<const std::vector<T>>(values), ReductionOp::kSum);
  Contribution result(of_ranks[0].size());
  if (!result.empty()) std::memcpy(result.data(), sum.data(), result.size());
  return result;
}

}  // namespace detail

// The sum of equally long contributions, in rank order. std::invalid_argument: a type that C++ does
// not compute with.
inline Contribution sum_in_rank_order(std::span<const Contribution> of_ranks, DType dtype) {
  switch (dtype) {
    case DType::kUInt8:
      return detail::sum_of_bytes<uint8_t>(of_ranks);
    case DType::kInt32:
      return detail::sum_of_bytes<int32_t>(of_ranks);
    case DType::kInt64:
      return detail::sum_of_bytes<int64_t>(of_ranks);
    case DType::kFloat32:
      return detail::sum_of_bytes<float>(of_ranks);
    case DType::kFloat64:
      return detail::sum_of_bytes<double>(of_ranks);
    default:
      throw std::invalid_argument(std::string("no plain loop adds ") + name_of(dtype));
  }
}

// As two levels add: the contributions of each host in rank order, then those sums in the order of
// the hosts. `hosts`: the ranks of each.
template <class Hosts>
Contribution sum_by_hosts(const Hosts& hosts, std::span<const Contribution> of_ranks, DType dtype) {
  std::vector<Contribution> partials;
  for (int host = 0; host < hosts.count(); ++host) {
    std::vector<Contribution> of_host;
    for (const int rank : hosts.ranks(host)) of_host.push_back(of_ranks[static_cast<size_t>(rank)]);
    partials.push_back(sum_in_rank_order(of_host, dtype));
  }
  return sum_in_rank_order(partials, dtype);
}

}  // namespace meshrun
