#include "tests/coordinator/simulation/simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "coordinator/state_store/batched_state_store.h"
#include "coordinator/state_store/etcd_state_store.h"
#include "coordinator/state_store/memory_state_store.h"
#include "core/proto_time.h"
#include "tests/coordinator/simulation/clients.h"
#include "tests/coordinator/simulation/etcd_model.h"
#include "tests/coordinator/simulation/faults.h"
#include "tests/coordinator/simulation/rules.h"
#include "tests/coordinator/simulation/world.h"

namespace meshrun::coordinator::simulation {
namespace {

// Faults that last are over by then, and so is every deadline of the protocol, several times over.
constexpr seconds kPatience(1200);
constexpr seconds kOnItsWay(5);
// After the last fault all nodes have said Hello again.
constexpr seconds kSettled(45);
// Two clocks that both keep this differ by less than 1 %, as the protocol asks.
constexpr int64_t kMostDrift = 4'900;

// So that many batches are in parts, and many values in pieces.
constexpr StateStore::Limits kSmallTransactions{.rows = 6, .bytes = 8192};

HostClock DrawClock(Random& random) {
  return {.drift = random.Between(-kMostDrift, kMostDrift),
          .began = random.Between(nanoseconds(0), seconds(1'000'000)),
          .wall_error = random.Between(-seconds(3600), seconds(3600))};
}

uint64_t GiB(int64_t count) { return static_cast<uint64_t>(count) << 30; }

v1::JobSpec DrawSpec(Random& random, const Plan& plan, int number) {
  v1::JobSpec spec;
  spec.set_name(fmt::format("job{}", number));
  spec.add_command("./train");
  spec.set_min_nodes(1 + random.Below(plan.most_nodes));
  spec.set_max_nodes(spec.min_nodes() + random.Below(3));
  spec.mutable_procs_per_node()->set_count(1 + random.Below(2));
  spec.set_max_restarts(random.Below(4));
  spec.set_priority(static_cast<int>(random.Below(2)));
  if (random.OneIn(3)) spec.set_gpus_per_proc(1);
  if (random.OneIn(5)) spec.set_replace_at_once(true);
  if (random.OneIn(5)) spec.set_recovery(v1::RECOVERY_RESPAWN);
  spec.set_growth(static_cast<v1::Growth>(random.Below(4)));
  if (random.OneIn(3)) *spec.mutable_queue_timeout() = ToProtoDuration(seconds(15));
  if (random.OneIn(4)) {
    *spec.mutable_hang_timeout() = ToProtoDuration(seconds(random.Between(6, 12)));
  }
  if (random.OneIn(3)) {
    *spec.mutable_kill_grace() =
        ToProtoDuration(random.Between(nanoseconds(0), nanoseconds(seconds(20))));
  }
  return spec;
}

class Simulation {
 public:
  Simulation(const Plan& plan, size_t keep_notes)
      : plan_(plan),
        sizes_(plan.seed ^ 0x3e30),
        world_(plan.seed, rules_, plan.store == nullptr ? memory_ : *plan.store) {
    world_.timeline.KeepNotes(keep_notes);
    rules_.Watch(world_.ledger, world_.coordinator, plan.check_interval);
    world_.coordinator.clock = DrawClock(world_.random);
    world_.coordinator.crash_chance = plan.crash_chance;
    world_.coordinator.crash_at_write = plan.crash_at_write;
    world_.coordinator.crash_after_commit = plan.crash_after_commit;
    world_.coordinator.turn = plan.turn;
    world_.coordinator.lease = plan.lease;
    world_.coordinator.heartbeat = plan.heartbeat;
    world_.coordinator.keep_ended = plan.keep_ended;
    world_.coordinator.keep_lost = plan.keep_lost;
    world_.coordinator.quarantine_after = plan.quarantine_after;
    if (plan.etcd_fault_chance == 0) return;
    world_.coordinator.store_fault_chance = plan.etcd_fault_chance;
    world_.coordinator.open_store = [this] {
      return std::make_unique<BatchedStateStore>(EtcdStateStore::Over(
          etcd_.Connect(world_.coordinator.store_fault_chance), "simulated", kSmallTransactions));
    };
  }

