// Hundreds of fake workers, random faults, one thread, no real time: the rules that must hold
// whatever happens, in whatever order. A failure prints its seed; the same seed fails the same way.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <csignal>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <random>
#include <set>

#include "coordinator/state_machine/state_machine.h"
#include "coordinator/state_store/memory_state_store.h"
#include "core/proto_time.h"
#include "tests/coordinator/support/harness.h"

namespace meshrun::coordinator::testing {
namespace {

constexpr int kWorkers = 200;
constexpr int kJobs = 60;
constexpr seconds kChaos(120);

class Simulation {
 public:
  explicit Simulation(uint64_t seed) : random_(seed) {}

  void Run() {
    StartCoordinator();
    for (int i = 0; i < kWorkers; ++i) {
      auto& place = workers_.emplace_back(std::make_unique<Place>(FakeWorker::Options{
          .name = fmt::format("node{}", i), .slots = 8, .gpus = i % 4 == 0 ? 4u : 0u}));
      At(Within(seconds(2)), [this, p = place.get()] { Connect(*p); });
    }
    for (int i = 0; i < kJobs; ++i) At(Within(kChaos), [this] { Submit(); });
    for (int i = 0; i < 400; ++i) At(Within(kChaos), [this] { Fault(); });
    RunUntil(kChaos);
    // Peace: everybody returns, ranks end well, and every job must come to its end.
    chaos_ = false;
    for (auto& place : workers_) {
      for (const auto& [id, job] : machine_->jobs().all())
        Speak(*place, place->worker.ExitAll(id, 0));
    }
    RunUntil(kChaos + std::chrono::minutes(5));
    for (const auto& [id, job] : machine_->jobs().all()) {
      EXPECT_TRUE(job.ended()) << id << ": " << job.view.ShortDebugString();
    }
    EXPECT_GT(starts_, 20);
  }

 private:
  struct Place {
    explicit Place(FakeWorker::Options options) : worker(std::move(options)) {}
    FakeWorker worker;
    // 0: no session.
    uint64_t session = 0;
    // A daemon that hangs reads nothing, and hangs no longer at some time: then it reads all of it.
    bool hangs = false;
    std::deque<v1::OpenSessionResponse> inbox;
  };
  struct Later {
    SteadyNanos at;
    uint64_t order;
    std::function<void()> run;
    bool operator<(const Later& other) const {
      return std::pair(at, order) > std::pair(other.at, other.order);
    }
  };

  SteadyNanos Within(std::chrono::nanoseconds span) {
    return clock_.SteadyNow() +
           std::chrono::nanoseconds(random_() % static_cast<uint64_t>(span.count()));
  }
  Place& Any() { return *workers_[random_() % workers_.size()]; }
  void At(SteadyNanos at, std::function<void()> run) {
    later_.push({at, next_order_++, std::move(run)});
  }

  void RunUntil(SteadyNanos end) {
    while (!::testing::Test::HasFailure()) {
      const auto due = machine_->NextDeadline();
      const bool event_first = !later_.empty() && (!due.has_value() || later_.top().at <= *due);
      const SteadyNanos at = event_first ? later_.top().at : due.value_or(end);
      if (at > end) break;
      clock_.Advance(std::max(at, clock_.SteadyNow()) - clock_.SteadyNow());
      if (event_first) {
        const std::function<void()> run = later_.top().run;
        later_.pop();
        run();
      } else {
        v1::StateEvent tick;
        tick.mutable_tick();
        Step(tick);
      }
    }
  }

  // --- faults ---

  void StartCoordinator() {
    for (auto& place : workers_) {
      if (place->session != 0) Drop(*place, /*tell=*/false);
    }
    open_.clear();
    machine_ = std::make_unique<StateMachine>();
    v1::StateEvent event;
    event.mutable_restore()->set_term(++term_);
    *event.mutable_restore()->mutable_lease() = ToProtoDuration(seconds(5));
    *event.mutable_restore()->mutable_heartbeat_interval() = ToProtoDuration(seconds(1));
    const auto rows = *store_.Load();
    event.mutable_restore()->mutable_rows()->Add(rows.begin(), rows.end());
    Step(event);
  }

  void Connect(Place& place) {
    if (place.session != 0) return;
    place.session = next_session_++;
    open_[place.session] = &place;
    ToCoordinator(place, place.worker.Hello());
    Beat(place, place.session);
  }

  void Beat(Place& place, uint64_t session) {
    if (place.session != session) return;
    if (!place.hangs) ToCoordinator(place, place.worker.Heartbeat());
    At(clock_.SteadyNow() + seconds(1), [this, &place, session] { Beat(place, session); });
  }

