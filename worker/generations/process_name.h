// A rank process is named by the generation and the rank for which it was started. In a later
// generation that it lives on into it may have another rank.
#pragma once

#include <compare>
#include <cstdint>

#include "meshrun/v1/common.pb.h"

namespace meshrun::worker {

struct ProcessName {
  uint64_t generation = 0;
  int rank = 0;
  auto operator<=>(const ProcessName&) const = default;
};

// The process that is this rank of `generation`.
inline ProcessName NameOf(const v1::RankAssignment& rank, uint64_t generation) {
  if (rank.process_generation() == 0) return {generation, rank.rank()};
  return {rank.process_generation(), rank.process_rank()};
}

}  // namespace meshrun::worker
