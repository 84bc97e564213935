// One case of the benchmark: what each rank has, what it must get, how it is cut in pieces.
//
// Data is random and seeded, so each rank knows every other's and computes what it must get.
// bytes: size of the largest tensor of the call (nccl-tests' convention): the whole of an
// all_gather_v, reduce_scatter_v, gather_v, scatter_v; a rank's tensor elsewhere.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "c10/core/Scalar.h"
#include "c10/core/ScalarType.h"

namespace meshrun::bench {

struct Case {
  std::string operation;
  int64_t bytes = 0;
  // Pieces in the ratio 1 : 2 : ... : P instead of equal ones.
  bool skewed = false;
  // Cut along the last dimension, rows of up to 1,024 elements, instead of the first, rows of up to
  // 128.
  bool last_dim = false;
};

// All operations, in the order of the table.
const std::vector<std::string>& operations();
bool has_last_dim(const std::string& operation);

enum class Check : uint8_t {
  kBits,  // moves: the same bits as expected
  kSum,   // within `tolerance` of `expected`, which is float64
};

class Problem {
 public:
  Problem(const Case& what, int rank, int size, c10::ScalarType dtype);

  Case what;
  int rank = 0;
  int size = 1;
  int64_t dim = 0;
  std::vector<int64_t> shape;  // of the whole
  std::vector<int64_t> sizes;  // the pieces' extents along dim, by rank
  // table[i][j]: what rank i sends to rank j, of all-to-alls.
  std::vector<std::vector<int64_t>> table;
  std::vector<at::Tensor> indices;  // by peer

  at::Tensor input;     // this rank's
  at::Tensor expected;  // undefined: this rank gets nothing
  Check check = Check::kBits;
  double tolerance = 0;
  // What the busiest rank writes at least; for sums: reads.
  int64_t bound_bytes = 0;

  std::vector<int64_t> sent() const { return table[rank]; }
  std::vector<int64_t> received() const;
  // That lie together, where they lie so least.
  int64_t run_bytes() const;
  // With `extent` along dim.
  std::vector<int64_t> shape_with(int64_t extent) const;
  // Empty unless `result` is what it must be.
  std::string problem_of(const at::Tensor& result) const;

 private:
  at::Tensor random(const std::vector<int64_t>& shape, uint64_t seed) const;
  std::vector<int64_t> split(int64_t extent) const;
  void indexed(bool backward);

  c10::ScalarType dtype_;
};

}  // namespace meshrun::bench
