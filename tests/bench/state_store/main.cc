// Durable commits per second: SQLite on this disk, and three members of etcd with TLS on this host,
// whose data lie on this disk too. A lone submit is a commit of one row of 1 KiB. A busy
// coordinator commits the submits that have come meanwhile together, 100 of them here. Figures are
// printed, never gated.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/state_store/etcd_state_store.h"
#include "coordinator/state_store/sqlite_state_store.h"
#include "tests/etcd/members.h"

namespace meshrun::coordinator {
namespace {

using std::chrono::duration;
using std::chrono::steady_clock;

constexpr size_t kRowBytes = 1024;
constexpr size_t kBatch = 100;

// Prints a row of the table.
bool Measure(const std::string& name, StateStore& store, size_t rows, duration<double> seconds) {
  const auto term = store.BeginTerm();
  if (!term.ok()) {
    fmt::print("{}: {}\n", name, std::string(term.status().message()));
    return false;
  }
  std::vector<double> milliseconds;
  size_t next = 0;
  const auto end = steady_clock::now() + seconds;
  while (steady_clock::now() < end) {
    std::vector<v1::StateRow> batch(rows);
    for (v1::StateRow& row : batch) {
      row.set_table(v1::STATE_TABLE_JOBS);
      row.set_key(fmt::format("job-{}", next++ % 10'000));
      // Each time another value: SQLite writes nothing where it is the same.
      row.set_value(fmt::format("{:0{}}", next, kRowBytes));
    }
    const auto began = steady_clock::now();
    if (const absl::Status status = store.Commit(*term, batch); !status.ok()) {
      fmt::print("{}: {}\n", name, std::string(status.message()));
      return false;
    }
    milliseconds.push_back(duration<double, std::milli>(steady_clock::now() - began).count());
  }
  std::sort(milliseconds.begin(), milliseconds.end());
  const auto at = [&](double part) {
    return milliseconds[static_cast<size_t>(part * static_cast<double>(milliseconds.size() - 1))];
  };
  fmt::print("{:<8} {:>8} {:>12.0f} {:>12.0f} {:>10.2f} {:>10.2f}\n", name, rows,
             static_cast<double>(milliseconds.size()) / seconds.count(),
             static_cast<double>(milliseconds.size() * rows) / seconds.count(), at(0.5), at(0.99));
  return true;
}

int Main(int argc, char** argv) {
  double seconds = 3;
  CLI::App app("Durable commits per second on both stores.", "state_store");
  app.add_option("--seconds", seconds, "For each row of the table")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  const testing::TemporaryDirectory directory;
  const testing::EtcdMembers members;
  auto sqlite = SqliteStateStore::Open(directory / "sqlite");
  auto etcd = EtcdStateStore::Open({.client = members.client()});
  if (!sqlite.ok() || !etcd.ok()) {
    fmt::print("{} {}\n", sqlite.status().ToString(), etcd.status().ToString());
    return 1;
  }
  fmt::print("{:<8} {:>8} {:>12} {:>12} {:>10} {:>10}\n", "", "submits", "commits/s", "submits/s",
             "median ms", "99 % ms");
  bool ok = true;
  for (const size_t rows : {size_t{1}, kBatch}) {
    ok = Measure("sqlite", **sqlite, rows, duration<double>(seconds)) && ok;
    ok = Measure("etcd", **etcd, rows, duration<double>(seconds)) && ok;
  }
  return ok ? 0 : 1;
}

}  // namespace
}  // namespace meshrun::coordinator

int main(int argc, char** argv) { return meshrun::coordinator::Main(argc, argv); }
