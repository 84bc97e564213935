// What programs keep as bytes (kept_values.h) is equal on all ranks: a comparison that shows where
// it is not.
#pragma once

#include <c10/core/Device.h>

#include <map>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace meshrun::detail {

// Collective over `group`, with the errors of collectives; for ranks whose digests differ. `own`:
// this rank's bytes by name, or null, where it does not take part. Returns on every rank the same
// words, of the lowest ranks that differ: the kept value "sampler" differs between ranks 0 and 2.
std::string difference_of_kept(c10d::ProcessGroup& group, c10::Device device,
                               const std::map<std::string, std::string>* own);

}  // namespace meshrun::detail
