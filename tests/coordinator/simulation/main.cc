// Runs seeds of the simulation, or one large cluster, and prints the rate.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>

#include "tests/coordinator/simulation/simulation.h"

namespace meshrun::coordinator::simulation {
namespace {

struct Flags {
  uint64_t seed = 0;
  uint64_t seeds = 2'000;
  uint64_t first = 1;
  int workers = 0;
  int jobs = 1'000;
  size_t notes = 80;
  bool etcd = false;
};

void PrintFailure(const Plan& plan, const Outcome& outcome, const std::string& again) {
  fmt::print("seed {}: {}\n", plan.seed, outcome.violation);
  for (const std::string& note : outcome.notes) fmt::print("{}\n", note);
  fmt::print("again: {}\n", again);
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app("Simulated clusters against the coordinator's state machine.", "simulate");
  app.add_option("--seed", flags.seed, "Only this seed, with its last events");
  app.add_option("--first", flags.first, "The first seed")->capture_default_str();
  app.add_option("--seeds", flags.seeds, "How many seeds")->capture_default_str();
  app.add_option("--workers", flags.workers, "One cluster of so many workers instead");
  app.add_option("--jobs", flags.jobs, "Its jobs")->capture_default_str();
  app.add_option("--notes", flags.notes, "How many events are shown")->capture_default_str();
  app.add_flag("--etcd", flags.etcd, "The state is in a model of etcd");
  CLI11_PARSE(app, argc, argv);
  const auto plan_of = [&flags](uint64_t seed) {
    return flags.etcd ? EtcdPlanOf(seed) : PlanOf(seed);
  };

  const auto start = std::chrono::steady_clock::now();
  uint64_t steps = 0;
  uint64_t run = 0;
  const auto finish = [&](int code) {
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    fmt::print("{} seeds, {} steps in {:.1f} s: {:.0f} steps/s\n", run, steps, took.count(),
               static_cast<double>(steps) / took.count());
    return code;
  };
  if (flags.workers > 0) {
    Plan plan{
        .seed = std::max<uint64_t>(flags.seed, 1), .hosts = flags.workers, .jobs = flags.jobs};
    plan.most_nodes = 20;
    plan.faults = flags.workers / 5;
    plan.check_interval = std::max(1, flags.workers / 4);
    const Outcome outcome = Simulate(plan);
    ++run;
    steps = outcome.steps;
    const double simulated = std::chrono::duration<double>(outcome.simulated).count();
    fmt::print(
        "{} workers, {} jobs ({} succeeded, {} failed, {} cancelled), {} ranks started, {} "
        "faults, {} coordinator crashes, {:.0f} s simulated\n",
        plan.hosts, plan.jobs, outcome.succeeded, outcome.failed, outcome.cancelled, outcome.starts,
        plan.faults, outcome.crashes, simulated);
    if (outcome.violation.empty()) return finish(0);
    PrintFailure(plan, outcome,
                 fmt::format("simulate --workers {} --jobs {} --seed {}", flags.workers, flags.jobs,
                             plan.seed));
    return finish(1);
  }
  if (flags.seed != 0) {
    const Outcome outcome = Simulate(plan_of(flags.seed), flags.notes);
    for (const std::string& note : outcome.notes) fmt::print("{}\n", note);
    fmt::print("seed {}: {}\n", flags.seed,
               outcome.violation.empty() ? "all rules hold" : outcome.violation);
    return outcome.violation.empty() ? 0 : 1;
  }
  Outcome all;
  for (uint64_t seed = flags.first; seed < flags.first + flags.seeds; ++seed) {
    const Outcome outcome = Simulate(plan_of(seed));
    ++run;
    steps += outcome.steps;
    all += outcome;
    if (outcome.violation.empty()) continue;
    PrintFailure(plan_of(seed), Simulate(plan_of(seed), flags.notes),
                 fmt::format("simulate{} --seed {}", flags.etcd ? " --etcd" : "", seed));
    return finish(1);
  }
  fmt::print("{}\n", Text(all));
  return finish(0);
}

}  // namespace
}  // namespace meshrun::coordinator::simulation

int main(int argc, char** argv) { return meshrun::coordinator::simulation::Main(argc, argv); }