  Outcome Run() {
    Random& random = world_.random;
    world_.coordinator.Start();
    for (int i = 0; i < plan_.hosts; ++i) {
      Host::Options options{.name = fmt::format("n{}", i), .clock = DrawClock(random)};
      options.slots = 2 + static_cast<uint32_t>(random.Below(7));
      options.gpus = static_cast<uint32_t>(random.Below(5));
      options.memory_bytes = GiB(sizes_.Between(32, 64));
      if (random.OneIn(2)) options.orphan_timeout = seconds(300);
      if (!random.OneIn(4))
        options.fence_after = random.Between(plan_.lease + seconds(1), plan_.lease + seconds(20));
      Host& host = *world_.hosts.emplace_back(std::make_unique<Host>(world_, options));
      world_.timeline.After(random.Between(nanoseconds(0), milliseconds(1500)),
                            [&host] { host.StartDaemon(); });
    }
    for (int i = 0; i < plan_.jobs; ++i) {
      v1::JobSpec spec = DrawSpec(random, plan_, i);
      // Two ranks fit on each host, and two jobs not on every one.
      if (sizes_.OneIn(2)) spec.set_memory_bytes(GiB(sizes_.Between(1, 16)));
      world_.works[spec.name()] = {.span = random.Between(nanoseconds(0), plan_.longest_work),
                                   .additions = static_cast<int>(random.Below(3)),
                                   .in_process = random.OneIn(2),
                                   .checkpoints = random.OneIn(2),
                                   .reports_finish = !random.OneIn(3)};
      Client& client = *clients_.emplace_back(std::make_unique<Client>(world_, spec));
      world_.timeline.After(DrawArrival(), [&client] { client.Submit(); });
    }
    PlanFaults(world_, clients_, plan_.chaos, plan_.faults);
    Until(plan_.chaos, [] { return false; });
    HealAll(world_);
    const bool ended = Until(plan_.chaos + kPatience, [this] {
      CancelWhatNeverFits();
      return Quiet();
    });
    if (!ended) SayWhatIsNotOver();
    // What is on its way arrives.
    Until(world_.timeline.now() + kOnItsWay, [] { return false; });
    if (world_.ledger.violation().empty()) rules_.CheckNothingLeft(*world_.coordinator.machine());
    CheckClients();
    return Summary();
  }

 private:
  nanoseconds DrawArrival() {
    constexpr std::chrono::hours kHour(1);
    Random& random = world_.random;
    if (plan_.rush.count() == 0) return random.Between(nanoseconds(0), plan_.chaos * 3 / 4);
    return kHour * random.Between(0, plan_.chaos / kHour - 1) +
           random.Between(nanoseconds(0), plan_.rush);
  }

  // False at `end`.
  bool Until(SteadyNanos end, const std::function<bool()>& over) {
    // Looking is as much work as there are hosts.
    const int interval = 64 + 4 * plan_.hosts;
    int events = 0;
    while (world_.ledger.violation().empty()) {
      if (++events % interval == 0 && over()) return true;
      if (!world_.timeline.Advance(end)) return over();
    }
    return true;
  }

  bool Quiet() const {
    if (world_.coordinator.machine() == nullptr || world_.coordinator.open_call_count() > 0) {
      return false;
    }
    return std::all_of(clients_.begin(), clients_.end(),
                       [](const auto& client) { return client->done(); }) &&
           std::all_of(world_.hosts.begin(), world_.hosts.end(), [](const auto& host) {
             return host->daemon_up() && host->generation_count() == 0;
           });
  }

