#include "tests/coordinator/simulation/rank_program.h"

#include <fmt/format.h>

#include <csignal>
#include <utility>

#include "core/proto_time.h"
#include "meshrun/v1/store_service.pb.h"
#include "tests/coordinator/simulation/world.h"

namespace meshrun::coordinator::simulation {
namespace {

constexpr seconds kBarrierTimeout(90);
// Time after which somebody ends a rank that hangs, where the coordinator may not.
constexpr seconds kHangs(240);
// As core/wait_board.h has it.
constexpr seconds kBlocked(2);
// For the next generation, after the last one has failed.
constexpr seconds kGenerationTimeout(100);

}  // namespace

RankProcess* RankProgram::self() const { return host_.Find(process_); }

const simulation::Work& RankProgram::Work() const { return world_.works[self()->work]; }

void RankProgram::After(nanoseconds span, std::function<void()> run) {
  world_.timeline.After(span, [me = shared_from_this(), epoch = epoch_, run = std::move(run)] {
    if (me->self() != nullptr && epoch == me->epoch_) run();
  });
}

void RankProgram::BeginGeneration() {
  if (hung_) return;
  quiesce_ = quiet_ = false;
  begun_ = world_.timeline.now();
  const bool kept = ++epoch_ > 1;
  // Some that live on hang, and never join.
  if (kept && world_.random.OneIn(40)) return;
  After(world_.random.Between(milliseconds(5), milliseconds(400)), [this] {
    host_.Join(*self());
    Enter("start", 1, [this] {
      host_.Announce(*self());
      FindCheckpoint();
    });
  });
}

void RankProgram::OnVerdict() {
  if (self()->waits_in == 0) return;
  self()->waits_in = 0;
  ++epoch_;
  GiveUp();
}

void RankProgram::Hang() {
  ++epoch_;
  hung_ = true;
  world_.timeline.After(kHangs, [me = shared_from_this()] {
    if (me->self() != nullptr) me->host_.Exit(me->process_, /*code=*/1, /*signal=*/0);
  });
}

void RankProgram::Quiesce() {
  if (hung_) return;
  quiesce_ = true;
  if (quiet_) host_.ReportQuiesced(*self(), step_);
}

v1::Fence RankProgram::Fence() const {
  v1::Fence fence;
  fence.set_job_id(self()->job_id);
  fence.set_generation(self()->generation);
  fence.set_node_id(host_.node_id());
  fence.set_incarnation(host_.incarnation());
  return fence;
}

// The daemon passes the call on; without one it waits here.
void RankProgram::Call(Made make, std::function<void(const MessagePtr&)> done,
                       bool may_be_missing) {
  if (!host_.daemon_up()) {
    After(milliseconds(500),
          [this, make, done, may_be_missing] { Call(make, done, may_be_missing); });
    return;
  }
  const auto on_answer = [me = shared_from_this(), epoch = epoch_, make, done, may_be_missing](
                             const absl::Status& status, const MessagePtr& reply) {
    if (me->self() == nullptr || epoch != me->epoch_) return;
    if (status.ok() || (may_be_missing && absl::IsNotFound(status))) {
      done(reply);
    } else if (absl::IsUnavailable(status)) {
      me->After(me->world_.random.Between(milliseconds(100), seconds(2)),
                [me, make, done, may_be_missing] { me->Call(make, done, may_be_missing); });
    } else {
      me->GiveUp();
    }
  };
  world_.coordinator.Call(make(), &host_.link, on_answer);
}

// Its peers are gone, or its generation is: it waits for the next one if it can. Else some exit at
// once, and most are told before they do.
void RankProgram::GiveUp() {
  if (std::exchange(self()->waits_in, 0) > 0) host_.WithdrawWait(*self());
  if (self()->announced) {
    quiet_ = true;
    if (quiesce_) host_.ReportQuiesced(*self(), step_);
    After(kGenerationTimeout, [this] { host_.Exit(process_, /*code=*/1, /*signal=*/0); });
    return;
  }
  const bool at_once = world_.random.OneIn(4);
  After(at_once ? world_.random.Between(milliseconds(1), seconds(1)) : nanoseconds(seconds(30)),
        [this] { host_.Exit(process_, /*code=*/1, /*signal=*/0); });
}

void RankProgram::Enter(const std::string& name, uint64_t number, std::function<void()> then) {
  const GenerationKey key = self()->key();
  const auto passed = std::make_shared<bool>(false);
  After(kBlocked, [this, passed, number] {
    if (*passed) return;
    self()->waits_in = number;
    host_.ReportWait(*self(), number);
  });
  world_.ledger.OnEnter(key, name, self()->rank);
  const std::string request_id = fmt::format("{}-{}", name, process_);
  Call(
      [this, name, request_id] {
        v1::StateEvent event;
        v1::EnterBarrierRequest& request = *event.mutable_enter_barrier();
        *request.mutable_fence() = Fence();
        request.set_name(name);
        request.set_rank(self()->rank);
        *request.mutable_timeout() = ToProtoDuration(kBarrierTimeout);
        request.set_request_id(request_id);
        return event;
      },
      [this, key, name, passed, then](const MessagePtr&) {
        *passed = true;
        if (std::exchange(self()->waits_in, 0) > 0) host_.WithdrawWait(*self());
        world_.ledger.OnPassed(key, name, self()->rank, self()->world_size);
        then();
      });
}

void RankProgram::FindCheckpoint() {
  if (!Work().checkpoints) {
    Add(Work().additions);
    return;
  }
  Call(
      [this] {
        v1::StateEvent event;
        *event.mutable_get_checkpoint()->mutable_fence() = Fence();
        event.mutable_get_checkpoint()->set_name("state");
        return event;
      },
      [this](const MessagePtr& reply) {
        if (const auto* found = dynamic_cast<const v1::GetCheckpointResponse*>(reply.get())) {
          committed_ = found->commit().step();
          step_ = std::max(step_, committed_);
        }
        Add(Work().additions);
      },
      /*may_be_missing=*/true);
}

void RankProgram::Add(int left) {
  if (left == 0) {
    Step();
    return;
  }
  const GenerationKey key = self()->key();
  const std::string request_id = fmt::format("{}-{}", process_, left);
  world_.ledger.OnAdding(key, request_id);
  Call(
      [this, request_id] {
        v1::StateEvent event;
        v1::AddValueRequest& request = *event.mutable_add_value();
        *request.mutable_fence() = Fence();
        request.set_key("count");
        request.set_amount(1);
        request.set_request_id(request_id);
        return event;
      },
      [this, key, request_id, left](const MessagePtr& reply) {
        const auto& answer = dynamic_cast<const v1::AddValueResponse&>(*reply);
        world_.ledger.OnAdded(key, request_id, answer.value());
        Add(left - 1);
      });
}

void RankProgram::Step() {
  if (quiesce_) {
    quiet_ = true;
    host_.ReportQuiesced(*self(), step_);
    return;
  }
  if (world_.timeline.now() < Work().stands_until) {
    After(Work().stands_until - world_.timeline.now(), [this] { Step(); });
    return;
  }
  if (world_.timeline.now() >= begun_ + Work().span) {
    Enter("end", 2, [this] { Finish(); });
    return;
  }
  host_.Report(*self(), ++step_);
  const nanoseconds span = world_.random.Between(seconds(1), seconds(4));
  if (Work().checkpoints && self()->rank == 0 && world_.random.OneIn(2)) {
    After(span, [this] { Commit(std::max(step_, committed_ + 1)); });
  } else {
    After(span, [this] { Step(); });
  }
}

void RankProgram::Finish() {
  // As programs that know nothing of it end.
  if (!Work().reports_finish) {
    host_.Exit(process_, /*code=*/0, /*signal=*/0);
    return;
  }
  const GenerationKey key = self()->key();
  Call(
      [this] {
        v1::StateEvent event;
        *event.mutable_report_finished()->mutable_fence() = Fence();
        event.mutable_report_finished()->set_rank(self()->rank);
        return event;
      },
      [this, key](const MessagePtr&) {
        world_.ledger.OnFinished(key);
        host_.Exit(process_, /*code=*/0, world_.random.OneIn(6) ? SIGKILL : 0);
      });
}

void RankProgram::Commit(int64_t step) {
  const GenerationKey key = self()->key();
  Call(
      [this, step] {
        v1::StateEvent event;
        v1::CommitCheckpointRequest& request = *event.mutable_commit_checkpoint();
        *request.mutable_fence() = Fence();
        request.mutable_commit()->set_name("state");
        request.mutable_commit()->set_step(step);
        // Says to the rules who has written it.
        request.mutable_commit()->set_digest(std::to_string(self()->generation));
        if (committed_ >= 0) request.set_expected_step(committed_);
        return event;
      },
      [this, key, step](const MessagePtr&) {
        world_.ledger.OnCheckpoint(key, step);
        committed_ = step_ = step;
        Step();
      });
}

}  // namespace meshrun::coordinator::simulation
