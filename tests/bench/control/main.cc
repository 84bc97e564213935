// The control plane's figures at scale, with simulated workers on real streams: submits, generation
// changes, barriers, teardown, memory. tests/bench/control/control runs it, the rendezvous
// benchmark, and what needs real workers and torchrun.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/os/process.h"
#include "tests/bench/control/rows.h"

namespace meshrun::bench {
namespace {

int Main(int argc, char** argv) {
  std::string program = std::filesystem::path(os::SelfPath()).parent_path() /
                        "../../../coordinator/meshrun-coordinator";
  size_t queued = 10'000;
  int rounds = 10;
  bool small = false;
  std::string only;
  CLI::App app("Figures of the control plane at scale.", "control_rows");
  app.add_option("--coordinator", program, "The coordinator's program")->capture_default_str();
  app.add_option("--queued", queued, "Jobs that wait while submits are counted")
      ->capture_default_str();
  app.add_option("--rounds", rounds, "Rounds of generation changes and barriers")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--only", only, "One of the groups")
      ->check(CLI::IsMember({"submits", "change", "barrier", "teardown"}));
  app.add_flag("--small", small, "A hundredth of everything: shows that it runs");
  CLI11_PARSE(app, argc, argv);

  const size_t part = small ? 100 : 1;
  const std::vector<std::pair<std::string, std::function<Rows()>>> all = {
      {"submits", [&] { return MeasureSubmits(program, queued / part); }},
      {"change", [&] { return MeasureGenerationChange(program, small ? 8 : 128, rounds); }},
      {"barrier",
       [&] { return MeasureBarrier(program, small ? 8 : 128, small ? 8 : 128, rounds); }},
      {"teardown", [&] { return MeasureTeardown(program, small ? 10 : 1250, 8); }},
  };
  fmt::print("{:<48} {:>12} {:>12} {:>7}  {}\n", "", "measured", "target", "ratio", "");
  bool reached = true;
  std::string figures;
  for (const auto& [name, measure] : all) {
    if (!only.empty() && name != only) continue;
    const Rows rows = measure();
    if (!rows.ok()) {
      const std::string why(rows.status().message());
      fmt::print("control_rows: {}\n", why);
      reached = false;
      figures += (figures.empty() ? "" : "; ") + why;
      continue;
    }
    for (const Row& row : *rows) {
      const bool has_target = row.target != 0;
      fmt::print("{:<48} {:>9.3f} {:<4} {:>7} {:<4} {:>5}  {}\n", row.name, row.measured, row.unit,
                 has_target ? fmt::format("{:g}", row.target) : "-", has_target ? row.unit : "",
                 has_target ? fmt::format("{:.2f}", row.ratio()) : "-", row.note);
      reached = reached && (!has_target || small || row.ratio() >= 1);
      figures += fmt::format("{}{} {:.3g} {}", figures.empty() ? "" : "; ", row.name, row.measured,
                             row.unit);
      if (has_target) figures += fmt::format(" (target {:g})", row.target);
    }
    std::fflush(stdout);
  }
  fmt::print("verdict: {} {}\n", reached ? "pass" : "short", figures);
  return 0;
}

}  // namespace
}  // namespace meshrun::bench

int main(int argc, char** argv) { return meshrun::bench::Main(argc, argv); }
