// What is equal on all ranks, by its bits: a comparison that shows where it is not.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace meshrun::detail {

// A digest of each thing, by what errors call it: the kept value "sampler", the parameter "weight".
using Digests = std::map<std::string, uint64_t>;

// Digests of kept bytes (kept_values.h).
Digests digests_of_kept(const std::map<std::string, std::string>& saved);
int64_t digest_of_all(const Digests& digests);

// Collective over `group`, with the errors of collectives; for ranks whose digests differ. `own` is
// null on a rank that does not take part. Returns on every rank the same words, of the lowest ranks
// that differ: the kept value "sampler" differs between ranks 0 and 2.
std::string difference_between_ranks(c10d::ProcessGroup& group, c10::Device device,
                                     const Digests* own);

}  // namespace meshrun::detail
