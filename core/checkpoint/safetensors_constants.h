// What the reader and the writer of the safetensors format share.
#pragma once

#include <cstdint>

namespace meshrun {

inline constexpr char kSafetensorsMetadata[] = "__metadata__";
inline constexpr uint64_t kHeaderLengthBytes = 8;
// The limit of the format's own library.
inline constexpr uint64_t kMostHeaderBytes = 100'000'000;

}  // namespace meshrun
