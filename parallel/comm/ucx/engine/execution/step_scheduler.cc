#include "parallel/comm/ucx/engine/execution/step_scheduler.h"

#include <algorithm>
#include <utility>

#include "parallel/base/prefetch.h"
#include "parallel/base/reduce.h"
#include "parallel/comm/ucx/engine/values/tag.h"

namespace meshrun::ucx {
namespace {

// Pieces of this many bytes exceed the caches, so all of what is copied is prefetched.
constexpr int64_t kMoreThanCaches = 4 << 20;

Tag data_tag(const MemberGroup& g, const Step& step, uint64_t sequence) {
  const bool is_send = step.kind == StepKind::kSend;
  return collective_tag(TagKind::kData, is_send ? g.members[step.peer].group : g.number,
                        is_send ? g.config->rank : step.peer, sequence, step.message);
}

}  // namespace

void StepScheduler::begin(RunningOperation& operation) {
  if (operation.schedule == nullptr) return;
  const std::vector<Step>& steps = operation.schedule->steps;
  operation.steps_left = steps.size();
  for (StepId id = 0; id < steps.size(); ++id) {
    operation.steps[id].waits_for = steps[id].dependencies;
    if (steps[id].dependencies == 0) make_ready(operation, id);
  }
}

void StepScheduler::make_ready(RunningOperation& operation, StepId id) {
  operation.steps[id].phase = StepState::kReady;
  const StepKind kind = operation.step(id).kind;
  Ready ready{&operation, id};
  if (kind == StepKind::kSend || kind == StepKind::kReceive) {
    posts_.push_back(ready);
    ++operation.queued_steps;
    return;
  }
  if (kind == StepKind::kCopy) {
    ready.to = operation.piece_to_write(operation.step(id).to);
    ready.to_offset = operation.step(id).to.offset;
  }
  compute_later(ready);
}

void StepScheduler::run() {
  run_posts();
  for (int64_t bytes = 0; bytes < kRoundBytes && !computes_.empty(); run_posts()) {
    const Ready ready = computes_.front();
    computes_.pop_front();
    --ready.operation->queued_steps;
    bytes += compute(ready, kRoundBytes - bytes);
  }
}

void StepScheduler::run_posts() {
  while (!posts_.empty()) {
    const Ready ready = posts_.front();
    posts_.pop_front();
    --ready.operation->queued_steps;
    post(*ready.operation, ready.step);
  }
}

void StepScheduler::forget(RunningOperation& operation) {
  if (std::exchange(operation.queued_steps, 0) == 0) return;
  const auto is_its = [&](const Ready& ready) { return ready.operation == &operation; };
  std::erase_if(posts_, is_its);
  std::erase_if(computes_, is_its);
}

void StepScheduler::post(RunningOperation& operation, StepId id) {
  const MemberGroup& g = *operation.group;
  const Step& step = operation.step(id);
  StepState& state = operation.steps[id];
  state.phase = StepState::kPosted;
  state.request.step = id;
  const bool is_exchanged = Offers::is_exchanged(g, step);
  if (is_exchanged) offers_.exchange(operation, id);
  if (step.kind == StepKind::kSend) {
    if (!is_exchanged || operation.offers[id].state == Offer::kKnown) send(operation, id);
  } else {
    receive(operation, id);
  }
}

void StepScheduler::receive(RunningOperation& operation, StepId id) {
  const Step& step = operation.step(id);
  StepState& state = operation.steps[id];
  state.phase = StepState::kPosted;
  requests_.receive_data(operation, step.peer,
                         data_tag(*operation.group, step, operation.sequence()),
                         operation.bytes_to_write(operation.receives_in(id)), state.request);
}

void StepScheduler::offer_known(RunningOperation& operation, StepId id) {
  StepState& state = operation.steps[id];
  if (state.phase != StepState::kPosted) return;
  state.request.step = id;
  operation.offers[id].is_source ? finish(operation, id) : send(operation, id);
}

void StepScheduler::send(RunningOperation& operation, StepId id) {
  const Step& step = operation.step(id);
  const Tag tag = data_tag(*operation.group, step, operation.sequence());
  if (offers_.lend_source(operation, id, tag)) return;
  const bool is_push = operation.is_push(id), is_filled = operation.is_filled(step.from);
  if (!is_push && !is_filled && step.staging.bytes == 0) {
    return send_data(operation, id, operation.bytes_to_read(step.from));
  }
  Ready ready{&operation, id};
  if (is_push) {
    ready.to = operation.offers[id].there;
    ready.to_offset = operation.offers[id].message.skipped;
    counters_.sent_bytes += step.from.bytes;
  } else if (step.staging.bytes > 0) {
    ready.to = operation.piece_to_write(step.staging);
    ready.to_offset = step.staging.offset;
  } else {
    // Not of the scratch memory, which is kept: this may be as long as the tensor.
    operation.filled.emplace_back(new std::byte[static_cast<size_t>(step.from.bytes)]);
    ready.to = contiguous(operation.filled.back().get(), step.from.bytes);
  }
  compute_later(ready);
}

void StepScheduler::send_data(RunningOperation& operation, StepId id,
                              std::span<const std::byte> bytes) {
  const Step& step = operation.step(id);
  Request& request = operation.steps[id].request;
  if (!requests_.send(operation, step.peer, data_tag(*operation.group, step, operation.sequence()),
                      bytes, request)) {
    return;
  }
  if (request.status == MessageStatus::kFailed) return listener_.send_failed(operation, request);
  finish(operation, id);
}

void StepScheduler::post_point_to_point(RunningOperation& operation) {
  const MemberGroup& g = *operation.group;
  const PointToPointSpec& spec = operation.point_to_point;
  operation.steps.resize(1);
  operation.steps_left = 1;
  StepState& state = operation.steps[0];
  state.phase = StepState::kPosted;
  const std::span<std::byte> memory{spec.memory.data,
                                    static_cast<size_t>(spec.memory.layout.bytes())};
  if (!spec.is_send) {
    const Tag tag = point_to_point_tag(g.number, std::max(spec.peer, 0), spec.user_tag);
    return requests_.receive(operation, tag, spec.peer < 0 ? kAnySender : kExactly, memory,
                             state.request);
  }
  const Tag tag = point_to_point_tag(g.members[spec.peer].group, g.config->rank, spec.user_tag);
  if (!requests_.send(operation, spec.peer, tag, memory, state.request)) return;
  if (state.request.status == MessageStatus::kFailed) {
    return listener_.send_failed(operation, state.request);
  }
  finish(operation, 0);
}

bool StepScheduler::message_done(RunningOperation& operation, const Request& request) {
  const StepId id = request.step;
  if (!operation.is_send(id)) {
    if (Offers::is_source(operation, request)) {
      read(operation, id);
      return true;
    }
    const bool is_written = request.bytes == 0 && operation.was_offered(id);
    if (request.status != MessageStatus::kOk ||
        (request.bytes != operation.bytes_of(id) && !is_written)) {
      return false;
    }
    const bool is_staged = operation.schedule && operation.step(id).staging.bytes > 0 &&
                           (!is_written || operation.offers[id].is_staging);
    if (is_staged) {
      unstage(operation, id);
      return true;
    }
  }
  finish(operation, id);
  return true;
}

void StepScheduler::unstage(RunningOperation& operation, StepId id) {
  // Nobody else has to do with it any more.
  if (operation.was_offered(id)) operation.offers[id].is_returned = true;
  bring_home(operation, id);
}

void StepScheduler::bring_home(RunningOperation& operation, StepId id) {
  operation.steps[id].phase = StepState::kReady;
  const Region& to = operation.step(id).to;
  compute_later({&operation, id, 0, operation.piece_to_write(to), to.offset});
}

void StepScheduler::read(RunningOperation& operation, StepId id) {
  switch (offers_.find_source(operation, id)) {
    case Offers::Source::kStale:
      return receive(operation, id);
    case Offers::Source::kOutOfReach:
      if (answer(operation, id, false)) receive(operation, id);
      return;
    case Offers::Source::kHere:
      return bring_home(operation, id);
  }
}

bool StepScheduler::answer(RunningOperation& operation, StepId id, bool was_read) {
  if (offers_.answer(operation, id, was_read)) return true;
  listener_.send_failed(operation, operation.offers[id].request);
  return false;
}

void StepScheduler::finish(RunningOperation& operation, StepId id) {
  operation.steps[id].phase = StepState::kFinished;
  --operation.steps_left;
  if (!operation.is_point_to_point) {
    const Step& step = operation.step(id);
    const Schedule& schedule = *operation.schedule;
    for (uint32_t i = 0; i < step.successor_count; ++i) {
      const StepId next = schedule.successors[step.first_successor + i];
      if (--operation.steps[next].waits_for == 0) make_ready(operation, next);
    }
  }
  if (operation.steps_left == 0) listener_.steps_done(operation);
}

void StepScheduler::compute_later(const Ready& ready) {
  computes_.push_back(ready);
  ++ready.operation->queued_steps;
}

int64_t StepScheduler::compute(const Ready& ready, int64_t budget) {
  return ready.operation->step(ready.step).kind == StepKind::kReduce ? reduce_all(ready)
                                                                     : copy_part(ready, budget);
}

int64_t StepScheduler::copy_part(Ready ready, int64_t budget) {
  RunningOperation& operation = *ready.operation;
  const Step& step = operation.step(ready.step);
  const bool is_push = operation.is_push(ready.step), is_read = operation.is_read(ready.step);
  const Region& from = is_read                           ? step.to
                       : step.kind == StepKind::kReceive ? step.staging
                                                         : step.from;
  const int64_t bytes = std::min(from.bytes - ready.done, budget);
  const int64_t begin = is_read ? operation.offers[ready.step].message.skipped : from.offset;
  const int64_t offset = begin + ready.done, to_offset = ready.to_offset + ready.done;
  if (operation.is_filled(from)) {
    operation.spec.fill(from.piece, offset, ready.to, to_offset, bytes);
  } else {
    const ConstStridedSpan source =
        is_read ? operation.offers[ready.step].there : operation.piece_to_read(from);
    const Layout& piece = from.space == Space::kScratch ? ready.to.layout : source.layout;
    copy(source, offset, ready.to, to_offset, bytes,
         piece.bytes() >= kMoreThanCaches ? Prefetch::kAll : Prefetch::kRows);
  }
  if (is_push) {
    counters_.pushed_bytes += bytes;
  } else if (!is_read && !operation.schedule->is_piggybacked(step.from)) {
    counters_.copied_bytes += bytes;
  }
  ready.done += bytes;
  if (ready.done < from.bytes) {
    computes_.push_front(ready);
    ++operation.queued_steps;
  } else if (step.kind != StepKind::kSend) {
    if (!is_read || answer(operation, ready.step, true)) finish(operation, ready.step);
  } else if (is_push) {
    send_data(operation, ready.step, {});
  } else {
    send_data(operation, ready.step,
              {ready.to.data + ready.to_offset, static_cast<size_t>(from.bytes)});
  }
  return bytes;
}

int64_t StepScheduler::reduce_all(const Ready& ready) {
  RunningOperation& operation = *ready.operation;
  const Step& step = operation.step(ready.step);
  const Schedule& schedule = *operation.schedule;
  const Reduction& reduction = schedule.reductions[step.reduction];
  sources_.clear();
  for (uint32_t i = 0; i < step.source_count; ++i) {
    sources_.push_back(operation.bytes_to_read(schedule.sources[step.first_source + i]).data());
  }
  const int64_t count = step.to.bytes / element_size(reduction.target());
  reduce(sources_, operation.bytes_to_write(step.to).data(), count, reduction);
  const int64_t bytes = count * element_size(reduction.source()) * step.source_count;
  counters_.reduced_bytes += bytes;
  finish(operation, ready.step);
  return bytes;
}

}  // namespace meshrun::ucx
