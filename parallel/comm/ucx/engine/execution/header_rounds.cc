#include "parallel/comm/ucx/engine/execution/header_rounds.h"

#include <algorithm>
#include <memory>
#include <span>
#include <string>

#include "parallel/comm/ucx/engine/values/tag.h"

namespace meshrun::ucx {

HeaderRounds::State HeaderRounds::begin(RunningOperation& operation) {
  const GroupConfig& config = *operation.config;
  const PieceSizes& sizes = operation.spec.sizes;
  operation.check.emplace(config.rank, config.size, operation.spec.signature,
                          sizes.sent.empty() ? nullptr : &sizes);
  operation.rounds.resize(static_cast<size_t>(operation.check->rounds()));
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
  const auto round = static_cast<uint32_t>(operation.round);
  const uint32_t message = operation.explaining ? kExplainRound + round : round;
  HeaderRound& slot = operation.header();
  std::span<std::byte> out = slot.out;
  std::span<std::byte> in = slot.in;
  if (operation.explaining) {
    const size_t bytes = check.explanation_bytes();
    slot.long_out = std::make_unique<std::byte[]>(bytes);
    slot.long_in = std::make_unique<std::byte[]>(bytes);
    out = {slot.long_out.get(), bytes};
    in = {slot.long_in.get(), bytes};
  }
  slot.receive.step = kHeaderReceive + round;
  slot.is_receiving = true;
  const int from = check.receive_from(operation.round);
  requests_.receive(operation,
                    collective_tag(TagKind::kHeader, g.number, from, operation.sequence(), message),
                    kExactly, in, slot.receive);
  slot.send.step = kHeaderSend + round;
  const int to = check.send_to(operation.round);
  // The receive is still open, so nothing comes of this, done or not: a header that is lost is
  // missed by the rank that waits for it.
  static_cast<void>(requests_.send(operation, to,
                                   collective_tag(TagKind::kHeader, g.members[to].group,
                                                  g.config->rank, operation.sequence(), message),
                                   out.first(check.message(out)), slot.send));
}

HeaderRounds::State HeaderRounds::received(RunningOperation& operation, const Request& request) {
  HeaderRound& slot = operation.header();
  std::span<const std::byte> bytes = slot.in;
  if (operation.explaining) bytes = {slot.long_in.get(), operation.check->explanation_bytes()};
  // What is too long is malformed, as is what is too short.
  bytes = bytes.first(request.status == MessageStatus::kOk ? request.bytes : 0);
  if (!operation.check->receive(bytes)) {
    slot.is_receiving = true;
    requests_.receive(operation, request.tag, kExactly, slot.in, slot.receive);
    return State::kUnderWay;
  }
  Member& from = operation.group->members[operation.check->receive_from(operation.round)];
  from.last_called = std::max(from.last_called, operation.sequence());
  ++operation.round;
  return next(operation);
}

}  // namespace meshrun::ucx
