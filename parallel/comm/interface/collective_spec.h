// One collective as its caller describes it and every backend makes it.
//
//   kind              input                        output
//   kAllGatherV       this rank's piece            all pieces, along cut.dim
//   kReduceScatterV   all pieces                   the sum of all ranks' piece of this rank
//   kGatherV          this rank's piece            all pieces, on `root` alone
//   kScatterV         all pieces, on `root` alone  this rank's piece
//   kAllToAllV        a piece for each rank,       a piece from each rank,
//                     along cut.dim                along received.dim
//   c10d's kinds      as c10d::Backend has them; the ucx backend alone describes these so
//
// A description holds no tensor, so that autograd nodes and plans can keep it. What belongs to one
// call alone stands at the end.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "c10/util/ArrayRef.h"
#include "parallel/base/strided_span.h"
#include "parallel/comm/interface/cut.h"
#include "parallel/comm/interface/operation_kind.h"
#include "torch/csrc/distributed/c10d/Types.hpp"
#include "torch/csrc/distributed/c10d/Work.hpp"

namespace meshrun {

struct CollectiveSpec {
  using Kind = OperationKind;
  // Makes words for an error; called only where ranks disagree.
  using Words = std::function<std::string()>;

  Kind kind = Kind::kAllGatherV;
  // Equal on all ranks, except in an all-to-all, whose ranks have other sizes: those are compared
  // pair by pair, what a rank sends with what its receiver expects.
  Cut cut = {};
  Cut received = {};  // the output's, in an all-to-all
  int64_t root = -1;
  c10d::ReduceOp::RedOpType op = c10d::ReduceOp::SUM;  // of c10d's reductions; pieces are summed
  // 16-bit floats are added in float32 and rounded once; false: in their own dtype. Compared in
  // every kind, used in sums.
  bool use_fp32 = true;
  // A sum in two levels is rounded between hosts, too (rounded_sum.h).
  bool rounds_between_hosts = false;
  // A number that all ranks must have alike beside all this, such as the digest of a plan. 0: none.
  uint64_t agreed = 0;
  // Appended to this rank's side of the error where ranks disagree. Absent: sizes and dims say it.
  std::shared_ptr<const Words> words = {};
  // What is wrong with this rank's arguments; empty: nothing. The call is made all the same, since
  // the other ranks wait for it; tensors and sizes are then not looked at.
  std::string problem = {};

  // For one call.
  bool requires_grad = false;  // compared
  // The Work is waited for later, and somebody else moves it forward meanwhile.
  bool async = false;
  // Puts the input's slices of an all-to-all together as they are sent, straight into the
  // receiver's memory where that can be reached; where VCollectives::takes_fill(). The input is
  // then looked at for its shape and dtype alone, and this rank's own piece is empty. Owns what it
  // reads; called on any thread, until the Work is done.
  Fill fill = {};
  std::chrono::milliseconds timeout = c10d::kUnsetTimeout;  // 0 and less: the group's

  void say(Words make) { words = std::make_shared<const Words>(std::move(make)); }

  static CollectiveSpec all_gather_v(at::IntArrayRef sizes, int64_t dim) {
    return make(Kind::kAllGatherV, sizes, dim);
  }
  static CollectiveSpec reduce_scatter_v(at::IntArrayRef sizes, int64_t dim) {
    return make(Kind::kReduceScatterV, sizes, dim);
  }
  static CollectiveSpec gather_v(at::IntArrayRef sizes, int64_t dim, int64_t root) {
    return make(Kind::kGatherV, sizes, dim, root);
  }
  static CollectiveSpec scatter_v(at::IntArrayRef sizes, int64_t dim, int64_t root) {
    return make(Kind::kScatterV, sizes, dim, root);
  }
  static CollectiveSpec all_to_all_v(Cut sent, Cut expected) {
    CollectiveSpec spec;
    spec.kind = Kind::kAllToAllV;
    spec.cut = std::move(sent);
    spec.received = std::move(expected);
    return spec;
  }

 private:
  static CollectiveSpec make(Kind kind, at::IntArrayRef sizes, int64_t dim, int64_t root = -1) {
    CollectiveSpec spec;
    spec.kind = kind;
    spec.cut = {dim, Extents(sizes.begin(), sizes.end())};
    spec.root = root;
    return spec;
  }
};

// The collective on pieces that carries gradients back. Its adjoint is the first one again.
CollectiveSpec::Kind adjoint_of(CollectiveSpec::Kind kind);
CollectiveSpec adjoint(CollectiveSpec spec);

// What a Work of c10d's says that it is of.
c10d::OpType op_type_of(CollectiveSpec::Kind kind);

}  // namespace meshrun
