// Values of a pickle as text and as numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/checkpoint/pickle.h"

namespace meshrun {

// What a person would write: "True", "None", "0.9", "cuda:0", "torch.float32", "[2, 3]" for a
// torch.Size. UTF-8. A value without a short text is called what it is: "3 bytes", "a dict".
std::string PickleText(const PickleValue& value);

// Dimensions of a tensor in torch, at most.
inline constexpr size_t kMostDimensions = 64;
// The numbers of a tuple, a list or a torch.Size. Absent: it is something else, or longer than
// kMostDimensions.
std::optional<std::vector<int64_t>> PickleDimensions(const PickleValue& value);

}  // namespace meshrun
