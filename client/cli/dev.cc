// meshrun dev: a small cluster on this host.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "client/cli/context.h"
#include "client/dev_cluster.h"
#include "client/render/table.h"
#include "core/exit_codes.h"

namespace meshrun::client {
namespace {

// All of them are processes of this host.
constexpr uint32_t kMostWorkers = 1000;
// The worker's own limit.
constexpr uint32_t kMostSlots = 1u << 20;

struct DevFlags {
  DevCluster::UpOptions up;
  bool purge = false;
  std::string output;
};

void Print(const DevCluster::State& state) {
  Table table({"PROCESS", ">PID", "STATE", "ADDRESS", "LOG"});
  const auto add = [&](const DevCluster::Process& p, const std::string& address) {
    table.Add({p.name, p.running ? fmt::format("{}", p.pid) : "-", p.running ? "running" : "ENDED",
               address, p.log_path});
  };
  if (state.coordinator) add(*state.coordinator, state.address);
  for (const DevCluster::Process& worker : state.workers) add(worker, "");
  fmt::print("{}", table.Render(0, TableWidth(StyleOf(1))));
}

void PrintJson(const DevCluster::State& state) {
  const auto process = [](const DevCluster::Process& p) {
    return nlohmann::json{
        {"name", p.name}, {"pid", p.pid}, {"running", p.running}, {"log", p.log_path}};
  };
  nlohmann::json out = {{"running", state.running()},
                        {"address", state.address},
                        {"coordinator", nullptr},
                        {"workers", nlohmann::json::array()}};
  if (state.coordinator) out["coordinator"] = process(*state.coordinator);
  for (const DevCluster::Process& worker : state.workers) out["workers"].push_back(process(worker));
  fmt::print("{}\n", out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
}

absl::StatusOr<DevCluster> Find() {
  auto directory = DevCluster::DefaultDirectory();
  if (!directory.ok()) return directory.status();
  return DevCluster(*std::move(directory));
}

int Up(const DevFlags& flags) {
  auto cluster = Find();
  if (!cluster.ok()) return Fail(cluster.status());
  const auto state = cluster->Up(flags.up);
  if (!state.ok()) return Fail(state.status());
  if (flags.output == "json") {
    PrintJson(*state);
    return kExitOk;
  }
  Print(*state);
  Say(fmt::format(
      "other commands find it by themselves; try: meshrun submit --follow --nproc 2 -- hostname"));
  return kExitOk;
}

int Down(const DevFlags& flags) {
  auto cluster = Find();
  if (!cluster.ok()) return Fail(cluster.status());
  const bool running = cluster->Read().coordinator.has_value();
  const auto stopped = cluster->Down(flags.purge);
  if (!stopped.ok()) return Fail(stopped.status());
  if (flags.output == "json") {
    PrintJson(*stopped);
    return kExitOk;
  }
  Say(running ? "the dev cluster is down" : "no dev cluster was up");
  return kExitOk;
}

int Status(const DevFlags& flags) {
  auto cluster = Find();
  if (!cluster.ok()) return Fail(cluster.status());
  const DevCluster::State state = cluster->Read();
  if (flags.output == "json") {
    PrintJson(state);
    return kExitOk;
  }
  if (!state.coordinator) {
    Say("no dev cluster is up: start one with 'meshrun dev up'");
    return kExitOk;
  }
  Print(state);
  return kExitOk;
}

}  // namespace

void AddDev(FlagSet& root, Commands* commands) {
  auto values = std::make_shared<DevFlags>();
  FlagSet dev = root.Command(
      "dev",
      "A cluster on this host: a coordinator and workers, for trying things\n\n"
      "It stays until 'dev down'; state and logs are under $XDG_STATE_HOME/meshrun/dev\n"
      "(~/.local/state/meshrun/dev).");
  dev.Examples(
      "  meshrun dev up --workers 2\n"
      "  meshrun submit --follow --nodes 2 -- ./train\n"
      "  meshrun dev status\n"
      "  meshrun dev down");
  dev.ListUnder("Set up");
  FlagSet up = dev.Command("up",
                           "Starts it, or what is missing of it\n\n"
                           "What runs is not touched: a coordinator that was killed comes back on "
                           "its state, and jobs go on.");
  up.Examples(
      "  meshrun dev up -n 4 --slots 2\n"
      "  meshrun dev up                   as it was, after something of it has ended");
  up.Number("-n,--workers", &values->up.workers,
            "Workers, each a node of its own (default: as many as before, or 1)", 1, kMostWorkers);
  up.Number("--slots", &values->up.slots,
            "CPU slots of each (default: as before, or the cores, at least 8)", 1, kMostSlots);
  FlagSet down = dev.Command("down", "Stops it, and the ranks that run on it");
  down.Switch("--purge", &values->purge, "Remove its jobs and logs too");
  FlagSet status = dev.Command("status", "Says what runs and where the logs are");
  for (FlagSet* command : {&up, &down, &status}) {
    AddOutputFlag(*command, &values->output);
    command->ListUnder("Commands");
  }
  commands->push_back({up.app(), [values] { return Up(*values); }});
  commands->push_back({down.app(), [values] { return Down(*values); }});
  commands->push_back({status.app(), [values] { return Status(*values); }});
}

}  // namespace meshrun::client
