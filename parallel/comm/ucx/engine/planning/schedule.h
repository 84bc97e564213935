// One rank's part of an operation as data: sends, receives, copies and reductions, and which of
// them waits for which.
//
// A schedule is a pure function of what all ranks know and of this rank's number (algorithms.h):
// it can be checked, drawn and run against other ranks' schedules without a network. The executor
// carries it out; it holds no pointers, so one schedule serves any memory of its layout.
//
// A step depends only on earlier ones, so a cycle is impossible. Sends to one peer, and receives
// from one, are numbered in the order of the list, and those numbers are in their tags: the n-th
// send of rank a to rank b meets the n-th receive of b from a, whatever completes first.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <vector>

#include "parallel/base/reduce.h"

namespace meshrun::ucx {

enum class Space : uint8_t {
  kInput,    // the caller's pieces to read
  kOutput,   // the caller's pieces to write
  kScratch,  // the operation's own memory, one piece
};

// Packed bytes [offset, offset + bytes) of a piece.
struct Region {
  Space space = Space::kScratch;
  int32_t piece = 0;
  int64_t offset = 0;
  int64_t bytes = 0;
};

enum class StepKind : uint8_t { kSend, kReceive, kCopy, kReduce };

// For which messages the receiver offers memory to the sender: the place where the bytes belong, or
// its staging. The sender may then write them there (shared_heap.h). Both ends have the same rule.
enum class OfferRule : uint8_t {
  kLarge,
  // The receivers offer nothing: one rank sends to many, and they fetch at once. Where what it
  // sends lies in its heap, it says where, and they read it there.
  kFetched,
  // All: the ranks have not compared the sizes. A receiver with different sizes finds out here.
  kAll,
};

using StepId = uint32_t;

struct Step {
  StepKind kind = StepKind::kCopy;
  int32_t peer = -1;                     // kSend, kReceive: rank in the group
  uint32_t message = 0;                  // kSend, kReceive: its number between the two ranks
  OfferRule offers = OfferRule::kLarge;  // kSend, kReceive
  Region from;                           // kSend, kCopy
  Region to;                             // kReceive, kCopy, kReduce
  // kSend, kReceive, of regions in several runs: scratch memory through which the bytes go, unless
  // the sender writes them where they belong, or the receiver reads them where they lie. Else
  // empty.
  Region staging;
  uint32_t first_source = 0, source_count = 0;        // kReduce: in Schedule::sources, rank order
  uint32_t reduction = 0;                             // kReduce: in Schedule::reductions
  uint32_t first_successor = 0, successor_count = 0;  // in Schedule::successors
  uint32_t dependencies = 0;
};

// A part of a joined schedule: its steps, and where their scratch memory is.
struct ScratchPart {
  int64_t offset = 0, bytes = 0;
  StepId first_step = 0, last_step = 0;  // behind the last one
  std::optional<StepId> end;             // what waits for all that touch it, once something does
};

// The longest that a header carries: a rank may get one with any call, so it has room for so much
// in each round, and UCX copies what is shorter than 8 KiB without asking the receiver first.
inline constexpr int64_t kMostPayload = 4096;

// What travels with the headers that the ranks compare (header_rounds.h). Before the first step
// begins, each rank's contribution is in its slot of every rank's scratch memory.
struct Piggyback {
  std::vector<Region> contribution;  // this rank's, one behind the other in its slot
  // Where the slots begin in scratch memory, by rank, and where the last one ends. Empty: nothing
  // travels with the headers.
  std::vector<int64_t> slots;

  struct Range {
    int64_t offset = 0, bytes = 0;
  };
  // What `sender` sends in a round of the dissemination: the slots of up to 2^round ranks, its own
  // and those below it; in the last round only those that the receiver lacks. In two ranges where
  // they go past rank 0.
  std::array<Range, 2> sent_by(int sender, int round) const;
  int64_t bytes_sent_by(int sender, int round) const;
};

struct Schedule {
  std::vector<Step> steps;
  std::vector<StepId> successors;
  std::vector<Region> sources;
  std::vector<Reduction> reductions;  // one; two of a sum in two levels; more in coalesced ones
  int64_t scratch_bytes = 0;          // wanted at a multiple of 64
  // How many, by peer; all of them are numbered below most_messages.
  std::vector<uint32_t> sent, received;
  uint32_t most_messages = 0;
  std::vector<ScratchPart> scratch_parts;  // for join(): whose memory a later part may take
  Piggyback piggyback;                     // never of a joined one, or of parts to join

  // Bytes that are copied within this process though nobody reduces them: staged, or the rank's own
  // piece moved from input to output. What "no byte copied twice" is counted by. Copies from slots
  // do not count, like the transport's own.
  int64_t copied_bytes() const;
  bool is_piggybacked(const Region& region) const {
    return region.space == Space::kScratch && !piggyback.slots.empty() &&
           region.offset < piggyback.slots.back();
  }
};

// Both in one operation, at once: what coalescing makes of its parts. `inputs` and `outputs` are
// the numbers of pieces of `first`. All ranks join the same parts in the same order. Parts that
// need more scratch memory than kJoinedScratch together share it (shared_scratch.h).
Schedule join(Schedule first, const Schedule& second, int32_t inputs, int32_t outputs);

// Builds one. Regions of a reduction must be contiguous in their piece's layout, and those of a
// send or a receive without staging; those of a copy need not be, on either side.
class ScheduleBuilder {
 public:
  explicit ScheduleBuilder(int group_size);

  StepId send(int peer, Region from, std::initializer_list<StepId> after = {}, Region staging = {});
  StepId receive(int peer, Region to, std::initializer_list<StepId> after = {},
                 Region staging = {});
  StepId copy(Region from, Region to, std::initializer_list<StepId> after = {});
  // `reduction`: which of those that finish() is given.
  StepId reduce(std::span<const Region> sources, Region to, std::span<const StepId> after,
                uint32_t reduction = 0);
  // One more thing that `step` waits for; `earlier` < `step`.
  void add_dependency(StepId step, StepId earlier);

  // For what is sent and received from now on.
  void set_offers(OfferRule offers) { offers_ = offers; }

  // Scratch memory, aligned to 64 bytes.
  Region scratch(int64_t bytes);

  // Lets the headers carry `contribution` of this rank, and `bytes` of each. Once.
  const Piggyback& piggyback(std::span<const int64_t> bytes, std::vector<Region> contribution);
  // Packed bytes of a rank's contribution.
  Region slot(int rank, int64_t offset, int64_t bytes) const;
  Region slot(int rank) const;

  Schedule finish(std::vector<Reduction> reductions = {Reduction()}) &&;

 private:
  struct Edge {
    StepId earlier, later;
  };
  StepId push(const Step& step, std::span<const StepId> after);

  Schedule schedule_;
  std::vector<Edge> edges_;
  OfferRule offers_ = OfferRule::kLarge;
};

}  // namespace meshrun::ucx
