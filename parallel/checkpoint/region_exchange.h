// Tensors whose elements lie with some ranks, in pieces that were cut for another world perhaps, on
// their way to the ranks that need them.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "parallel/checkpoint/regions.h"
#include "parallel/checkpoint/targets.h"
#include "parallel/manager/group_argument.h"

namespace meshrun::detail {

// Elements of a tensor that a rank can read.
struct HeldRegion {
  FileKind kind = kModel;
  std::string name;
  Region region;  // of the stored form
  // Its bytes, if they lie in the CPU's memory; undefined: they are read.
  at::Tensor bytes = {};
};

// Fills `to` with bytes of the region held[index] of this rank, from `from` on.
using ReadRegion = std::function<void(size_t index, uint64_t from, std::span<char> to)>;

// Fills the targets of all ranks, which are of the same tensors in the same order on each, from
// what the ranks hold. A rank takes from itself what it holds, and the rest from one of the ranks
// that do. `read` is called in the order of the targets, for regions without bytes; each is read
// in order, no byte twice. Takes the memory of what the ranks tell each other, and some 64 MiB.
//
// Collective over `group`, which communicates from `device`. Errors: those of collectives; the same
// on all ranks: std::runtime_error for a tensor that the regions do not cover (cover_tensor), and
// what `read` raises, DamagedCheckpoint as such and anything else as std::runtime_error.
void fill_from_regions(const GroupArgument::Handle& group, c10::Device device,
                       const std::vector<HeldRegion>& held, std::vector<Target>& targets,
                       const ReadRegion& read);

}  // namespace meshrun::detail
