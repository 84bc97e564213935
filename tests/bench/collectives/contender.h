// What is compared: one way to do the operation of a Problem. Each does the same to the same data;
// a note says what is not alike.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "tests/bench/collectives/problem.h"
#include "tests/bench/collectives/world.h"

namespace meshrun::bench {

struct Contender {
  std::string name;
  std::string note;
  // Timed. Returns the result, or an undefined tensor where this rank gets none.
  std::function<at::Tensor()> call;
  // Before each call, not timed; may be absent.
  std::function<void()> prepare;
  // Memory that `call` writes its result to, for contenders that do not allocate it.
  std::vector<at::Tensor> kept;
  // Brings a result that lies in pieces, one after the other, into the Problem's order. Not timed.
  std::function<at::Tensor(const at::Tensor&)> ordered;
  // False: it moves bytes for comparison, and has nothing to verify.
  bool has_result = true;
};

// Bytes that the calls of this process have copied locally, as far as the contenders say so:
// those that copy by hand count here, ucx's engine counts for itself.
int64_t& copied_bytes();

// "ours": the public function; "in_place": what the group's backend offers, on memory that is
// there already; "asynchronous": c10d's asynchronous form of "ours", waited for at once.
std::vector<Contender> ours(const Problem& problem, const Group& ucx);
Contender physicsnemo_equivalent(const Problem& problem, const Group& gloo);
Contender raw_gloo(const Problem& problem, const Group& gloo);
// The world of MPI_COMM_WORLD.
Contender open_mpi(const Problem& problem);
// What the busiest rank writes at least, moved on all ranks at once, in the ways that a bound may
// be of. Called by all ranks, which end together.
//   memcpy       where a sender reaches the receiver's memory
//   kernel_copy  one copy by the kernel, out of the next rank's memory; absent where the kernel
//                does not permit it
//   gather       an element at a time; only of cases with runs of less than kShortRun bytes
std::vector<Contender> bounds(const Problem& problem);
inline constexpr int64_t kShortRun = 64;

// ---- for their implementations

// A flat buffer, cut in pieces of the problem's shape with `extents` along dim.
std::vector<at::Tensor> pieces_of(const Problem& problem, const at::Tensor& flat,
                                  const std::vector<int64_t>& extents);
at::Tensor flat_for(const Problem& problem, const std::vector<int64_t>& extents);
// The slices of `whole` one after the other: itself along dim 0, else copied, and counted.
void pack(const Problem& problem, const at::Tensor& whole, const std::vector<int64_t>& extents,
          const at::Tensor& flat);
// Back, into a tensor that is there.
void unpack(const Problem& problem, const at::Tensor& flat, const std::vector<int64_t>& extents,
            const at::Tensor& whole);
// Elements of each piece.
std::vector<int64_t> counts_of(const Problem& problem, const std::vector<int64_t>& extents);

}  // namespace meshrun::bench
