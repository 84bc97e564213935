// What moves operations forward: rounds of the header check, steps of the schedule.
#include <algorithm>
#include <utility>

#include "fmt/format.h"
#include "parallel/comm/ucx/engine/execution/executor_impl.h"

namespace meshrun::ucx {
namespace {

// Of a piece, so that it had better be asked for.
constexpr int64_t kMoreThanCaches = 4 << 20;

std::string words_of(const RunningOperation& operation) {
  if (operation.spec.text) return operation.spec.text();
  return fmt::format("{} of {}", name_of(operation.record.kind), describe(operation.record));
}

}  // namespace

void Executor::Impl::start(const OperationPtr& operation) {
  MemberGroup& g = *operation->group;
  operation->unknown = unknown_peers(*operation);
  look_up(g, operation->unknown);
  // A receive is posted at once: its place among receives from any rank is that of its submission.
  if (operation->unknown.empty() || operation->is_receive()) return start_connected(*operation);
  operation->state = OperationState::kConnecting;
  g.recorder.advance(operation->ticket, operation->state, now_);
}

void Executor::Impl::start_connected(RunningOperation& operation) {
  MemberGroup& g = *operation.group;
  if (!operation.is_point_to_point) prepare(operation);
  if (operation.is_point_to_point || !g.config->check_headers) return begin_moving(operation);
  operation.state = OperationState::kChecking;
  g.recorder.advance(operation.ticket, operation.state, now_);
  operation.check.emplace(g.config->rank, g.config->size, operation.spec.signature);
  operation.rounds.resize(static_cast<size_t>(operation.check->rounds()));
  begin_round(operation);
}

void Executor::Impl::begin_round(RunningOperation& operation) {
  if (operation.round == operation.check->rounds()) return end_rounds(operation);
  const HeaderCheck& check = *operation.check;
  const MemberGroup& g = *operation.group;
  const auto round = static_cast<uint32_t>(operation.round);
  const uint32_t message = operation.explaining ? kExplainRound + round : round;
  HeaderRound& slot = operation.header();
  std::span<std::byte> out = slot.out;
  std::span<std::byte> in = slot.in;
  if (operation.explaining) {
    constexpr size_t kBytes = HeaderCheck::kExplanationBytes;
    slot.long_out = std::make_unique<std::byte[]>(kBytes);
    slot.long_in = std::make_unique<std::byte[]>(kBytes);
    out = {slot.long_out.get(), kBytes};
    in = {slot.long_in.get(), kBytes};
  }
  slot.receive.step = kHeaderReceive + round;
  slot.is_receiving = true;
  const int from = check.receive_from(operation.round);
  post_receive(operation,
               collective_tag(TagKind::kHeader, g.number, from, operation.sequence(), message),
               kExactly, in, slot.receive);
  slot.send.step = kHeaderSend + round;
  const int to = check.send_to(operation.round);
  post_send(operation, to,
            collective_tag(TagKind::kHeader, g.members[to].group, g.config->rank,
                           operation.sequence(), message),
            out.first(check.message(out)), slot.send);
}

void Executor::Impl::header_received(RunningOperation& operation, const Request& request) {
  HeaderRound& slot = operation.header();
  std::span<const std::byte> bytes = slot.in;
  if (operation.explaining) bytes = {slot.long_in.get(), HeaderCheck::kExplanationBytes};
  // What is too long is malformed, as is what is too short.
  bytes = bytes.first(request.status == MessageStatus::kOk ? request.bytes : 0);
  if (!operation.check->receive(bytes)) {
    slot.is_receiving = true;
    return post_receive(operation, request.tag, kExactly, slot.in, slot.receive);
  }
  Member& from = operation.group->members[operation.check->receive_from(operation.round)];
  from.last_called = std::max(from.last_called, operation.sequence());
  ++operation.round;
  begin_round(operation);
}

void Executor::Impl::end_rounds(RunningOperation& operation) {
  HeaderCheck& check = *operation.check;
  if (operation.explaining) {
    operation.disagreement = check.failure(operation.config->name);
    return finish_if_done(operation);
  }
  if (check.agree()) return begin_moving(operation);
  operation.explaining = true;
  operation.round = 0;
  if (!operation.offers.empty()) to_cancel_.push_back(operation.shared_from_this());
  operation.explaining_rounds = std::make_unique<HeaderRound[]>(check.rounds());
  check.begin_explaining(check.is_named() ? words_of(operation) : std::string());
  begin_round(operation);
}

void Executor::Impl::begin_moving(RunningOperation& operation) {
  MemberGroup& g = *operation.group;
  operation.state = OperationState::kMoving;
  g.recorder.advance(operation.ticket, operation.state, now_);
  if (operation.is_point_to_point) return post_point_to_point(operation);
  if (operation.spec.signature.flags & kHasProblem) {
    // Headers are not compared, so nobody else knows.
    return fail_group(g, {FailureKind::kInvalidArgument,
                          fmt::format("{} has wrong arguments on rank {}: {}", operation.name(),
                                      g.config->rank, words_of(operation)),
                          {g.config->rank}});
  }
  if (operation.schedule != nullptr) {
    const std::vector<Step>& steps = operation.schedule->steps;
    operation.steps_left = steps.size();
    for (StepId id = 0; id < steps.size(); ++id) {
      operation.steps[id].waits_for = steps[id].dependencies;
      if (steps[id].dependencies == 0) make_ready(operation, id);
    }
  }
  finish_if_done(operation);
}

void Executor::Impl::make_ready(RunningOperation& operation, StepId id) {
  operation.steps[id].phase = StepState::kReady;
  const StepKind kind = operation.step(id).kind;
  ReadyStep ready{&operation, id};
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

void Executor::Impl::run_ready() {
  run_posts();
  for (int64_t bytes = 0; bytes < kRoundBytes && !computes_.empty(); run_posts()) {
    ReadyStep ready = computes_.front();
    computes_.pop_front();
    --ready.operation->queued_steps;
    bytes += compute(ready, kRoundBytes - bytes);
  }
}

void Executor::Impl::run_posts() {
  while (!posts_.empty()) {
    const ReadyStep ready = posts_.front();
    posts_.pop_front();
    --ready.operation->queued_steps;
    post_step(*ready.operation, ready.step);
  }
}

void Executor::Impl::forget_ready(RunningOperation& operation) {
  if (std::exchange(operation.queued_steps, 0) == 0) return;
  const auto is_its = [&](const ReadyStep& ready) { return ready.operation == &operation; };
  std::erase_if(posts_, is_its);
  std::erase_if(computes_, is_its);
}

void Executor::Impl::post_step(RunningOperation& operation, StepId id) {
  const MemberGroup& g = *operation.group;
  const Step& step = operation.step(id);
  StepState& state = operation.steps[id];
  state.phase = StepState::kPosted;
  state.request.step = id;
  const bool is_asked = has_offer(g, step);
  if (is_asked) exchange_offer(operation, id);
  if (step.kind == StepKind::kSend) {
    if (!is_asked || operation.offers[id].state == Offer::kKnown) send_step(operation, id);
  } else {
    post_receive(operation, data_tag(g, step, operation.sequence()), kExactly,
                 operation.bytes_to_write(operation.receives_in(id)), state.request);
  }
}

Tag Executor::Impl::data_tag(const MemberGroup& g, const Step& step, uint64_t sequence) {
  const bool is_send = step.kind == StepKind::kSend;
  return collective_tag(TagKind::kData, is_send ? g.members[step.peer].group : g.number,
                        is_send ? g.config->rank : step.peer, sequence, step.message);
}

void Executor::Impl::send_data(RunningOperation& operation, StepId id,
                               std::span<const std::byte> bytes) {
  const Step& step = operation.step(id);
  post_send(operation, step.peer, data_tag(*operation.group, step, operation.sequence()), bytes,
            operation.steps[id].request);
}

void Executor::Impl::post_point_to_point(RunningOperation& operation) {
  const MemberGroup& g = *operation.group;
  const PointToPointSpec& spec = operation.point_to_point;
  operation.steps.resize(1);
  operation.steps_left = 1;
  StepState& state = operation.steps[0];
  state.phase = StepState::kPosted;
  const std::span<std::byte> memory{spec.memory.data,
                                    static_cast<size_t>(spec.memory.layout.bytes())};
  if (spec.is_send) {
    const Tag tag = point_to_point_tag(g.members[spec.peer].group, g.config->rank, spec.user_tag);
    post_send(operation, spec.peer, tag, memory, state.request);
  } else {
    const Tag tag = point_to_point_tag(g.number, std::max(spec.peer, 0), spec.user_tag);
    post_receive(operation, tag, spec.peer < 0 ? kAnySender : kExactly, memory, state.request);
  }
}

void Executor::Impl::post_send(RunningOperation& operation, int rank, Tag tag,
                               std::span<const std::byte> bytes, Request& request) {
  request.owner = &operation;
  ++counters_.messages;
  counters_.sent_bytes += static_cast<int64_t>(bytes.size());
  ++operation.outstanding;
  if (!transport_->send(peer_of(*operation.group, rank), tag, bytes, request)) return;
  --operation.outstanding;
  message_done(operation, request);
}

void Executor::Impl::post_receive(RunningOperation& operation, Tag tag, Tag mask,
                                  std::span<std::byte> bytes, Request& request) {
  request.owner = &operation;
  ++operation.outstanding;
  transport_->receive(tag, mask, bytes, request);
}

void Executor::Impl::message_done(RunningOperation& operation, const Request& request) {
  // A header that is lost is missed by who waits for it.
  if (request.step & (kHeaderSend | kOfferSend)) return finish_if_done(operation);
  if (request.status == MessageStatus::kFailed) return connection_broke(operation, request);
  if (request.step & kHeaderReceive) return header_received(operation, request);
  if (request.step & kOfferReceive) return offer_received(operation, request);
  if (!operation.is_send(request.step)) {
    const bool is_written = request.bytes == 0 && operation.was_offered(request.step);
    if (request.status != MessageStatus::kOk ||
        (request.bytes != operation.bytes_of(request.step) && !is_written)) {
      return wrong_length(operation, request);
    }
    const bool is_staged = operation.schedule && operation.step(request.step).staging.bytes > 0 &&
                           (!is_written || operation.offers[request.step].is_staging);
    if (is_staged) return unstage(operation, request.step);
  }
  finish_step(operation, request.step);
}

void Executor::Impl::unstage(RunningOperation& operation, StepId id) {
  // Nobody else has to do with it any more.
  operation.steps[id].phase = StepState::kReady;
  if (operation.was_offered(id)) operation.offers[id].is_returned = true;
  const Region& to = operation.step(id).to;
  compute_later({&operation, id, 0, operation.piece_to_write(to), to.offset});
}

void Executor::Impl::connection_broke(RunningOperation& operation, const Request& request) {
  int rank;
  if (request.step & kHeaderReceive) {
    rank = operation.check->receive_from(operation.round);
  } else {
    rank = operation.peer_of(request.step & kStepMask);
    // From any rank: from another one, then.
    if (rank < 0) return post_point_to_point(operation);
    operation.steps[request.step & kStepMask].phase = StepState::kBroken;
  }
  // What is open is ended by check_gone(): by then a better reason may be known.
  gone(operation.group->members[rank].world_rank, false, "its connection broke");
}

void Executor::Impl::wrong_length(RunningOperation& operation, const Request& request) {
  const bool is_longer = request.status != MessageStatus::kOk;
  int rank = operation.peer_of(request.step);
  if (rank < 0 && !is_longer) rank = sender_of(request.tag);
  const int64_t expected = operation.bytes_of(request.step);
  const int own = operation.config->rank;
  Failure failure{FailureKind::kMismatch,
                  fmt::format("{}: rank {} expects {} bytes, and {} sent {}", operation.name(), own,
                              expected, rank < 0 ? "a rank" : fmt::format("rank {}", rank),
                              is_longer ? "more" : fmt::format("{}", request.bytes)),
                  {own}};
  if (rank >= 0) failure.ranks.push_back(rank);
  operation.steps[request.step].phase = StepState::kFinished;
  if (!operation.is_point_to_point) return fail_group(*operation.group, std::move(failure));
  failure.group_survives = true;
  end_operation(operation, std::move(failure));
}

void Executor::Impl::finish_step(RunningOperation& operation, StepId id) {
  operation.steps[id].phase = StepState::kFinished;
  --operation.steps_left;
  if (operation.is_point_to_point) return finish_if_done(operation);
  const Step& step = operation.step(id);
  const Schedule& schedule = *operation.schedule;
  for (uint32_t i = 0; i < step.successor_count; ++i) {
    const StepId next = schedule.successors[step.first_successor + i];
    if (--operation.steps[next].waits_for == 0) make_ready(operation, next);
  }
  if (operation.steps_left == 0) finish_if_done(operation);
}

void Executor::Impl::finish_if_done(RunningOperation& operation) {
  if (operation.outstanding > 0) return;
  if (operation.disagreement) return end_operation(operation, operation.disagreement);
  if (operation.state != OperationState::kMoving || operation.steps_left > 0) return;
  int source = -1;
  if (operation.is_receive()) source = sender_of(operation.steps[0].request.tag);
  end_operation(operation, std::nullopt, source);
}

void Executor::Impl::compute_later(const ReadyStep& ready) {
  computes_.push_back(ready);
  ++ready.operation->queued_steps;
}

int64_t Executor::Impl::compute(const ReadyStep& ready, int64_t budget) {
  return ready.operation->step(ready.step).kind == StepKind::kReduce ? reduce_bytes(ready)
                                                                     : move_bytes(ready, budget);
}

int64_t Executor::Impl::move_bytes(ReadyStep ready, int64_t budget) {
  RunningOperation& operation = *ready.operation;
  const Step& step = operation.step(ready.step);
  const bool is_push = step.kind == StepKind::kSend && operation.is_push(ready.step);
  const Region& from = step.kind == StepKind::kReceive ? step.staging : step.from;
  const int64_t bytes = std::min(from.bytes - ready.done, budget);
  const int64_t offset = from.offset + ready.done, to_offset = ready.to_offset + ready.done;
  if (operation.is_filled(from)) {
    operation.spec.fill(from.piece, offset, ready.to, to_offset, bytes);
  } else {
    const ConstStridedSpan source = operation.piece_to_read(from);
    const Layout& piece = from.space == Space::kScratch ? ready.to.layout : source.layout;
    copy(source, offset, ready.to, to_offset, bytes,
         piece.bytes() >= kMoreThanCaches ? Prefetch::kAll : Prefetch::kRows);
  }
  (is_push ? counters_.pushed_bytes : counters_.copied_bytes) += bytes;
  ready.done += bytes;
  if (ready.done < from.bytes) {
    computes_.push_front(ready);
    ++operation.queued_steps;
  } else if (step.kind != StepKind::kSend) {
    finish_step(operation, ready.step);
  } else if (is_push) {
    send_data(operation, ready.step, {});
  } else {
    send_data(operation, ready.step,
              {ready.to.data + ready.to_offset, static_cast<size_t>(from.bytes)});
  }
  return bytes;
}

int64_t Executor::Impl::reduce_bytes(const ReadyStep& ready) {
  RunningOperation& operation = *ready.operation;
  const Step& step = operation.step(ready.step);
  const Schedule& schedule = *operation.schedule;
  const Reduction& reduction = schedule.reductions[step.reduction];
  sources_.clear();
  for (uint32_t i = 0; i < step.source_count; ++i) {
    sources_.push_back(operation.bytes_to_read(schedule.sources[step.first_source + i]).data());
  }
  reduce(sources_, operation.bytes_to_write(step.to).data(),
         step.to.bytes / element_size(reduction.dtype), reduction);
  const int64_t bytes = step.to.bytes * step.source_count;
  counters_.reduced_bytes += bytes;
  finish_step(operation, ready.step);
  return bytes;
}

Scratch Executor::Impl::take_scratch(int64_t bytes) {
  if (bytes == 0) return {};
  // The smallest that is long enough.
  auto found = free_scratch_.end();
  for (auto free = free_scratch_.begin(); free != free_scratch_.end(); ++free) {
    if (free->capacity < bytes) continue;
    if (found == free_scratch_.end() || free->capacity < found->capacity) found = free;
  }
  if (found != free_scratch_.end()) {
    Scratch scratch = std::move(*found);
    free_scratch_.erase(found);
    free_scratch_bytes_ -= scratch.capacity;
    return scratch;
  }
  Scratch scratch;
  scratch.capacity = bytes;
  // Contributions are written straight into it.
  void* const shared = heap_ != nullptr ? heap_->allocate(static_cast<size_t>(bytes)) : nullptr;
  if (shared != nullptr) {
    scratch.data = {static_cast<std::byte*>(shared), ScratchDelete{heap_}};
  } else {
    scratch.data.reset(static_cast<std::byte*>(
        ::operator new[](static_cast<size_t>(bytes), std::align_val_t{64})));
  }
  return scratch;
}

void Executor::Impl::return_scratch(Scratch scratch) {
  if (scratch.capacity == 0) return;
  free_scratch_bytes_ += scratch.capacity;
  free_scratch_.push_back(std::move(scratch));
  const auto drop = [&](auto which) {
    free_scratch_bytes_ -= which->capacity;
    // Giving pages back takes as long as a large transfer: without the lock.
    const ScratchDelete free = which->data.get_deleter();
    actions_.memory.push_back(std::shared_ptr<void>(
        which->data.release(), [free](void* data) { free(static_cast<std::byte*>(data)); }));
    free_scratch_.erase(which);
  };
  const auto smaller = [](const Scratch& a, const Scratch& b) { return a.capacity < b.capacity; };
  while (free_scratch_bytes_ > kFreeScratchBytes) {
    drop(std::max_element(free_scratch_.begin(), free_scratch_.end(), smaller));
  }
  if (free_scratch_.size() > kFreeScratch) {
    drop(std::min_element(free_scratch_.begin(), free_scratch_.end(), smaller));
  }
}

}  // namespace meshrun::ucx
