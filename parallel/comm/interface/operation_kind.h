// What ranks can ask of a group of theirs, by name and by number. Without LibTorch.
#pragma once

#include <cstdint>

namespace meshrun {

// The numbers are on the wire.
enum class OperationKind : uint8_t {
  kBarrier = 0,
  kBroadcast = 1,
  kAllReduce = 2,
  kReduce = 3,
  kAllGather = 4,
  kGather = 5,
  kScatter = 6,
  kReduceScatter = 7,
  kAllToAll = 8,
  kSend = 9,      // never compared
  kReceive = 10,  // never compared
  kCoalesced = 11,
  // On pieces of uneven size, along any dimension.
  kAllGatherV = 12,
  kReduceScatterV = 13,
  kGatherV = 14,
  kScatterV = 15,
  kAllToAllV = 16,
  kCompare = 17,  // a header alone
};

// "all_reduce".
const char* name_of(OperationKind kind);

}  // namespace meshrun
