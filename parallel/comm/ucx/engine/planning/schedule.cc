#include "parallel/comm/ucx/engine/planning/schedule.h"

#include <cassert>
#include <utility>

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
    bytes += step.kind == StepKind::kCopy ? step.to.bytes : step.staging.bytes;
  }
  return bytes;
}

Schedule join(Schedule first, const Schedule& second, int32_t inputs, int32_t outputs) {
  const auto steps = static_cast<uint32_t>(first.steps.size());
  const auto successors = static_cast<uint32_t>(first.successors.size());
  const auto sources = static_cast<uint32_t>(first.sources.size());
  const auto reductions = static_cast<uint32_t>(first.reductions.size());
  const int64_t scratch = aligned(first.scratch_bytes);

  const auto moved = [&](Region region) {
    switch (region.space) {
      case Space::kInput:
        region.piece += inputs;
        break;
      case Space::kOutput:
        region.piece += outputs;
        break;
      case Space::kScratch:
        region.offset += scratch;
        break;
    }
    return region;
  };

  std::vector<uint32_t> sent, received;  // of `first`, by peer
  const auto counter = [](std::vector<uint32_t>& by_peer, int32_t peer) -> uint32_t& {
    if (peer >= static_cast<int32_t>(by_peer.size())) by_peer.resize(peer + 1);
    return by_peer[peer];
  };
  for (const Step& step : first.steps) {
    if (step.kind == StepKind::kSend) ++counter(sent, step.peer);
    if (step.kind == StepKind::kReceive) ++counter(received, step.peer);
  }

  first.steps.reserve(first.steps.size() + second.steps.size());
  for (Step step : second.steps) {
    if (step.kind == StepKind::kSend) step.message += counter(sent, step.peer);
    if (step.kind == StepKind::kReceive) step.message += counter(received, step.peer);
    step.from = moved(step.from);
    step.to = moved(step.to);
    step.staging = moved(step.staging);
    step.first_source += sources;
    step.first_successor += successors;
    step.reduction += reductions;
    first.steps.push_back(step);
  }
  for (StepId successor : second.successors) first.successors.push_back(successor + steps);
  for (const Region& source : second.sources) first.sources.push_back(moved(source));
  first.reductions.insert(first.reductions.end(), second.reductions.begin(),
                          second.reductions.end());
  first.scratch_bytes = scratch + second.scratch_bytes;
  return first;
}

ScheduleBuilder::ScheduleBuilder(int group_size) : sent_(group_size), received_(group_size) {}

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
  step.message = sent_[peer]++;
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
  step.message = received_[peer]++;
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
                               std::span<const StepId> after) {
  Step step;
  step.kind = StepKind::kReduce;
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

Schedule ScheduleBuilder::finish(const Reduction& reduction) && {
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
  schedule_.reductions = {reduction};
  return std::move(schedule_);
}

}  // namespace meshrun::ucx
