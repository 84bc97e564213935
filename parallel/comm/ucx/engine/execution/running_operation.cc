#include "parallel/comm/ucx/engine/execution/running_operation.h"

#include <utility>

#include "fmt/format.h"

namespace meshrun::ucx {
namespace {

FlightRecord record_of(const OperationSpec& spec, uint64_t sequence) {
  FlightRecord record = spec.record;
  record.sequence = sequence;
  record.kind = spec.signature.kind;
  record.dtype = spec.signature.dtype;
  record.peer = spec.signature.root;
  return record;
}

FlightRecord record_of(const PointToPointSpec& spec, uint64_t sequence) {
  FlightRecord record = spec.record;
  record.sequence = sequence;
  record.kind = spec.is_send ? OperationKind::kSend : OperationKind::kReceive;
  record.peer = spec.peer;
  record.bytes = spec.memory.layout.bytes();
  return record;
}

}  // namespace

RunningOperation::RunningOperation(std::shared_ptr<const GroupConfig> group_config,
                                   OperationSpec&& s, uint64_t sequence)
    : config(std::move(group_config)),
      is_point_to_point(false),
      spec(std::move(s)),
      record(record_of(spec, sequence)),
      drive(spec.drive),
      timeout(spec.timeout),
      schedule(spec.schedule) {
  sequence_ = sequence;
  spec.signature.sequence = sequence;
}

RunningOperation::RunningOperation(std::shared_ptr<const GroupConfig> group_config,
                                   PointToPointSpec&& s, uint64_t sequence)
    : config(std::move(group_config)),
      is_point_to_point(true),
      point_to_point(std::move(s)),
      record(record_of(point_to_point, sequence)),
      drive(point_to_point.drive),
      timeout(point_to_point.timeout) {
  sequence_ = sequence;
}

std::string RunningOperation::name() const {
  std::string peer;
  if (is_point_to_point) {
    peer = fmt::format(
        " {} {}", point_to_point.is_send ? "to" : "from",
        point_to_point.peer < 0 ? "any rank" : fmt::format("rank {}", point_to_point.peer));
  }
  const std::string what = record.kind == OperationKind::kBarrier
                               ? std::string()
                               : fmt::format(" ({})", describe(record));
  return fmt::format("{} number {}{} of group \"{}\"{}", called(record), sequence(), peer,
                     config->name, what);
}

std::string RunningOperation::words() const {
  if (spec.text) return spec.text();
  return fmt::format("{} of {}", name_of(record.kind), describe(record));
}

std::vector<int> RunningOperation::missing_ranks() const {
  std::vector<bool> missing(config->size);
  switch (state) {
    case OperationState::kConnecting:
      return unknown;
    case OperationState::kChecking:
      if (round < check->rounds()) missing[check->receive_from(round)] = true;
      break;
    case OperationState::kMoving:
      if (is_point_to_point) {
        if (point_to_point.peer >= 0) return {point_to_point.peer};
        missing.assign(config->size, true);
        missing[config->rank] = false;
        break;
      }
      for (StepId id = 0; id < steps.size(); ++id) {
        const StepState::Phase phase = steps[id].phase;
        // What a rank has read it must still be able to say.
        const bool is_saying = !offers.empty() && offers[id].is_sending;
        if (phase == StepState::kPosted || phase == StepState::kBroken || is_saying) {
          missing[step(id).peer] = true;
        }
      }
      break;
    default:
      break;
  }
  // A header that does not leave: its receiver is gone, or reads nothing.
  for (size_t i = 0; i < rounds.size() && !is_ended(); ++i) {
    if (rounds[i].is_sending) missing[check->send_to(static_cast<int>(i))] = true;
  }
  std::vector<int> ranks;
  for (int rank = 0; rank < config->size; ++rank) {
    if (missing[rank]) ranks.push_back(rank);
  }
  return ranks;
}

int64_t RunningOperation::bytes_of(StepId id) const {
  if (is_point_to_point) return point_to_point.memory.layout.bytes();
  return is_send(id) ? step(id).from.bytes : step(id).to.bytes;
}

ConstStridedSpan RunningOperation::piece_to_read(const Region& region) const {
  if (region.space == Space::kInput) return spec.inputs[region.piece];
  return piece_to_write(region);
}

StridedSpan RunningOperation::piece_to_write(const Region& region) const {
  if (region.space == Space::kOutput) return spec.outputs[region.piece];
  return contiguous(scratch.data.get(), schedule->scratch_bytes);
}

std::span<const std::byte> RunningOperation::bytes_to_read(const Region& region) const {
  if (region.bytes == 0) return {};
  const ConstStridedSpan piece = piece_to_read(region);
  return {piece.data + piece.layout.position(region.offset), static_cast<size_t>(region.bytes)};
}

std::span<std::byte> RunningOperation::bytes_to_write(const Region& region) const {
  if (region.bytes == 0) return {};
  const StridedSpan piece = piece_to_write(region);
  return {piece.data + piece.layout.position(region.offset), static_cast<size_t>(region.bytes)};
}

bool RunningOperation::has_lent() const {
  for (StepId id = 0; id < offers.size(); ++id) {
    if (is_lent(id)) return true;
  }
  return false;
}

bool RunningOperation::give_back(int borrower) {
  bool is_any = false;
  for (StepId id = 0; id < offers.size(); ++id) {
    if (!is_lent(id) || step(id).peer != borrower) continue;
    is_any = offers[id].is_returned = true;
  }
  return is_any;
}

bool RunningOperation::give_back_of_the_dead() {
  bool is_any = false;
  for (StepId id = 0; id < offers.size(); ++id) {
    if (!is_lent(id) || offers[id].borrower == nullptr) continue;
    if (offers[id].borrower->has_owner_ended()) is_any = give_back(step(id).peer) || is_any;
  }
  return is_any;
}

void RunningOperation::end(std::optional<Failure> failure, int source) {
  failure_ = std::move(failure);
  source_rank_ = source;
  done_.store(true, std::memory_order_release);
}

}  // namespace meshrun::ucx