  // In peace, with all nodes there and nothing running, a job that waits must need more than there
  // is. It is cancelled then.
  void CancelWhatNeverFits() {
    const StateMachine* const machine = world_.coordinator.machine();
    if (machine == nullptr || world_.timeline.now() < plan_.chaos + kSettled) return;
    for (const auto& [id, node] : machine->nodes().all()) {
      if (node.record.state() != v1::NODE_STATE_HEALTHY) return;
    }
    for (const auto& [id, job] : machine->jobs().all()) {
      if (job.active()) return;
    }
    for (const auto& [id, job] : machine->jobs().all()) {
      if (job.ended()) continue;
      const v1::JobSpec& spec = job.view.spec();
      // As many as in its first generation.
      const uint32_t gpus = std::max(spec.gpus_per_proc(), job.record.gpus_per_proc());
      const auto fit =
          std::count_if(world_.hosts.begin(), world_.hosts.end(), [&](const auto& host) {
            const uint32_t procs = spec.procs_per_node().count();
            const auto node = machine->nodes().all().find(host->node_id());
            const bool quarantined =
                node != machine->nodes().all().end() && node->second.record.quarantined();
            // Processes of a job that has ended may still leave, and hold memory until they have.
            const uint64_t held =
                node == machine->nodes().all().end() ? 0 : node->second.record.memory_used_bytes();
            return !quarantined && host->options().slots >= procs &&
                   host->options().gpus >= procs * gpus &&
                   host->options().memory_bytes >= held + procs * spec.memory_bytes();
          });
      if (fit >= spec.min_nodes() && job.queued()) {
        world_.ledger.Fail(
            fmt::format("{} waits although nothing runs and {} nodes can take it: {}", id, fit,
                        machine->jobs().ReasonOf(job)));
      }
      for (const auto& client : clients_) {
        if (client->name() == spec.name()) client->Cancel(/*now=*/false);
      }
    }
  }

  void SayWhatIsNotOver() {
    std::string text = "not over after 20 minutes without faults:";
    if (world_.coordinator.machine() != nullptr) {
      for (const auto& [id, job] : world_.coordinator.machine()->jobs().all()) {
        if (job.ended()) continue;
        text += fmt::format(" {} is {} ({});", id, StateName(job.view.state()), job.view.reason());
      }
    }
    for (const auto& host : world_.hosts) {
      if (host->generation_count() == 0) continue;
      text += fmt::format(" {} has {} generations;", host->node_id(), host->generation_count());
    }
    for (const auto& client : clients_) {
      if (!client->done()) text += " the client of " + client->name() + " waits;";
    }
    world_.ledger.Fail(text);
  }

  void CheckClients() {
    if (!world_.ledger.violation().empty()) return;
    std::map<std::string, int> jobs;
    for (const auto& [id, job] : world_.coordinator.machine()->jobs().all()) {
      ++jobs[job.view.spec().name()];
    }
    for (const auto& client : clients_) {
      // Jobs that ended long ago are forgotten.
      if (jobs[client->name()] == 1 || rules_.forgotten() > 0) continue;
      world_.ledger.Fail(
          fmt::format("{} jobs come of {}'s one request", jobs[client->name()], client->name()));
    }
  }

  Outcome Summary() {
    Outcome out;
    out.violation = world_.ledger.violation();
    out.steps = world_.coordinator.steps();
    out.writes = world_.coordinator.writes();
    out.crashes = world_.coordinator.crashes();
    out.failed_commits = world_.coordinator.failed_commits();
    out.done_nevertheless = world_.coordinator.done_nevertheless();
    out.stale_commits = world_.coordinator.stale_commits();
    out.late_refusals = etcd_.late_refusals();
    out.starts = world_.ledger.starts();
    out.barriers = world_.ledger.barriers();
    out.taken = world_.ledger.taken();
    out.forgotten = rules_.forgotten();
    out.checkpoints = world_.ledger.checkpoints();
    out.simulated = world_.timeline.now();
    out.notes.assign(world_.timeline.notes().begin(), world_.timeline.notes().end());
    if (world_.coordinator.machine() == nullptr) return out;
    for (const auto& [id, job] : world_.coordinator.machine()->jobs().all()) {
      out.succeeded += job.view.state() == v1::JOB_STATE_SUCCEEDED;
      out.failed += job.view.state() == v1::JOB_STATE_FAILED;
      out.cancelled += job.view.state() == v1::JOB_STATE_CANCELLED;
    }
    return out;
  }

