#include "parallel/comm/ucx/engine/execution/header_rounds.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <string>

#include "parallel/comm/ucx/engine/values/tag.h"

namespace meshrun::ucx {
namespace {

// Longest header of any operation: this rank need not know what another one calls.
constexpr size_t kLongestHeader =
    std::max(HeaderCheck::kMessageBytes, HeaderCheck::kPlainBytes + size_t{kMostPayload});

// Null: the headers of the round under way carry nothing.
const Piggyback* piggyback_of(const RunningOperation& operation) {
  if (operation.explaining || operation.schedule == nullptr) return nullptr;
  const Piggyback& piggyback = operation.schedule->piggyback;
  return piggyback.slots.empty() || !operation.check->agrees_so_far() ? nullptr : &piggyback;
}

// This rank's slot.
void contribute(RunningOperation& operation) {
  const Piggyback& piggyback = operation.schedule->piggyback;
  int64_t end = piggyback.slots[static_cast<size_t>(operation.config->rank)];
  const StridedSpan scratch = contiguous(operation.scratch.data.get(), piggyback.slots.back());
  for (const Region& region : piggyback.contribution) {
    if (region.bytes == 0) continue;
    copy(operation.piece_to_read(region), region.offset, scratch, end, region.bytes);
    end += region.bytes;
  }
}

}  // namespace

HeaderRounds::State HeaderRounds::begin(RunningOperation& operation) {
  const GroupConfig& config = *operation.config;
  const PieceSizes& sizes = operation.spec.sizes;
  operation.check.emplace(config.rank, config.size, operation.spec.signature,
                          sizes.sent.empty() ? nullptr : &sizes);
  operation.rounds.resize(static_cast<size_t>(operation.check->rounds()));
  if (piggyback_of(operation) != nullptr) contribute(operation);
  return next(operation);
}

HeaderRounds::State HeaderRounds::next(RunningOperation& operation) {
  HeaderCheck& check = *operation.check;
  if (operation.round == check.rounds()) {
    if (operation.explaining) {
      operation.disagreement = check.failure(operation.config->name);
      return State::kDisagree;
    }
    if (check.agree()) return State::kAgree;
    operation.explaining = true;
    operation.round = 0;
    requests_.cancel_offers(operation);
    operation.explaining_rounds = std::make_unique<HeaderRound[]>(check.rounds());
    check.begin_explaining(check.is_named() ? operation.words() : std::string());
    return next(operation);
  }
  post(operation);
  return State::kUnderWay;
}

void HeaderRounds::post(RunningOperation& operation) {
  const HeaderCheck& check = *operation.check;
  const MemberGroup& g = *operation.group;
  const Piggyback* const piggyback = piggyback_of(operation);
  const auto round = static_cast<uint32_t>(operation.round);
  const uint32_t message = operation.explaining ? kExplainRound + round : round;
  size_t out = HeaderCheck::kMessageBytes, in = kLongestHeader;
  if (operation.explaining) out = in = check.explanation_bytes();
  if (piggyback != nullptr) {
    out += static_cast<size_t>(piggyback->bytes_sent_by(g.config->rank, operation.round));
  }
  HeaderRound& slot = operation.header();
  slot.memory = std::make_unique_for_overwrite<std::byte[]>(out + in);
  slot.out = {slot.memory.get(), out};
  slot.in = {slot.memory.get() + out, in};
  const int from = check.receive_from(operation.round);
  receive(operation,
          collective_tag(TagKind::kHeader, g.number, from, operation.sequence(), message));
  size_t length = check.message(slot.out);
  if (piggyback != nullptr) {
    for (const Piggyback::Range& range : piggyback->sent_by(g.config->rank, operation.round)) {
      std::memcpy(slot.out.data() + length, operation.scratch.data.get() + range.offset,
                  static_cast<size_t>(range.bytes));
      length += static_cast<size_t>(range.bytes);
    }
  }
  slot.send.step = kHeaderSend + message;
  const int to = check.send_to(operation.round);
  // The receive is still open, so nothing comes of this, done or not: a header that is lost is
  // missed by the rank that waits for it.
  slot.is_sending = !requests_.send(operation, to,
                                    collective_tag(TagKind::kHeader, g.members[to].group,
                                                   g.config->rank, operation.sequence(), message),
                                    slot.out.first(length), slot.send);
}

void HeaderRounds::receive(RunningOperation& operation, Tag tag) {
  HeaderRound& slot = operation.header();
  slot.receive.step = kHeaderReceive + static_cast<uint32_t>(operation.round);
  slot.is_receiving = true;
  requests_.receive(operation, tag, kExactly, slot.in, slot.receive);
}

HeaderRounds::State HeaderRounds::received(RunningOperation& operation, const Request& request) {
  HeaderRound& slot = operation.header();
  const int sender = operation.check->receive_from(operation.round);
  const Piggyback* const piggyback = piggyback_of(operation);
  const int64_t payload =
      piggyback != nullptr ? piggyback->bytes_sent_by(sender, operation.round) : 0;
  // What is too long is malformed, as is what is too short.
  const std::span<const std::byte> bytes =
      slot.in.first(request.status == MessageStatus::kOk ? static_cast<size_t>(request.bytes) : 0);
  if (!operation.check->receive(bytes, static_cast<size_t>(payload))) {
    receive(operation, request.tag);
    return State::kUnderWay;
  }
  if (piggyback != nullptr && operation.check->agrees_so_far()) {
    const std::byte* from = bytes.data() + HeaderCheck::kPlainBytes;
    for (const Piggyback::Range& range : piggyback->sent_by(sender, operation.round)) {
      std::memcpy(operation.scratch.data.get() + range.offset, from,
                  static_cast<size_t>(range.bytes));
      from += range.bytes;
    }
  }
  Member& from = operation.group->members[sender];
  from.last_called = std::max(from.last_called, operation.sequence());
  ++operation.round;
  return next(operation);
}

}  // namespace meshrun::ucx
