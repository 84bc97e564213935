// The cases of operator_cases.h, placed on meshes and compared: what tests of all operators share.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "c10/core/Device.h"
#include "parallel/shard/tensor/shard_mesh.h"
#include "tests/parallel/shard/operator_cases.h"
#include "tests/parallel/support/rank_processes.h"

namespace meshrun {

// The operands of a case: whole on every rank, and placed on a mesh at random.
struct PlacedCase {
  PlacedCase(const OperatorCase& drawn, Draw& draw, const ShardMesh::Ptr& mesh, c10::Device device);

  Tensors whole;
  Tensors sharded;
  std::string said;  // what it is, for messages
  bool any_partial = false;
};

using CaseCheck = std::function<void(const OperatorCase& drawn, Draw& draw,
                                     const ShardMesh::Ptr& mesh, c10::Device device)>;

// Calls `check` with `draws` cases of each family, on two meshes of the world in turn, until one
// fails; a rank alone goes on with the next family. A rank that aborts says last which case it was
// in. For a rank of a world.
void for_each_drawn_case(int64_t draws, const CaseCheck& check);
// Runs a registered rank function that does so in a world of `ranks`; no operator may lack a rule.
void run_drawn_cases(const std::string& function, std::vector<Variables> ranks,
                     RankStart start = RankStart::kForkAtMain);

// A whole tensor of a plain or sharded one, without history.
at::Tensor whole_of(const at::Tensor& tensor);
// Empty where there is none.
std::string difference(const at::Tensor& is, const at::Tensor& should, Equality equality);

}  // namespace meshrun
