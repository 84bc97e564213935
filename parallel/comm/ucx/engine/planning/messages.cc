#include "parallel/comm/ucx/engine/planning/messages.h"

#include <numeric>

namespace meshrun::ucx {
namespace {

// As long as UCX's own steps: 40 to 100 us.
constexpr int64_t kCopyStep = 512 << 10;

// `post`: makes the step, given its staging.
template <typename Post>
StepId post_message(ScheduleBuilder& builder, Lane& lane, Slots& slots, const Region& region,
                    const Layout& layout, Post post) {
  StepId step;
  if (region.space == Space::kScratch || layout.is_contiguous(region.offset, region.bytes)) {
    step = post(Region());
  } else {
    Slots::Slot& slot = slots.take(builder, region.bytes);
    step = post(slot.region);
    if (slot.user) builder.add_dependency(step, *slot.user);
    slot.user = step;
  }
  lane.add(builder, step);
  return step;
}

}  // namespace

std::vector<int64_t> share_messages(int64_t messages, std::span<const int64_t> bytes) {
  const auto parts = static_cast<int64_t>(bytes.size());
  const int64_t all = std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
  const int64_t by_size = all == 0 ? 0 : parts == 1 ? messages : messages / 2;
  std::vector<int64_t> shares;
  for (const int64_t own : bytes) {
    const int64_t more = all == 0 ? 0 : by_size * own / all;
    shares.push_back(std::max<int64_t>(1, (messages - by_size) / parts + more));
  }
  return shares;
}

std::vector<int64_t> bytes_of(std::span<const Piece> pieces) {
  std::vector<int64_t> bytes;
  for (const Piece& piece : pieces) bytes.push_back(piece.layout.bytes());
  return bytes;
}

int64_t most_messages(const Place& place) {
  const int64_t windows = (std::max(place.size - 1, 1) + kWindow - 1) / kWindow;
  return std::max<int64_t>(1, place.tuning.messages / windows);
}

Messages::Messages(int64_t bytes, int64_t cut, const Tuning& tuning, int64_t most, int64_t longest,
                   int64_t unit)
    : bytes_(bytes) {
  if (bytes <= 0) return;
  if (cut >= bytes) cut = bytes;
  if (cut <= 0 || bytes % cut != 0 || cut % unit != 0) cut = unit;
  longest = std::max(longest / unit * unit, unit);
  for (int64_t growth = 1;; growth *= 2) {
    const auto grown = [&](int64_t length) {
      return length > kUnlimited / growth ? kUnlimited : length * growth;
    };
    lay_out(cut, grown(tuning.direct_row), grown(tuning.staged_message), grown(longest));
    if (count_ <= std::max<int64_t>(most, 1)) return;
  }
}

void Messages::lay_out(int64_t cut, int64_t direct_row, int64_t block, int64_t longest) {
  if (cut == bytes_ || cut >= std::min(direct_row, longest)) {
    row_ = cut;
    part_ = std::min(cut, longest);
    per_row_ = (row_ + part_ - 1) / part_;
  } else {
    row_ = part_ = std::max(std::min(block, longest) / cut * cut, cut);
    per_row_ = 1;
  }
  count_ = (bytes_ + row_ - 1) / row_ * per_row_;
}

void Lane::add(ScheduleBuilder& builder, StepId step) {
  if (wait_for_last_) builder.add_dependency(step, recent_[(count_ - 1) % kMessagesInFlight]);
  if (count_ >= kMessagesInFlight) {
    builder.add_dependency(step, recent_[count_ % kMessagesInFlight]);
  }
  wait_for_last_ = false;
  recent_[count_++ % kMessagesInFlight] = step;
}

Slots::Slot& Slots::take(ScheduleBuilder& builder, int64_t bytes) {
  const auto in_use = std::max<int64_t>(2, kStagingBytes / std::max<int64_t>(bytes, 1));
  if (static_cast<int64_t>(next_) >= in_use) next_ = 0;
  Slot& slot = slots_[next_];
  next_ = (next_ + 1) % slots_.size();
  if (slot.capacity < bytes) {
    slot.region = builder.scratch(bytes);
    slot.capacity = bytes;
    slot.user.reset();
  }
  slot.region.bytes = bytes;
  return slot;
}

int slots_per_lane(const Tuning& tuning, int lanes) {
  return static_cast<int>(std::clamp<int64_t>(
      kStagingBytes / (tuning.staged_message * std::max(lanes, 1)), 2, kMessagesInFlight));
}

StepId send_message(ScheduleBuilder& builder, Lane& lane, Slots& slots, int peer, Region region,
                    const Layout& layout, std::optional<StepId> after) {
  const StepId step = post_message(builder, lane, slots, region, layout, [&](Region staging) {
    return builder.send(peer, region, {}, staging);
  });
  if (after) builder.add_dependency(step, *after);
  return step;
}

StepId receive_message(ScheduleBuilder& builder, Lane& lane, Slots& slots, int peer, Region region,
                       const Layout& layout) {
  return post_message(builder, lane, slots, region, layout,
                      [&](Region staging) { return builder.receive(peer, region, {}, staging); });
}

PieceScheduler::PieceScheduler(ScheduleBuilder& builder, const Place& place)
    : builder_(builder), tuning_(place.tuning), most_messages_(most_messages(place)) {
  const int lanes = std::clamp(place.size - 1, 1, kWindow);
  const int slots = slots_per_lane(tuning_, lanes);
  for (Direction* direction : {&out_, &in_}) {
    direction->lanes.resize(static_cast<size_t>(lanes));
    direction->slots.assign(static_cast<size_t>(lanes), Slots(slots));
  }
}

size_t PieceScheduler::Direction::next_peer() {
  const size_t lane = static_cast<size_t>(peers++) % lanes.size();
  lanes[lane].next_peer();
  return lane;
}

Messages PieceScheduler::messages(const Piece& piece) const {
  return Messages(piece.layout.bytes(), piece.cut, tuning_, most_messages_);
}

bool PieceScheduler::is_staged(const Piece& piece) const {
  if (piece.layout.is_contiguous()) return false;
  const Messages cut = messages(piece);
  for (int64_t k = 0; k < cut.count(); ++k) {
    if (!piece.layout.is_contiguous(cut.at(k).offset, cut.at(k).bytes)) return true;
  }
  return false;
}

void PieceScheduler::send(int peer, Home home, const Piece& piece, std::span<const StepId> after) {
  const Messages cut = messages(piece);
  if (cut.count() == 0) return;
  const size_t lane = out_.next_peer();
  for (int64_t k = 0; k < cut.count(); ++k) {
    send_message(builder_, out_.lanes[lane], out_.slots[lane], peer, home.region(cut.at(k)),
                 piece.layout, after.empty() ? std::nullopt : std::optional(after[k]));
  }
}

std::vector<StepId> PieceScheduler::receive(int peer, Home home, const Piece& piece) {
  const Messages cut = messages(piece);
  std::vector<StepId> arrived;
  if (cut.count() == 0) return arrived;
  const size_t lane = in_.next_peer();
  for (int64_t k = 0; k < cut.count(); ++k) {
    arrived.push_back(receive_message(builder_, in_.lanes[lane], in_.slots[lane], peer,
                                      home.region(cut.at(k)), piece.layout));
  }
  return arrived;
}

void PieceScheduler::send(int peer, Home home, const Layout& layout, Messages::Range part) {
  if (part.bytes == 0) return;
  const size_t lane = out_.next_peer();
  send_message(builder_, out_.lanes[lane], out_.slots[lane], peer, home.region(part), layout);
}

void PieceScheduler::receive(int peer, Home home, const Layout& layout, Messages::Range part) {
  if (part.bytes == 0) return;
  const size_t lane = in_.next_peer();
  receive_message(builder_, in_.lanes[lane], in_.slots[lane], peer, home.region(part), layout);
}

PieceScheduler::Packed PieceScheduler::pack(Home home, const Piece& piece) {
  Packed result = room(home, piece);
  if (result.home.space != Space::kScratch) return result;
  const Messages cut = messages(piece);
  for (int64_t k = 0; k < cut.count(); ++k) {
    result.packed.push_back(builder_.copy(home.region(cut.at(k)), result.home.region(cut.at(k))));
  }
  return result;
}

PieceScheduler::Packed PieceScheduler::room(Home home, const Piece& piece) {
  if (!is_staged(piece)) return {home, piece, {}};
  const int64_t bytes = piece.layout.bytes();
  return {{Space::kScratch, 0, builder_.scratch(bytes).offset}, {{1, bytes, bytes}, piece.cut}, {}};
}

void PieceScheduler::unpack(const Packed& from, Home home, std::span<const StepId> after) {
  if (from.home.space != Space::kScratch) return;
  const Messages cut = messages(from.piece);
  for (int64_t k = 0; k < cut.count(); ++k) {
    builder_.copy(from.home.region(cut.at(k)), home.region(cut.at(k)), {after[k]});
  }
}

void broadcast_in_tree(PieceScheduler& scheduler, const Piece& tensor, int position, int count,
                       const std::function<int(int)>& rank_at, std::span<const int> others) {
  // The parent lacks the lowest bit of the position; children have one more, below that.
  int bit = 1;
  while (bit < count && (position & bit) == 0) bit <<= 1;

  PieceScheduler::Packed own;
  std::vector<StepId> there;
  if (position == 0) {
    own = scheduler.pack(kInput, tensor);
    there = own.packed;
  } else {
    own = scheduler.room(kOutput, tensor);
    there = scheduler.receive(rank_at(position - bit), own.home, own.piece);
  }
  for (bit >>= 1; bit > 0; bit >>= 1) {
    if (position + bit < count) {
      scheduler.send(rank_at(position + bit), own.home, own.piece, there);
    }
  }
  for (const int other : others) scheduler.send(other, own.home, own.piece, there);
  if (position != 0) scheduler.unpack(own, kOutput, there);
}

void copy_piece(ScheduleBuilder& builder, Home from, Home to, int64_t bytes) {
  std::optional<StepId> last;
  for (int64_t offset = 0; offset < bytes; offset += kCopyStep) {
    const Messages::Range range{offset, std::min(kCopyStep, bytes - offset)};
    const StepId step = builder.copy(from.region(range), to.region(range));
    if (last) builder.add_dependency(step, *last);
    last = step;
  }
}

}  // namespace meshrun::ucx
