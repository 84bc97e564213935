#include "parallel/comm/ucx/engine/planning/schedule.h"

#include <algorithm>
#include <cassert>
#include <numeric>
#include <utility>

#include "parallel/comm/ucx/engine/planning/shared_scratch.h"

namespace meshrun::ucx {
namespace {

constexpr int64_t kScratchAlignment = 64;

int64_t aligned(int64_t bytes) {
  return (bytes + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
}

}  // namespace

int64_t Schedule::copied_bytes() const {
  int64_t bytes = 0;
  for (const Step& step : steps) {
    if (step.kind == StepKind::kCopy && is_piggybacked(step.from)) continue;
    bytes += step.kind == StepKind::kCopy ? step.to.bytes : step.staging.bytes;
  }
  return bytes;
}

std::array<Piggyback::Range, 2> Piggyback::sent_by(int sender, int round) const {
  const auto size = static_cast<int>(slots.size()) - 1;
  const int first = sender + 1 - std::min(1 << round, size - (1 << round));
  const auto at = [&](int rank) { return slots[static_cast<size_t>(rank)]; };
  const auto range = [&](int from, int to) { return Range{at(from), at(to) - at(from)}; };
  if (first >= 0) return {range(first, sender + 1), Range{}};
  return {range(first + size, size), range(0, sender + 1)};
}

int64_t Piggyback::bytes_sent_by(int sender, int round) const {
  const auto [first, second] = sent_by(sender, round);
  return first.bytes + second.bytes;
}

Schedule join(Schedule first, const Schedule& second, int32_t inputs, int32_t outputs) {
  assert(first.piggyback.slots.empty() && second.piggyback.slots.empty());
  if (first.scratch_parts.empty()) {
    fill_place(first, {}, aligned(first.scratch_bytes), 0);
  }
  const int64_t scratch_bytes = aligned(second.scratch_bytes);
  const ScratchPlace scratch = take_place(first, scratch_bytes);
  const auto steps = static_cast<uint32_t>(first.steps.size());
  const auto successors = static_cast<uint32_t>(first.successors.size());
  const auto sources = static_cast<uint32_t>(first.sources.size());
  const auto reductions = static_cast<uint32_t>(first.reductions.size());

  const auto moved = [&](Region region) {
    switch (region.space) {
      case Space::kInput:
        region.piece += inputs;
        break;
      case Space::kOutput:
        region.piece += outputs;
        break;
      case Space::kScratch:
        region.offset += scratch.offset;
        break;
    }
    return region;
  };

  for (Step step : second.steps) {
    if (step.kind == StepKind::kSend) step.message += first.sent[step.peer];
    if (step.kind == StepKind::kReceive) step.message += first.received[step.peer];
    step.from = moved(step.from);
    step.to = moved(step.to);
    step.staging = moved(step.staging);
    step.first_source += sources;
    step.first_successor += successors;
    step.reduction += reductions;
    first.steps.push_back(step);
  }
  const auto add = [&](std::vector<uint32_t>& to, const std::vector<uint32_t>& more) {
    for (size_t peer = 0; peer < more.size(); ++peer) {
      to[peer] += more[peer];
      first.most_messages = std::max(first.most_messages, to[peer]);
    }
  };
  add(first.sent, second.sent);
  add(first.received, second.received);
  for (StepId successor : second.successors) first.successors.push_back(successor + steps);
  for (const Region& source : second.sources) first.sources.push_back(moved(source));
  first.reductions.insert(first.reductions.end(), second.reductions.begin(),
                          second.reductions.end());
  fill_place(first, scratch, scratch_bytes, steps);
  return first;
}

ScheduleBuilder::ScheduleBuilder(int group_size) {
  schedule_.sent.resize(group_size);
  schedule_.received.resize(group_size);
}

StepId ScheduleBuilder::push(const Step& step, std::span<const StepId> after) {
  const auto id = static_cast<StepId>(schedule_.steps.size());
  schedule_.steps.push_back(step);
  for (StepId earlier : after) add_dependency(id, earlier);
  return id;
}

StepId ScheduleBuilder::send(int peer, Region from, std::initializer_list<StepId> after,
                             Region staging) {
  assert(staging.bytes == 0 || staging.bytes == from.bytes);
  Step step;
  step.kind = StepKind::kSend;
  step.peer = peer;
  step.message = schedule_.sent[peer]++;
  step.offers = offers_;
  step.from = from;
  step.staging = staging;
  return push(step, after);
}

StepId ScheduleBuilder::receive(int peer, Region to, std::initializer_list<StepId> after,
                                Region staging) {
  assert(staging.bytes == 0 || staging.bytes == to.bytes);
  Step step;
  step.kind = StepKind::kReceive;
  step.peer = peer;
  step.message = schedule_.received[peer]++;
  step.offers = offers_;
  step.to = to;
  step.staging = staging;
  return push(step, after);
}

StepId ScheduleBuilder::copy(Region from, Region to, std::initializer_list<StepId> after) {
  assert(from.bytes == to.bytes);
  Step step;
  step.kind = StepKind::kCopy;
  step.from = from;
  step.to = to;
  return push(step, after);
}

StepId ScheduleBuilder::reduce(std::span<const Region> sources, Region to,
                               std::span<const StepId> after, uint32_t reduction) {
  Step step;
  step.kind = StepKind::kReduce;
  step.reduction = reduction;
  step.to = to;
  step.first_source = static_cast<uint32_t>(schedule_.sources.size());
  step.source_count = static_cast<uint32_t>(sources.size());
  schedule_.sources.insert(schedule_.sources.end(), sources.begin(), sources.end());
  return push(step, after);
}

void ScheduleBuilder::add_dependency(StepId step, StepId earlier) {
  assert(earlier < step);
  edges_.push_back({earlier, step});
}

Region ScheduleBuilder::scratch(int64_t bytes) {
  const Region region{Space::kScratch, 0, schedule_.scratch_bytes, bytes};
  schedule_.scratch_bytes += aligned(bytes);
  return region;
}

const Piggyback& ScheduleBuilder::piggyback(std::span<const int64_t> bytes,
                                            std::vector<Region> contribution) {
  Piggyback& piggyback = schedule_.piggyback;
  piggyback.contribution = std::move(contribution);
  int64_t end = scratch(std::accumulate(bytes.begin(), bytes.end(), int64_t{0})).offset;
  piggyback.slots = {end};
  for (const int64_t each : bytes) piggyback.slots.push_back(end += each);
  return piggyback;
}

Region ScheduleBuilder::slot(int rank, int64_t offset, int64_t bytes) const {
  return {Space::kScratch, 0, schedule_.piggyback.slots[static_cast<size_t>(rank)] + offset, bytes};
}

Region ScheduleBuilder::slot(int rank) const {
  const std::vector<int64_t>& slots = schedule_.piggyback.slots;
  const auto r = static_cast<size_t>(rank);
  return slot(rank, 0, slots[r + 1] - slots[r]);
}

Schedule ScheduleBuilder::finish(std::vector<Reduction> reductions) && {
  std::vector<Step>& steps = schedule_.steps;
  for (const Edge& edge : edges_) {
    ++steps[edge.earlier].successor_count;
    ++steps[edge.later].dependencies;
  }
  uint32_t next = 0;
  for (Step& step : steps) {
    step.first_successor = next;
    next += std::exchange(step.successor_count, 0);
  }
  schedule_.successors.resize(next);
  for (const Edge& edge : edges_) {
    Step& step = steps[edge.earlier];
    schedule_.successors[step.first_successor + step.successor_count++] = edge.later;
  }
  schedule_.reductions = std::move(reductions);
  for (const auto* counts : {&schedule_.sent, &schedule_.received}) {
    for (const uint32_t count : *counts) {
      schedule_.most_messages = std::max(schedule_.most_messages, count);
    }
  }
  return std::move(schedule_);
}

}  // namespace meshrun::ucx
