// How the algorithms turn pieces into messages: where a piece is cut, what of it is staged through
// scratch memory, and how much is under way at once. Internal to algorithms_*.cc. Pure; no errors.
//
// Why nothing waits for ever. Sends wait for earlier sends of this rank, receives for earlier
// receives (through slots and lanes), and both ends list the messages in the same order: by
// distance between the ranks and then by number in the piece, or the other way round. So the first
// message in that order that is not done anywhere can always be sent and received.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "parallel/comm/ucx/engine/planning/algorithms.h"
#include "parallel/comm/ucx/engine/planning/schedule.h"

namespace meshrun::ucx {

// How many messages of a piece one rank sends to another at most. More peers than a window share
// them, so that a schedule has at most about 4 kWindow kMaxMessages steps, whatever the group.
int64_t most_messages(const Place& place);

// The messages of a piece, equal at both ends: a function of bytes, cut and the group's tuning.
//
//   long rows (`cut` >= direct_row, or all)  each row by itself, in parts of at most `longest`
//   short rows                               as many whole rows as fit into staged_message, and
//                                            into `longest`
//
// If that makes more than `most` messages, all three lengths are doubled until it does not.
class Messages {
 public:
  struct Range {
    int64_t offset, bytes;
  };
  static constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

  // Offsets are multiples of `unit`, the element size.
  Messages(int64_t bytes, int64_t cut, const Tuning& tuning, int64_t most,
           int64_t longest = kUnlimited, int64_t unit = 1);

  int64_t count() const { return count_; }
  Range at(int64_t k) const {
    const int64_t row = k / per_row_, part = k % per_row_;
    const int64_t begin = row * row_ + part * part_;
    return {begin, std::min({part_, (row + 1) * row_ - begin, bytes_ - begin})};
  }

 private:
  void lay_out(int64_t cut, int64_t direct_row, int64_t block, int64_t longest);

  int64_t bytes_, row_ = 1, part_ = 1, per_row_ = 1, count_ = 0;
};

// Steps of which at most kMessagesInFlight are under way: each waits for the one that many before.
class Lane {
 public:
  void add(ScheduleBuilder& builder, StepId step);
  // What follows is for another peer: it waits for the last of this one.
  void next_peer() { wait_for_last_ = count_ > 0; }

 private:
  StepId recent_[kMessagesInFlight] = {};
  int64_t count_ = 0;
  bool wait_for_last_ = false;
};

// Scratch memory that is used again and again. A step that takes a slot makes its first writer wait
// for the slot's previous user, and then sets the new user. Long messages use fewer slots, at least
// two, so that the slots together have at most kStagingBytes, or the length of two messages.
class Slots {
 public:
  explicit Slots(int count) : slots_(static_cast<size_t>(count)) {}

  struct Slot {
    Region region;
    int64_t capacity = 0;
    std::optional<StepId> user;
  };
  Slot& take(ScheduleBuilder& builder, int64_t bytes);

 private:
  std::vector<Slot> slots_;
  size_t next_ = 0;
};

// Where the packed bytes of a piece are: the caller's, or a packed copy in scratch memory.
struct Home {
  Space space = Space::kScratch;
  int32_t piece = 0;
  int64_t base = 0;

  Region region(Messages::Range range) const {
    return {space, piece, base + range.offset, range.bytes};
  }
};

// Where a tensor of one piece begins.
inline constexpr Home kInput{Space::kInput, 0, 0};
inline constexpr Home kOutput{Space::kOutput, 0, 0};
// Where one of several pieces begins.
inline Home input(int piece) { return {Space::kInput, piece, 0}; }
inline Home output(int piece) { return {Space::kOutput, piece, 0}; }

std::vector<int64_t> bytes_of(std::span<const Piece> pieces);

inline constexpr int64_t kStagingBytes = 2 << 20;

// Slots of 128 KiB for each of `lanes` lanes, such that a direction has 2 MiB of them where that
// lets a message be packed while another is under way.
int slots_per_lane(const Tuning& tuning, int lanes);

// Sends a message from where it lies, in several runs by way of a slot.
StepId send_message(ScheduleBuilder& builder, Lane& lane, Slots& slots, int peer, Region region,
                    const Layout& layout, std::optional<StepId> after = {});
StepId receive_message(ScheduleBuilder& builder, Lane& lane, Slots& slots, int peer, Region region,
                       const Layout& layout);

// Moves pieces, or parts of them, to and from peers, kWindow peers at a time in each direction. All
// ranks name their peers by growing distance.
class PieceScheduler {
 public:
  PieceScheduler(ScheduleBuilder& builder, const Place& place);

  // `after`: by message, the step that brings its bytes; empty: they are there.
  void send(int peer, Home home, const Piece& piece, std::span<const StepId> after = {});
  // By message, the step after which it is there.
  std::vector<StepId> receive(int peer, Home home, const Piece& piece);
  // Part of a piece, as one message.
  void send(int peer, Home home, const Layout& layout, Messages::Range part);
  void receive(int peer, Home home, const Layout& layout, Messages::Range part);

  // The piece as one that needs no staging, for several sends: itself, or a packed copy. `packed`:
  // by message, the step that packs it; empty: none.
  struct Packed {
    Home home;
    Piece piece;
    std::vector<StepId> packed;
  };
  Packed pack(Home home, const Piece& piece);
  // Room for the piece that needs no staging, for receiving what is sent on. unpack() moves it to
  // where it belongs, each message after the step in `after`; does nothing where it is there.
  Packed room(Home home, const Piece& piece);
  void unpack(const Packed& from, Home home, std::span<const StepId> after);

 private:
  // Lanes and staging of one direction.
  struct Direction {
    std::vector<Lane> lanes;
    std::vector<Slots> slots;
    int peers = 0;

    size_t next_peer();
  };
  bool is_staged(const Piece& piece) const;
  Messages messages(const Piece& piece) const;

  ScheduleBuilder& builder_;
  const Tuning tuning_;
  const int64_t most_messages_;
  Direction out_, in_;
};

// Broadcasts `tensor` along a binomial tree of `count` positions. The root is at position 0, this
// rank at `position`, and `rank_at` gives the rank at a position. After its children in the tree a
// rank sends to `others`, which are its alone and receive the tensor as one piece.
void broadcast_in_tree(PieceScheduler& scheduler, const Piece& tensor, int position, int count,
                       const std::function<int(int)>& rank_at, std::span<const int> others = {});

// Within this rank, in steps so short that the others are not held up.
void copy_piece(ScheduleBuilder& builder, Home from, Home to, int64_t bytes);

}  // namespace meshrun::ucx
