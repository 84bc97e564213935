#include "tests/bench/collectives/problem.h"

#include <algorithm>
#include <numeric>

#include "ATen/CPUGeneratorImpl.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/equal.h"
#include "ATen/ops/index_select.h"
#include "ATen/ops/randint.h"
#include "ATen/ops/zeros.h"
#include "fmt/format.h"

namespace meshrun::bench {
namespace {

constexpr int64_t kLongRow = 1024;
constexpr int64_t kWideFrom = 16 << 10;

// Seeds; each is increased by a rank.
constexpr uint64_t kWhole = 1000;
constexpr uint64_t kOwn = 2000;
constexpr uint64_t kGradient = 3000;
constexpr uint64_t kIndices = 4000;

}  // namespace

const std::vector<std::string>& operations() {
  static const std::vector<std::string> names = {"all_gather_v",
                                                 "reduce_scatter_v",
                                                 "gather_v",
                                                 "scatter_v",
                                                 "indexed_all_to_all_v",
                                                 "indexed_all_to_all_v_backward",
                                                 "all_reduce",
                                                 "all_to_all"};
  return names;
}

bool has_last_dim(const std::string& operation) {
  return operation != "all_reduce" && operation != "all_to_all";
}

Problem::Problem(const Case& c, int own_rank, int world, c10::ScalarType dtype)
    : what(c), rank(own_rank), size(world), dim(c.last_dim ? 1 : 0), dtype_(dtype) {
  const int64_t elements = what.bytes / static_cast<int64_t>(c10::elementSize(dtype));
  const int64_t row = what.last_dim ? std::min<int64_t>(kLongRow, elements / 4)
                                    : (what.bytes >= kWideFrom ? 128 : 16);
  shape = {elements / row, row};
  sizes = split(shape[dim]);
  bound_bytes = what.bytes;
  const int64_t offset = std::accumulate(sizes.begin(), sizes.begin() + rank, int64_t{0});
  const auto piece_of = [&](const at::Tensor& whole) {
    return whole.narrow(dim, offset, sizes[rank]).contiguous();
  };
  const std::string& name = what.operation;
  if (name == "all_gather_v" || name == "gather_v" || name == "scatter_v") {
    const at::Tensor whole = random(shape, kWhole);
    const bool has_whole = name == "all_gather_v" || rank == 0;
    if (name == "scatter_v") {
      input = has_whole ? whole : at::empty(shape_with(0), dtype_);
      expected = piece_of(whole);
      bound_bytes = what.bytes / shape[dim] * *std::max_element(sizes.begin(), sizes.end());
    } else {
      input = piece_of(whole);
      // Each rank writes its own piece at the root.
      if (name == "gather_v") {
        bound_bytes = what.bytes / shape[dim] * *std::max_element(sizes.begin(), sizes.end());
      }
      if (has_whole) expected = whole;
    }
  } else if (name == "reduce_scatter_v" || name == "all_reduce") {
    check = Check::kSum;
    for (int r = 0; r < size; ++r) {
      const at::Tensor theirs = random(shape, kOwn + r);
      if (r == rank) input = theirs;
      const at::Tensor part = (name == "all_reduce" ? theirs : piece_of(theirs)).to(at::kDouble);
      expected = expected.defined() ? expected.add_(part) : part;
    }
    if (name == "reduce_scatter_v") {
      bound_bytes = what.bytes / shape[dim] * *std::max_element(sizes.begin(), sizes.end()) * size;
    }
  } else if (name == "all_to_all") {
    table.assign(size, sizes);
    std::vector<at::Tensor> parts;
    for (int r = 0; r < size; ++r) {
      const at::Tensor theirs = random(shape, kOwn + r);
      if (r == rank) input = theirs;
      parts.push_back(piece_of(theirs));
    }
    expected = at::cat(parts, dim);
  } else {
    indexed(name == "indexed_all_to_all_v_backward");
  }
  // Rounding of the result's type and of a sum of so many terms, each at most 1 in size.
  tolerance = (dtype_ == at::kBFloat16 ? 1.0 / 256 : 1e-6) * size * 8;
}

void Problem::indexed(bool backward) {
  table.assign(size, sizes);
  const auto indices_of = [&](int from, int to) {
    const auto generator = at::detail::createCPUGenerator(kIndices + from * size + to);
    return at::randint(shape[dim], {table[from][to]}, generator,
                       at::TensorOptions().dtype(at::kLong));
  };
  for (int r = 0; r < size; ++r) indices.push_back(indices_of(rank, r));
  const auto extent = [&](int r) { return table[0][r] * size; };
  bound_bytes = what.bytes / shape[dim] * extent(size - 1);
  if (!backward) {
    std::vector<at::Tensor> parts;
    for (int r = 0; r < size; ++r) {
      const at::Tensor theirs = random(shape, kOwn + r);
      if (r == rank) input = theirs;
      parts.push_back(at::index_select(theirs, dim, indices_of(r, rank)));
    }
    expected = at::cat(parts, dim);
    return;
  }
  check = Check::kSum;
  expected = at::zeros(shape, at::kDouble);
  for (int r = 0; r < size; ++r) {
    const at::Tensor theirs = random(shape_with(extent(r)), kGradient + r);
    if (r == rank) input = theirs;
    const at::Tensor part = theirs.narrow(dim, table[rank][r] * rank, table[rank][r]);
    expected.index_add_(dim, indices[r], part.to(at::kDouble));
  }
}

std::vector<int64_t> Problem::received() const {
  std::vector<int64_t> extents;
  for (const std::vector<int64_t>& row : table) extents.push_back(row[rank]);
  return extents;
}

int64_t Problem::run_bytes() const {
  const auto element = static_cast<int64_t>(input.element_size());
  const int64_t extent = indices.empty() ? *std::min_element(sizes.begin(), sizes.end()) : 1;
  return extent * element * (dim == 0 ? shape[1] : 1);
}

std::vector<int64_t> Problem::shape_with(int64_t extent) const {
  std::vector<int64_t> result = shape;
  result[dim] = extent;
  return result;
}

std::string Problem::problem_of(const at::Tensor& result) const {
  if (!expected.defined()) return {};
  if (!result.defined() || result.sizes() != expected.sizes()) return "wrong shape";
  if (check == Check::kBits) return at::equal(result, expected) ? "" : "wrong bits";
  const double error = result.to(at::kDouble).sub(expected).abs().max().item().toDouble();
  // Not NaN either.
  return error <= tolerance ? "" : fmt::format("off by {:g}, more than {:g}", error, tolerance);
}

at::Tensor Problem::random(const std::vector<int64_t>& extents, uint64_t seed) const {
  return at::empty(extents, at::kFloat)
      .uniform_(-1, 1, at::detail::createCPUGenerator(seed))
      .to(dtype_);
}

std::vector<int64_t> Problem::split(int64_t extent) const {
  std::vector<int64_t> result;
  int64_t left = extent;
  const int64_t weights = what.skewed ? int64_t{size} * (size + 1) / 2 : size;
  for (int r = 0; r + 1 < size; ++r) {
    result.push_back(extent * (what.skewed ? r + 1 : 1) / weights);
    left -= result.back();
  }
  result.push_back(left);
  return result;
}

}  // namespace meshrun::bench
