// What a rank of the conformance suite does: groups of tests in one order on all ranks.
//
// Each notes what fails as a GoogleTest failure that names operation, setting and group; it gives
// up, by an exception, after some. With MESHRUN_TEST_SEED, the same on all ranks, a sample of the
// points is run, else all. What a backend cannot do is skipped by name, on rank 0's output.
#pragma once

#include <string>
#include <vector>

#include "tests/parallel/collectives/conformance/operations.h"
#include "tests/parallel/support/rank_world.h"

namespace meshrun {

// The world, blocks of two ranks and their orthogonal groups (of even worlds), all but rank 0, and
// single ranks: those that this rank is in.
struct NamedMembers {
  std::string name;
  Members members;
};
std::vector<NamedMembers> groups_of(const RankWorld& world);

// One point, forward and backward. Raises, naming it, where the collective does.
void check_result(const RankWorld& world, const NamedMembers& group, const Operation& operation,
                  const Setting& setting);
void check_gradient(const NamedMembers& group, const Operation& operation, const Setting& setting);

// Forward, against one process, bit for bit: the matrix on the world, a part of it on other groups.
void check_results(const RankWorld& world);
// Backward, against autograd of the unsharded computation.
void check_gradients(const RankWorld& world);
// Both orders, numerically, in float64 and complex128.
void check_gradients_numerically(const RankWorld& world);
// The closed forms of reference 3.1: numbers 1 to 8 and 12.
void check_vectors(const RankWorld& world);

// Ends a rank that has failed often enough to know.
void give_up_after_failures();

}  // namespace meshrun
