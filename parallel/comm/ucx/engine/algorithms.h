// Which algorithm an operation uses, and its schedule on this rank. Pure functions of what all
// ranks know: every rank decides alike, or they would wait for each other for ever.
// kAlgorithmVersion is part of the header that ranks compare, so two builds that decide differently
// get an error.
//
// Notation: P ranks, S bytes of the whole, s_r bytes of rank r's piece. No algorithm here reduces
// on the way: who owns a slice receives the others' contributions and adds them in rank order.
//
//   operation        small                          large
//   broadcast        binomial tree                  one host: root to all (receivers pull at once);
//                                                   several: scatter + all-gather
//   all_reduce       everyone to everyone, then     reduce-scatter + all-gather, in chunks
//                    each adds all
//   reduce           everyone to the root           reduce-scatter + gather at the root
//   reduce_scatter   direct, in chunks: s_r (P-1) in, S - s_r out; the bound
//   all_gather       direct: S - s_r in             several hosts and skewed: ring
//   gather, scatter  direct with the root
//   all_to_all       direct, nearest rank above first, at most kWindow peers at a time
//   barrier          none: the header check is one; without the check, a schedule of empty messages
//
// Errors: none; callers have checked sizes. Empty pieces send nothing, on both sides.
#pragma once

#include <cstdint>
#include <span>

#include "parallel/comm/ucx/engine/schedule.h"
#include "parallel/comm/ucx/engine/strided_span.h"

namespace meshrun::ucx {

inline constexpr uint32_t kAlgorithmVersion = 1;

// Who takes part; equal on all ranks but for `rank`.
struct Place {
  int rank = 0;
  int size = 1;
  bool one_host = true;
};

// A piece of the caller's memory and how it travels. `layout` is this rank's own affair; bytes and
// `cut` are equal at both ends.
struct Piece {
  Layout layout;
  // Messages are whole multiples of `cut` bytes: the row length where both ends know one, so that
  // long rows travel without staging; 1 where they do not.
  int64_t cut = 1;
};

// A message longer than this is split where it must be staged; rows of at least kDirectRow bytes
// are messages of their own and are not staged.
inline constexpr int64_t kStagedMessage = 128 << 10;
inline constexpr int64_t kDirectRow = 32 << 10;
// Reductions go in chunks that stay in cache, two in flight.
int64_t reduce_chunk_bytes(int group_size);
// How many peers an all-to-all exchanges with at once, and how many messages are under way to one.
inline constexpr int kWindow = 32;
inline constexpr int kMessagesInFlight = 8;

enum class BroadcastAlgorithm : uint8_t { kFlat, kBinomial, kScatterAllGather };
enum class AllReduceAlgorithm : uint8_t { kExchange, kReduceScatterAllGather };
enum class ReduceAlgorithm : uint8_t { kGather, kReduceScatterGather };
enum class AllGatherAlgorithm : uint8_t { kDirect, kRing };

BroadcastAlgorithm choose_broadcast(const Place& place, int64_t bytes);
AllReduceAlgorithm choose_all_reduce(const Place& place, int64_t bytes);
ReduceAlgorithm choose_reduce(const Place& place, int64_t bytes);
AllGatherAlgorithm choose_all_gather(const Place& place, std::span<const int64_t> piece_bytes);

// Memory of each operation, as its executor is given it (operation.h):
//   input pieces            output pieces
Schedule plan_barrier(const Place& place);
//   the tensor (root)       the tensor (others)
Schedule plan_broadcast(const Place& place, const Piece& tensor, int root);
//   -                       the tensor, in place
Schedule plan_all_reduce(const Place& place, int64_t count, const Reduction& reduction);
//   the tensor              the tensor (root; may be the input). Elsewhere nothing is written.
Schedule plan_reduce(const Place& place, int64_t count, int root, const Reduction& reduction);
//   own piece               P pieces, by rank. `in_place`: the own piece is there already
Schedule plan_all_gather(const Place& place, const Piece& own, std::span<const Piece> pieces,
                         bool in_place);
//   own piece               at the root: P pieces
Schedule plan_gather(const Place& place, const Piece& own, std::span<const Piece> pieces, int root);
//   at the root: P pieces   own piece
Schedule plan_scatter(const Place& place, std::span<const Piece> pieces, const Piece& own,
                      int root);
//   P pieces, by rank       own piece
Schedule plan_reduce_scatter(const Place& place, std::span<const Piece> pieces, const Piece& own,
                             const Reduction& reduction);
//   P pieces to send        P pieces received
Schedule plan_all_to_all(const Place& place, std::span<const Piece> to,
                         std::span<const Piece> from);

}  // namespace meshrun::ucx
