#include "tests/coordinator/simulation/faults.h"

#include <fmt/format.h>

#include <csignal>

#include "tests/coordinator/simulation/rank_program.h"

namespace meshrun::coordinator::simulation {
namespace {

// Short mostly, sometimes longer than the lease of 5 s, sometimes than all that waits.
nanoseconds Pause(Random& random) {
  switch (random.Below(4)) {
    case 0:
      return random.Between(seconds(4), seconds(8));
    case 1:
      return random.Between(seconds(8), seconds(30));
    default:
      return random.Between(milliseconds(1), seconds(4));
  }
}

// Until it is answered: a host that stays drained would keep jobs waiting for ever.
void Undrain(World& world, const std::string& name) {
  v1::StateEvent undrain;
  undrain.mutable_undrain_node()->set_node(name);
  world.coordinator.Call(
      std::move(undrain), nullptr, [&world, name](const absl::Status& status, const MessagePtr&) {
        if (!absl::IsUnavailable(status)) return;
        world.timeline.After(seconds(1), [&world, name] { Undrain(world, name); });
      });
}

void EndARank(World& world, Host& host) {
  const auto ranks = host.LiveRanks();
  if (ranks.empty()) return;
  const uint64_t process = ranks[world.random.Below(ranks.size())]->number;
  switch (world.random.Below(9)) {
    case 0:
      host.Exit(process, 93, 0);
      break;
    case 8:
      host.Find(process)->program->Hang();
      break;
    case 1:
    case 2:
      host.Exit(process, 1, 0);
      break;
    case 3:
      host.Exit(process, 0, 0);
      break;
    default:
      host.Exit(process, 0, world.random.OneIn(2) ? SIGKILL : SIGSEGV);
  }
}

void Partition(World& world, Host& host) {
  const uint64_t kind = world.random.Below(3);
  host.SetBlocked(kind != 1, kind != 2);
  world.timeline.Note(fmt::format("{}: link blocked{}{}", host.options().name,
                                  kind != 1 ? " up" : "", kind != 2 ? " down" : ""));
  world.timeline.After(Pause(world.random), [&world, &host] {
    world.timeline.Note(host.options().name + ": link heals");
    host.SetBlocked(false, false);
  });
}

// The host's place in its jobs is for others; it may have new ones after a while.
void Leave(World& world, Host& host) {
  const std::string name = host.options().name;
  world.timeline.Note(name + ": is asked to leave");
  v1::StateEvent leave;
  leave.mutable_drain_node()->set_node(name);
  leave.mutable_drain_node()->set_leaves(true);
  world.coordinator.Call(std::move(leave), nullptr, [](const absl::Status&, const MessagePtr&) {});
  world.timeline.After(Pause(world.random), [&world, name] { Undrain(world, name); });
}

// By its owner, or what all its ranks read from hangs.
void HoldUp(World& world, Client& client) {
  if (world.random.OneIn(2)) {
    client.Pause(Pause(world.random));
  } else {
    client.StandStill(Pause(world.random));
  }
}

void Happen(World& world, const std::vector<std::unique_ptr<Client>>& clients) {
  Random& random = world.random;
  Host& host = *world.hosts[random.Below(world.hosts.size())];
  switch (random.Below(22)) {
    case 0:
    case 1:
      host.CrashDaemon(Pause(random));
      break;
    case 2:
    case 3:
      host.StallDaemon(Pause(random));
      break;
    case 4:
      host.PowerOff(Pause(random));
      break;
    case 5:
      host.Drain(Pause(random));
      break;
    case 6:
      host.BreakSession();
      break;
    case 7:
    case 8:
      Partition(world, host);
      break;
    case 9:
      host.link.delay = random.Between(milliseconds(1), milliseconds(900));
      world.timeline.After(Pause(random), [&host] { host.link.delay = milliseconds(1); });
      break;
    case 10:
      host.KeepRanksAlive(random.Between(seconds(1), seconds(20)));
      break;
    case 11:
      host.RefusePrepare("no free port", /*bad_command=*/random.OneIn(4));
      world.timeline.After(Pause(random), [&host] { host.RefusePrepare("", false); });
      break;
    case 12:
      world.coordinator.Crash(Pause(random));
      break;
    case 13:
      world.coordinator.Stall(Pause(random));
      break;
    case 14:
      world.coordinator.HangDisk(Pause(random));
      break;
    case 20:
      HoldUp(world, *clients[random.Below(clients.size())]);
      break;
    case 21:
      Leave(world, host);
      break;
    case 15:
      if (random.OneIn(2)) clients[random.Below(clients.size())]->Cancel(random.OneIn(2));
      break;
    default:
      EndARank(world, host);
  }
}

}  // namespace

void PlanFaults(World& world, const std::vector<std::unique_ptr<Client>>& clients, nanoseconds span,
                int count) {
  for (int i = 0; i < count; ++i) {
    world.timeline.After(world.random.Between(nanoseconds(0), span),
                         [&world, &clients] { Happen(world, clients); });
  }
}

void HealAll(World& world) {
  world.timeline.Note("--- peace ---");
  world.coordinator.crash_chance = 0;
  world.coordinator.crash_at_write = 0;
  world.coordinator.store_fault_chance = 0;
  for (const auto& host : world.hosts) {
    host->SetBlocked(false, false);
    host->RefusePrepare("", false);
    host->link.delay = milliseconds(1);
  }
}

}  // namespace meshrun::coordinator::simulation
