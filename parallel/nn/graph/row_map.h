// A list of rows of a tensor, read and added up: what edges do with the nodes at one of their ends.
//
//   RowMap ends(dst, num_nodes, device);
//   at::Tensor at_edges = ends.gather(nodes);  // [E, ...]: at_edges[e] = nodes[dst[e]]
//   at::Tensor at_nodes = ends.sum(at_edges);  // [N, ...]: the sum of the edges at each node
//
// Each is the other's backward, so both have derivatives of any order. Sums are added in the order
// of the list, without atomics: the same bits in every run. float16 and bfloat16 are added in
// float32 and rounded once. A row that the list does not have gets zeros.
//
// Copies share everything. Threads: any; immutable. Errors: c10::ValueError for tensors with
// another number of rows, c10::Error for dtypes that cannot be added.
#pragma once

#include <cstdint>
#include <span>

#include "ATen/core/Tensor.h"
#include "ATen/core/ivalue.h"
#include "c10/core/Device.h"
#include "parallel/base/arguments.h"

namespace meshrun {

class RowMap {
 public:
  // `rows`: from 0 to num_rows - 1, in any order.
  RowMap(std::span<const int64_t> rows, IntArgument num_rows, c10::Device device);

  // x is [num_rows, ...] and of the map's device.
  at::Tensor gather(const at::Tensor& x) const;
  // x is [the list's length, ...].
  at::Tensor sum(const at::Tensor& x) const;
  // How often the list has each row: int64 [num_rows].
  at::Tensor counts() const;

  // What nodes of the autograd graph keep.
  struct State : torch::CustomClassHolder {
    int64_t num_rows = 0;
    at::Tensor rows;
    // The inverse: row r is at positions[offsets[r]] up to positions[offsets[r + 1] - 1],
    // ascending.
    at::Tensor offsets;
    at::Tensor positions;
  };

 private:
  c10::intrusive_ptr<State> state_;
};

}  // namespace meshrun