  const Plan plan_;
  // Draws memory, apart from all else.
  Random sizes_;
  MemoryStateStore memory_;
  EtcdModel etcd_{plan_.seed ^ 0xe7cd};
  Rules rules_;
  World world_;
  std::vector<std::unique_ptr<Client>> clients_;
};

}  // namespace

Outcome& Outcome::operator+=(const Outcome& other) {
  steps += other.steps;
  writes += other.writes;
  crashes += other.crashes;
  failed_commits += other.failed_commits;
  done_nevertheless += other.done_nevertheless;
  stale_commits += other.stale_commits;
  late_refusals += other.late_refusals;
  starts += other.starts;
  barriers += other.barriers;
  taken += other.taken;
  checkpoints += other.checkpoints;
  succeeded += other.succeeded;
  failed += other.failed;
  cancelled += other.cancelled;
  simulated += other.simulated;
  return *this;
}

std::string Text(const Outcome& outcome) {
  const std::string text = fmt::format(
      "{} steps, {} writes, {} crashes of the coordinator, {} ranks started, {} taken over in "
      "process, {} "
      "barriers passed, {} checkpoints committed; "
      "jobs: {} succeeded, {} failed, {} cancelled; {:.0f} s simulated",
      outcome.steps, outcome.writes, outcome.crashes, outcome.starts, outcome.taken,
      outcome.barriers, outcome.checkpoints, outcome.succeeded, outcome.failed, outcome.cancelled,
      std::chrono::duration<double>(outcome.simulated).count());
  if (outcome.failed_commits == 0) return text;
  return text + fmt::format(
                    "; {} commits failed, {} of them were done all the same, {} writes of replaced "
                    "coordinators and {} late transactions changed nothing",
                    outcome.failed_commits, outcome.done_nevertheless, outcome.stale_commits,
                    outcome.late_refusals);
}

Plan PlanOf(uint64_t seed) {
  Random random(seed ^ 0x5eed);
  Plan plan{.seed = seed};
  plan.hosts = 2 + static_cast<int>(random.Below(5));
  plan.jobs = 1 + static_cast<int>(random.Below(4));
  plan.most_nodes = plan.hosts;
  if (seed % 4 == 0) {
    plan.faults = 0;
    plan.chaos = seconds(20);
    plan.longest_work = seconds(10);
    plan.crash_at_write = 1 + random.Below(60);
    plan.crash_after_commit = random.OneIn(2);
    return plan;
  }
  plan.chaos = seconds(random.Between(15, 45));
  plan.longest_work = plan.chaos / 2;
  plan.faults = 2 + static_cast<int>(random.Below(14));
  plan.crash_chance = random.OneIn(2) ? 0 : random.Below(40);
  if (seed % 100 == 1) {
    plan.hosts = 60;
    plan.jobs = 20;
    plan.most_nodes = 12;
    plan.faults = 100;
    plan.check_interval = 8;
  }
  if (random.OneIn(3)) plan.keep_lost = seconds(random.Between(8, 40));
  if (random.OneIn(4)) plan.quarantine_after = 1 + static_cast<uint32_t>(random.Below(3));
  return plan;
}

Plan EtcdPlanOf(uint64_t seed) {
  Plan plan = PlanOf(seed);
  plan.etcd_fault_chance = 1 + Random(seed ^ 0xe7cd).Below(60);
  return plan;
}

Outcome Simulate(const Plan& plan, size_t keep_notes) { return Simulation(plan, keep_notes).Run(); }

}  // namespace meshrun::coordinator::simulation
