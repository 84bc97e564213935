#include "tests/coordinator/simulation/rank_program.h"

#include <fmt/format.h>

#include <functional>
#include <memory>
#include <utility>

#include "core/proto_time.h"
#include "meshrun/v1/store_service.pb.h"
#include "tests/coordinator/simulation/world.h"

namespace meshrun::coordinator::simulation {
namespace {

constexpr seconds kBarrierTimeout(90);

class Program : public std::enable_shared_from_this<Program> {
 public:
  Program(World& world, Host& host, uint64_t process)
      : world_(world), host_(host), process_(process) {}

  void Begin() {
    After(world_.random.Between(milliseconds(5), milliseconds(400)),
          [this] { Enter("start", [this] { Add(Work().additions); }); });
  }

 private:
  RankProcess* self() const { return host_.Find(process_); }
  const simulation::Work& Work() const { return world_.works[self()->work]; }

  void After(nanoseconds span, std::function<void()> run) {
    world_.timeline.After(span, [me = shared_from_this(), run = std::move(run)] {
      if (me->self() != nullptr) run();
    });
  }

  v1::Fence Fence() const {
    v1::Fence fence;
    fence.set_job_id(self()->generation.first);
    fence.set_generation(self()->generation.second);
    fence.set_node_id(host_.node_id());
    fence.set_incarnation(host_.incarnation());
    return fence;
  }

  // The daemon passes the call on; without one it waits here.
  void Call(std::function<v1::StateEvent()> make, std::function<void(const MessagePtr&)> done) {
    if (!host_.daemon_up()) {
      After(milliseconds(500), [this, make, done] { Call(make, done); });
      return;
    }
    world_.coordinator.Call(
        make(), &host_.link,
        [me = shared_from_this(), make, done](const absl::Status& status, const MessagePtr& reply) {
          if (me->self() == nullptr) return;
          if (status.ok()) {
            done(reply);
          } else if (absl::IsUnavailable(status)) {
            me->After(me->world_.random.Between(milliseconds(100), seconds(2)),
                      [me, make, done] { me->Call(make, done); });
          } else {
            me->GiveUp();
          }
        });
  }

  // Its peers are gone, or its generation is: some ranks exit at once, most are told before they do.
  void GiveUp() {
    const bool at_once = world_.random.OneIn(4);
    After(at_once ? world_.random.Between(milliseconds(1), seconds(1)) : nanoseconds(seconds(30)),
          [this] { host_.Exit(process_, /*code=*/1, /*signal=*/0); });
  }

  void Enter(const std::string& name, std::function<void()> then) {
    const GenerationKey key = self()->generation;
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
        [this, key, name, then](const MessagePtr&) {
          world_.ledger.OnPassed(key, name, self()->rank, self()->world_size);
          then();
        });
  }

  void Add(int left) {
    if (left == 0) {
      const nanoseconds span = Work().span;
      end_ = world_.timeline.now() + span;
      Step(1);
      return;
    }
    const GenerationKey key = self()->generation;
    const std::string request_id = fmt::format("{}-{}", process_, left);
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

  void Step(int64_t step) {
    if (world_.timeline.now() >= end_) {
      Enter("end", [this] { host_.Exit(process_, /*code=*/0, /*signal=*/0); });
      return;
    }
    host_.Report(*self(), step);
    After(world_.random.Between(seconds(1), seconds(4)), [this, step] { Step(step + 1); });
  }

  World& world_;
  Host& host_;
  const uint64_t process_;
  SteadyNanos end_{0};
};

}  // namespace

void BeginRankProgram(World& world, Host& host, uint64_t process) {
  std::make_shared<Program>(world, host, process)->Begin();
}

}  // namespace meshrun::coordinator::simulation
