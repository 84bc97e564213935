// The 64 bits by which the receiver of a message finds what it belongs to. Pure.
//
//   63 62 | 61 ... 44 | 43 ... 30 | 29 ... 14 | 13 ... 0
//   kind  | group     | sender    | sequence  | message       kHeader, kData
//   kind  | group     | sender    |        user tag           kPointToPoint
//   kind  | group     | sender    |           0               kControl
//
// group     the RECEIVER's number for the group, told to the sender in the address record
//           (address_book.h). Each process counts its own, from 1, and never reuses one: no two
//           groups of a process can meet, whatever they are called, and a message for a group that
//           is gone matches nothing. kMaxGroups - 1 groups in a process's life; the next one is
//           refused (Engine::join).
// sender    rank in the group; a group of more than kMaxRanks is refused (Engine::join).
// sequence  low bits of the operation's number in the group. A rank starts an operation only when
//           those that are kSequences or more before it have ended there. So of two with the same
//           tags each rank has posted all messages of the first before any of the second, and UCX
//           matches equal tags of one sender in order.
// message   kHeader: the round; rounds of the explanation follow at kExplainRound. kData: counts
//           the messages of one operation from one rank to another, as the schedule lists them;
//           the receiver's word on it (an offer of memory, or that it has read) is kHeader, from
//           kFirstOffer on (offer_tag). At most kMaxMessages, so no two messages of an operation
//           share a tag: planning cuts large pieces into longer messages, and the executor refuses
//           a schedule of more. (Wrapping
//           would need equal tags posted in one order at both ends, which steps that run as soon as
//           they can do not promise.)
//
// kControl carries a group's failure (failure.h) to ranks that have not seen it. One receive for
// all groups is always posted, the only one beside receive-from-any that is matched by a mask: UCX
// finds all others by hash.
#pragma once

#include <cstdint>

namespace meshrun::ucx {

using Tag = uint64_t;

enum class TagKind : uint8_t { kHeader = 0, kData = 1, kPointToPoint = 2, kControl = 3 };

inline constexpr int kGroupBits = 18;
inline constexpr int kSenderBits = 14;
inline constexpr int kSequenceBits = 16;
inline constexpr int kMessageBits = 14;
inline constexpr int kUserTagBits = kSequenceBits + kMessageBits;
static_assert(2 + kGroupBits + kSenderBits + kUserTagBits == 64);

inline constexpr int64_t kMaxGroups = int64_t{1} << kGroupBits;
inline constexpr int64_t kMaxRanks = int64_t{1} << kSenderBits;
inline constexpr int64_t kMaxUserTag = (int64_t{1} << kUserTagBits) - 1;
inline constexpr Tag kExactly = ~Tag{0};
// Any sender's message with a user tag: for receive-from-any.
inline constexpr Tag kAnySender = ~(((Tag{1} << kSenderBits) - 1) << kUserTagBits);
inline constexpr Tag kAnyControl = Tag{3} << 62;
inline constexpr uint32_t kExplainRound = 64;
inline constexpr uint32_t kFirstOffer = 1 << 13;
inline constexpr int64_t kMaxMessages = (int64_t{1} << kMessageBits) - kFirstOffer;
inline constexpr uint64_t kSequences = uint64_t{1} << kSequenceBits;
static_assert(kMaxMessages <= kFirstOffer, "data messages have a number each, too");

constexpr Tag prefix(TagKind kind, uint32_t group, int sender) {
  return Tag{static_cast<uint8_t>(kind)} << 62 | Tag{group} << (kSenderBits + kUserTagBits) |
         Tag{static_cast<uint32_t>(sender)} << kUserTagBits;
}
constexpr Tag collective_tag(TagKind kind, uint32_t group, int sender, uint64_t sequence,
                             uint32_t message) {
  return prefix(kind, group, sender) | (sequence & (kSequences - 1)) << kMessageBits |
         (message & ((uint32_t{1} << kMessageBits) - 1));
}
// Tag of a receiver's word on the data message `message` (offers.h); `sender` sends that word.
constexpr Tag offer_tag(uint32_t group, int sender, uint64_t sequence, uint32_t message) {
  return collective_tag(TagKind::kHeader, group, sender, sequence, kFirstOffer + message);
}
// `user_tag` is at most kMaxUserTag; the caller checks.
constexpr Tag point_to_point_tag(uint32_t group, int sender, uint32_t user_tag) {
  return prefix(TagKind::kPointToPoint, group, sender) | user_tag;
}
constexpr TagKind kind_of(Tag tag) { return static_cast<TagKind>(tag >> 62); }
constexpr uint32_t group_of(Tag tag) {
  return static_cast<uint32_t>(tag >> (kSenderBits + kUserTagBits) & (kMaxGroups - 1));
}
constexpr int sender_of(Tag tag) {
  return static_cast<int>(tag >> kUserTagBits & ((Tag{1} << kSenderBits) - 1));
}
// Which of so many connections that lead to a peer is for this message: both ends know it by the
// tag. A collective's data takes turns, by the message, and where there is one only, by the
// operation and by the sender. All else takes the first.
constexpr int rail_of(Tag tag, int rails) {
  if (kind_of(tag) != TagKind::kData) return 0;
  const uint64_t message = tag & ((Tag{1} << kMessageBits) - 1);
  const uint64_t sequence = tag >> kMessageBits & (kSequences - 1);
  const auto sender = static_cast<uint64_t>(sender_of(tag));
  return static_cast<int>((message + sequence + sender) % static_cast<uint64_t>(rails));
}

}  // namespace meshrun::ucx
