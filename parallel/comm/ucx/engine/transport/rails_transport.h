// Several transports as one, so that collectives use several network interfaces: each of them, a
// rail, has one. UCX over several would send all through one of them for long times.
//
//   collectives' data between hosts     takes turns (rail_of in values/tag.h)
//   all else; all within a host; all    the first rail
//   where the peer has another number
//   of rails, or none
//
// Both ends choose by what both know: the tag, and the two addresses. So equal tags share a rail,
// and keep their order. Within a host the other rails are never connected: they need no shared
// memory.
//
// A peer is one: its connections break together, when the first of them does.
//
// The address begins with the first rail's, whole. A transport without rails connects to that and
// reads no further: UCX's addresses say where they end.
//
//   rail 0 | rail 1 | ... | host | their lengths, 16 bits each | how many | 8 bytes that say so
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "parallel/comm/ucx/engine/transport/transport.h"

namespace meshrun::ucx {

// More do not fit the address, and each costs a round of progress.
inline constexpr size_t kMostRails = 4;

// `rails`: 1 to kMostRails. `host`: equal where processes are on one host. Errors: UNAVAILABLE, no
// file descriptor is left.
absl::StatusOr<std::unique_ptr<Transport>> create_rails_transport(
    std::vector<std::unique_ptr<Transport>> rails, std::string host);

}  // namespace meshrun::ucx
