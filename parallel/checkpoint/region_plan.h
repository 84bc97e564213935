// Who gives which elements of which tensor to whom: region_exchange.h carries it out.
//
// All tensors lie in one stream, which is filled in rounds. The plan of each rank follows from what
// all ranks have told, so both sides of a message know what is in it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "parallel/checkpoint/region_exchange.h"
#include "parallel/checkpoint/tensor_stream.h"

namespace meshrun::detail {

// Elements of a tensor, and the ranks that hold them.
struct RegionSource {
  Region region;
  std::vector<size_t> ranks;
  // Among those of this rank, if it holds them, and their bytes, unless they are read.
  std::optional<size_t> held;
  at::Tensor bytes;

  bool is_of(size_t rank) const { return std::ranges::binary_search(ranks, rank); }
  // The one that gives it to `receiver`.
  size_t provider(size_t receiver) const {
    return is_of(receiver) ? receiver : ranks[receiver % ranks.size()];
  }
};

// A tensor in the stream of all that are filled.
struct FilledTensor {
  Target* target = nullptr;
  StreamPlace place;
  std::vector<RegionSource> sources;
  // What ranks need, and which of it, by rank.
  std::vector<Region> regions;
  std::vector<size_t> needed;
  // Some rank gets a part of it from another one.
  bool travels = false;

  const Region& needed_by(size_t rank) const { return regions[needed[rank]]; }
};

struct FillPlan {
  std::vector<FilledTensor> stream;
  // Some rank reads some region.
  bool is_any_read = false;
  uint64_t round_bytes = 0;
};

// Collective over `group`. Raises std::runtime_error, the same on all ranks, for a tensor that the
// regions do not cover, and for pieces of another one.
FillPlan make_plan(c10d::ProcessGroup& group, c10::Device device,
                   const std::vector<HeldRegion>& held, std::vector<Target>& targets);

// What `provider` gives `receiver` of a round: visit(tensor, source, run), in an order that both
// know.
template <typename Visit>
void visit_given(const std::vector<FilledTensor>& stream, const StreamInterval& round,
                 size_t provider, size_t receiver, const Visit& visit) {
  visit_stream(stream, round, [&](const FilledTensor& tensor, int64_t first, int64_t last) {
    for (const RegionSource& source : tensor.sources) {
      if (source.provider(receiver) != provider) continue;
      visit_common_runs(source.region, tensor.needed_by(receiver), first, last,
                        [&](const CommonRun& run) { visit(tensor, source, run); });
    }
  });
}

}  // namespace meshrun::detail
