// Which algorithm an operation uses, and its schedule on this rank. Pure functions of what all
// ranks know: every rank decides alike, or they would wait for each other for ever.
// kAlgorithmVersion is part of the header that ranks compare, so two builds that decide differently
// get an error.
//
// Notation: P ranks, S bytes of the whole, s_r bytes of rank r's piece. No algorithm of one level
// reduces on the way: the owner of a slice receives the others' contributions and adds them in rank
// order.
//
// On one host, and on several with one rank each:
//
//   operation        small                          large
//   broadcast        binomial tree                  one host: root to all (receivers pull at once);
//                                                   several: scatter + all-gather
//   all_reduce       everyone to everyone, then     reduce-scatter + all-gather, in chunks
//                    each adds all
//   reduce           everyone to the root           reduce-scatter + gather at the root
//   reduce_scatter   direct, in chunks: s_r (P-1) in, S - s_r out; the bound
//   all_gather       direct: S - s_r in             several hosts and skewed: ring
//   gather, scatter  direct with the root; of a large scatter ranks of one host fetch their pieces
//   all_to_all       direct, nearest rank above first, at most kWindow peers at a time
//   barrier          none: the header check is one; without the check, a schedule of empty messages
//
// Small calls skip this table: their bytes travel with the headers (piggyback.h).
//
// On several hosts with several ranks on one of them broadcast, all_reduce, reduce_scatter and
// all_gather go in two levels (two_levels.h): what crosses between hosts crosses once. There a
// host's contributions are added on the way, so the bits of a sum are not those of rank order,
// unless Place::in_rank_order asks for the ways above.
//
// Chunks and messages grow with the pieces, so a schedule has at most about a million steps, and
// a number for each message (tag.h). Slots grow with them, to at most 1/128 of the tensor.
//
// Errors: none; callers have checked sizes. Empty pieces send nothing, on both sides.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "parallel/base/strided_span.h"
#include "parallel/comm/ucx/engine/planning/schedule.h"
#include "parallel/comm/ucx/engine/values/hosts.h"
#include "parallel/comm/ucx/engine/values/tag.h"

namespace meshrun::ucx {

inline constexpr uint32_t kAlgorithmVersion = 9;

// Sizes at which the algorithms change their ways. Equal on all ranks; changed by tests, which make
// them small, and by benchmarks.
struct Tuning {
  // Rows of at least direct_row bytes are messages of their own and are never staged. Shorter ones
  // travel together, in messages of at most staged_message.
  int64_t direct_row = 32 << 10;
  int64_t staged_message = 128 << 10;
  // What one step of a ring passes on.
  int64_t ring_message = 256 << 10;
  // What is added in one step; 0: reduce_chunk_bytes().
  int64_t reduce_chunk = 0;
  // For a scatter on one host with pieces that are one message each. The root writes a piece whole
  // if all other ranks' pieces, taken to be as long as this one, have at most written_by_root bytes
  // together. in_cache: the longest piece that is still in a cache when it is moved.
  int64_t written_by_root = 96 << 10;
  int64_t in_cache = 2 << 20;
  // The least of a fetched piece that the root writes: less is not offered.
  int64_t least_part = 4 << 10;
  // The longest tensors of the algorithms for small ones; all_reduce: bytes that a rank receives.
  int64_t small_broadcast = (64 << 10) - 1;
  int64_t small_all_reduce = 32 << 10;
  int64_t small_reduce = 16 << 10;
  // The most from one rank to another in one operation. Pieces that would be cut into more are cut
  // into longer ones: twice, four times, ... as long. A part of a coalesced call has its share.
  int64_t messages = kMaxMessages;
};

// How many of `messages` each of several parts gets, given their bytes: half equally, half by size,
// at least one. Their sum exceeds `messages` only where there are more than messages / 2 parts.
std::vector<int64_t> share_messages(int64_t messages, std::span<const int64_t> bytes);

// The ranks that take part; equal on all of them, except `rank`.
struct Place {
  int rank = 0;
  int size = 1;
  bool one_host = true;
  Tuning tuning = {};
  // Which ranks share a host; null: all, or none, as one_host says. Outlives the call.
  const Hosts* hosts = nullptr;
  // Sums are taken in rank order on several hosts too.
  bool in_rank_order = false;
  // The operation is compared by headers, which take small pieces along (piggyback.h). Not of the
  // parts of a coalesced call.
  bool headers_carry = false;
};

// A piece of the caller's memory and how it travels. `layout` is this rank's own affair; bytes and
// `cut` are equal at both ends.
struct Piece {
  Layout layout;
  // Where the piece may be cut into messages: at multiples of `cut` bytes.
  //   all its bytes   it lies in one run at both ends (along dim 0): one message
  //   a row           either end has it in rows of that length, or in one run
  //   1               neither end knows how it lies at the other
  // A message that is not contiguous at one end has staging there, for all of it. A `cut` that does
  // not divide the bytes counts as 1.
  int64_t cut = 1;
};

// Reductions go in chunks that stay in cache, two in flight; longer ones of longer slices
// (Tuning::messages).
int64_t reduce_chunk_bytes(int group_size);
// How many peers an all-to-all exchanges with at once, and how many messages are under way to one.
// A scatter's root does as much twice: to write, and to be fetched from.
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

// A group of one copies from input to output, or does nothing where there is one tensor. Memory of
// each operation, as its executor is given it (operation.h):
//   input pieces            output pieces
Schedule plan_barrier(const Place& place);
//   the tensor (root)       the tensor (others)
Schedule plan_broadcast(const Place& place, const Piece& tensor, int root);
//   -                       the tensor, in place
Schedule plan_all_reduce(const Place& place, int64_t count, const Reduction& reduction);
//   the tensor              the tensor (root; may be the input). Elsewhere nothing is written.
Schedule plan_reduce(const Place& place, int64_t count, int root, const Reduction& reduction);
//   own piece               P pieces, by rank. `in_place`: the own piece is there already; input
//                           and output name the same memory for it
Schedule plan_all_gather(const Place& place, const Piece& own, std::span<const Piece> pieces,
                         bool in_place);
//   own piece               at the root: P pieces
//                         `piece_bytes`: of all ranks
Schedule plan_gather(const Place& place, const Piece& own, std::span<const Piece> pieces,
                     std::span<const int64_t> piece_bytes, int root);
//   at the root: P pieces   own piece
Schedule plan_scatter(const Place& place, std::span<const Piece> pieces, const Piece& own,
                      std::span<const int64_t> piece_bytes, int root);
//   P pieces, by rank       own piece (may be the input's). All `cut` are counted in whole elements
Schedule plan_reduce_scatter(const Place& place, std::span<const Piece> pieces, const Piece& own,
                             const Reduction& reduction);
//   P pieces to send        P pieces received
Schedule plan_all_to_all(const Place& place, std::span<const Piece> to,
                         std::span<const Piece> from);

}  // namespace meshrun::ucx