  // The session breaks; the worker tries again, sooner or later than its lease.
  void Drop(Place& place, bool tell) {
    const uint64_t session = std::exchange(place.session, 0);
    place.inbox.clear();
    if (tell && open_.contains(session)) {
      At(Within(milliseconds(20)), [this, session] {
        if (open_.erase(session) == 0) return;
        v1::StateEvent event;
        event.mutable_session_closed()->set_session_id(session);
        Step(event);
      });
    }
    At(Within(chaos_ ? seconds(9) : seconds(1)), [this, &place] { Connect(place); });
  }

  void Submit() {
    v1::StateEvent event;
    v1::SubmitJobRequest& request = *event.mutable_submit_job();
    v1::JobSpec& spec = *request.mutable_spec();
    spec = MakeSpec(1 + random_() % 20, 1 + random_() % 4);
    spec.set_max_nodes(spec.min_nodes() + random_() % 10);
    spec.set_max_restarts(random_() % 3);
    spec.set_priority(static_cast<int>(random_() % 2));
    if (random_() % 3 == 0) spec.set_gpus_per_proc(1);
    if (random_() % 2 == 0) *spec.mutable_queue_timeout() = ToProtoDuration(seconds(20));
    event.set_random(random_());
    Step(event);
  }

  void Fault() {
    Place& place = Any();
    switch (random_() % 13) {
      case 0:
        place.worker.Reboot(/*ranks_survive=*/true);
        Drop(place, true);
        break;
      case 1:
        place.worker.Reboot(/*ranks_survive=*/false);
        Drop(place, true);
        break;
      case 2:
      case 3:
        Drop(place, true);
        break;
      case 4:
        place.hangs = true;
        At(Within(seconds(10)), [this, &place] {
          place.hangs = false;
          Read(place);
        });
        break;
      case 5:
        place.worker.prepare_error = random_() % 2 == 0 ? "no free port" : "";
        break;
      case 6:
        if (random_() % 4 == 0) StartCoordinator();
        break;
      case 7: {
        const auto& jobs = machine_->jobs().all();
        if (jobs.empty()) break;
        v1::StateEvent event;
        event.mutable_cancel_job()->set_job_id(
            std::next(jobs.begin(), random_() % jobs.size())->first);
        event.mutable_cancel_job()->set_now(random_() % 2 == 0);
        Step(event);
        break;
      }
      case 8: {
        // Stopped and replaced, as in a rolling update.
        place.worker.draining = true;
        Speak(place, {place.worker.Heartbeat()});
        for (const auto& [id, job] : machine_->jobs().all()) {
          Speak(place, place.worker.StopRanks(id, /*code=*/0));
          Speak(place, place.worker.GiveUp(id));
        }
        At(Within(seconds(3)), [this, &place] {
          Speak(place, {place.worker.Goodbye()});
          place.worker.Reboot(/*ranks_survive=*/false);
        });
        break;
      }
      default: {
        for (const auto& [id, job] : machine_->jobs().all()) {
          const std::set<int> running = place.worker.Running(id);
          if (running.empty()) continue;
          const int code = static_cast<int>(random_() % 2);
          Speak(place, place.worker.Exit(id, *running.begin(), code, code == 0 ? SIGKILL : 0));
          return;
        }
      }
    }
  }

  // --- wires: in order, some milliseconds ---

  void Speak(Place& place, FakeWorker::Requests requests) {
    for (auto& request : requests) ToCoordinator(place, std::move(request));
  }
  void ToCoordinator(Place& place, v1::OpenSessionRequest message) {
    if (place.session == 0) return;
    const uint64_t session = place.session;
    At(clock_.SteadyNow() + milliseconds(3), [this, session, message = std::move(message)] {
      if (!open_.contains(session)) return;
      Hear(*open_.at(session), message);
      v1::StateEvent event;
      event.mutable_session_message()->set_session_id(session);
      *event.mutable_session_message()->mutable_message() = message;
      Step(event);
    });
  }
  void ToWorker(uint64_t session, v1::OpenSessionResponse message) {
    At(clock_.SteadyNow() + milliseconds(4), [this, session, message = std::move(message)] {
      const auto it = open_.find(session);
      if (it == open_.end() || it->second->session != session) return;
      it->second->inbox.push_back(message);
      Read(*it->second);
    });
  }
  void Read(Place& place) {
    while (!place.hangs && !place.inbox.empty()) {
      const v1::OpenSessionResponse message = std::move(place.inbox.front());
      place.inbox.pop_front();
      Speak(place, place.worker.OnMessage(message));
      place.worker.received.clear();
      if (!message.has_start() || chaos_) continue;
      const std::string job_id = message.fence().job_id();
      At(Within(seconds(5)),
         [this, &place, job_id] { Speak(place, place.worker.ExitAll(job_id, 0)); });
    }
  }

  // --- rules ---

  // What the coordinator hears of a node: the generations that it then knows to be over there.
  void Hear(Place& place, const v1::OpenSessionRequest& message) {
    if (message.has_generation_ended()) {
      live_.erase({message.fence().job_id(), place.worker.node_id(), message.fence().generation()});
    }
    if (!message.has_hello()) return;
    std::set<std::pair<std::string, uint64_t>> running;
    for (const auto& generation : message.hello().running()) {
      if (!generation.ended()) running.insert({generation.job_id(), generation.generation()});
    }
    std::erase_if(live_, [&](const auto& entry) {
      const auto& [job_id, node_id, generation] = entry;
      return node_id == place.worker.node_id() && !running.contains({job_id, generation});
    });
  }

  void CheckSend(const SendToSession& send) {
    const v1::OpenSessionResponse& message = send.message;
    ASSERT_TRUE(open_.contains(send.session_id)) << "a command on a session that is closed";
    const std::string node_id = open_.at(send.session_id)->worker.node_id();
    const Node& node = machine_->nodes().all().at(node_id);
    ASSERT_EQ(message.fence().incarnation(), node.record.incarnation());
    ASSERT_EQ(node.session_id, send.session_id)
        << "a command to a session that was replaced or lost";
    const std::string& job_id = message.fence().job_id();
    if (message.has_prepare()) {
      const auto [it, is_new] = digests_.try_emplace({job_id, message.fence().generation()},
                                                     message.prepare().world_digest());
      ASSERT_EQ(it->second, message.prepare().world_digest())
          << "two memberships of one generation";
    } else if (message.has_start()) {
      ++starts_;
      for (const auto& [other_job, other_node, generation] : live_) {
        if (other_job != job_id || generation == message.fence().generation()) continue;
        const Node& other = machine_->nodes().all().at(other_node);
        ASSERT_TRUE(other.lost()) << job_id << " starts generation " << message.fence().generation()
                                  << " while " << generation << " runs on " << other_node;
      }
      live_.insert({job_id, node_id, message.fence().generation()});
    } else if (message.has_forget()) {
      live_.erase({job_id, node_id, message.fence().generation()});
    }
  }

  void CheckNodes() {
    std::map<std::string, uint32_t> held;
    for (const auto& [id, job] : machine_->jobs().all()) {
      for (const LeavingMember& leaving : job.leaving) {
        held[leaving.member.node_id] += leaving.member.slots;
      }
      if (!job.active()) continue;
      for (const Member& member : job.members) {
        if (!member.ended) held[member.node_id] += member.slots;
      }
    }
    for (const auto& [id, node] : machine_->nodes().all()) {
      ASSERT_EQ(node.record.slots_used(), held[id]) << id;
      if (node.lost()) {
        std::erase_if(live_, [id = id](const auto& entry) { return std::get<1>(entry) == id; });
      }
      ASSERT_LE(node.record.slots_used(), node.record.resources().slots()) << id;
      const std::set<uint32_t> gpus(node.record.gpus_used().begin(), node.record.gpus_used().end());
      ASSERT_EQ(gpus.size(), static_cast<size_t>(node.record.gpus_used_size()))
          << "a GPU given twice";
    }
  }

  void Step(v1::StateEvent event) {
    event.set_now_nanos(clock_.SteadyNow().count());
    *event.mutable_wall() = ToProtoTimestamp(clock_.WallNow());
    event.set_end_of_batch(true);
    Actions actions = machine_->Step(event);
    ASSERT_TRUE(store_.Commit(actions.rows).ok());
    for (Action& action : actions.list) {
      if (auto* send = std::get_if<SendToSession>(&action)) {
        CheckSend(*send);
        ToWorker(send->session_id, std::move(send->message));
      } else if (auto* close = std::get_if<CloseSession>(&action)) {
        const auto it = open_.find(close->session_id);
        if (it == open_.end()) continue;
        Place& place = *it->second;
        open_.erase(it);
        if (place.session == close->session_id) Drop(place, /*tell=*/false);
      }
    }
    if (++steps_ % 16 == 0) CheckNodes();
  }

  std::mt19937_64 random_;
  FakeClock clock_;
  MemoryStateStore store_;
  std::unique_ptr<StateMachine> machine_;
  std::vector<std::unique_ptr<Place>> workers_;
  std::priority_queue<Later> later_;
  uint64_t next_order_ = 0;
  uint64_t next_session_ = 1;
  uint64_t term_ = 0;
  uint64_t steps_ = 0;
  bool chaos_ = true;
  int starts_ = 0;
  // Sessions that the coordinator holds open.
  std::map<uint64_t, Place*> open_;
  // (job, node, generation) that has been told to start and has not been heard to be over.
  std::set<std::tuple<std::string, std::string, uint64_t>> live_;
  std::map<std::pair<std::string, uint64_t>, std::string> digests_;
};

class SimulationTest : public ::testing::TestWithParam<uint64_t> {};

TEST_P(SimulationTest, TheRulesHoldThroughRandomFaults) { Simulation(GetParam()).Run(); }

INSTANTIATE_TEST_SUITE_P(Seeds, SimulationTest, ::testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace meshrun::coordinator::testing
