// How long until every rank has its place: n simulated workers with real session streams against
// the real coordinator, all on this machine. Connected before the clock starts; each submit takes
// all of them.
//
// Time: from the call of SubmitJob to the moment at which the last worker holds its Start, which
// comes after all have prepared and the generation is on disk. Bytes: messages to one host, from
// submit to Start, without HTTP/2's own.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>

#include "core/os/process.h"
#include "core/rpc/channel.h"
#include "tests/bench/rendezvous/cluster.h"

namespace meshrun::bench {
namespace {

constexpr uint32_t kRanksPerHost = 8;
constexpr size_t kTargetHosts = 1000;
constexpr double kTargetSeconds = 1.0;
constexpr size_t kMoreHosts = 10'000;
constexpr double kMoreSeconds = 5.0;
// Heartbeat interval of clusters of more hosts than kTargetHosts: ten thousand beats a second are a
// load of their own.
constexpr std::chrono::seconds kHeartbeatOfMany(5);
// Most growth of the median per host, where the hosts become ten times as many; 1 is linear.
constexpr double kTargetGrowth = 1.5;
// "Flat" for bytes: a rank's number takes two bytes where it took one, and comes 20 times.
constexpr uint64_t kFlatPercent = 125;

struct Row {
  size_t hosts = 0;
  double p50 = 0;
  double p99 = 0;
  uint64_t bytes_per_host = 0;
};

size_t P99Index(size_t samples) { return std::min(samples - 1, samples * 99 / 100); }
bool P99IsSlowest(size_t samples) { return P99Index(samples) == samples - 1; }

std::chrono::seconds HeartbeatOf(size_t hosts) {
  return hosts <= kTargetHosts ? kHeartbeat : kHeartbeatOfMany;
}

absl::StatusOr<Row> Measure(const std::string& program, size_t hosts, int submits) {
  Coordinator coordinator;
  const auto heartbeat = HeartbeatOf(hosts);
  if (absl::Status status = coordinator.Start(program, heartbeat); !status.ok()) return status;
  Fleet fleet(hosts, kRanksPerHost, heartbeat);
  if (absl::Status status = fleet.Connect(coordinator.address()); !status.ok()) return status;
  const auto jobs =
      v1::JobService::NewStub(*rpc::MakeChannel("rendezvous", coordinator.address(), {}));
  v1::SubmitJobRequest request;
  *request.mutable_spec() = BenchSpec(hosts, kRanksPerHost);
  std::vector<double> times;
  Row row{.hosts = hosts};
  for (int i = 0; i < submits; ++i) {
    const uint64_t bytes_before = fleet.BytesPerHost();
    grpc::ClientContext context;
    rpc::SetTimeout(context, std::chrono::seconds(60));
    v1::SubmitJobResponse response;
    const auto start = std::chrono::steady_clock::now();
    const grpc::Status status = jobs->SubmitJob(&context, request, &response);
    if (!status.ok()) return absl::InternalError("SubmitJob: " + status.error_message());
    std::chrono::steady_clock::time_point end;
    if (!fleet.AwaitStarts(hosts * (i + 1), &end)) {
      return absl::DeadlineExceededError("not every host got its Start in time");
    }
    times.push_back(std::chrono::duration<double>(end - start).count());
    if (hosts > kTargetHosts) {
      fmt::print("{} hosts, submit {}: {:.1f} ms\n", hosts, i + 1, times.back() * 1e3);
      std::fflush(stdout);
    }
    row.bytes_per_host = std::max(row.bytes_per_host, fleet.BytesPerHost() - bytes_before);
    fleet.EndAll(response.job().job_id());
    // So that the next submit finds all hosts free.
    if (absl::Status status = AwaitEnd(*jobs, response.job().job_id(), v1::JOB_STATE_SUCCEEDED);
        !status.ok()) {
      return status;
    }
  }
  std::sort(times.begin(), times.end());
  row.p50 = times[times.size() / 2];
  row.p99 = times[P99Index(times.size())];
  return row;
}

// 1 is linear: ten times the hosts take ten times as long. Below is better.
double Growth(const Row& few, const Row& many) {
  return many.p50 / few.p50 * static_cast<double>(few.hosts) / static_cast<double>(many.hosts);
}

// The last line, as the acceptance list reads it.
void PrintVerdict(const std::vector<Row>& rows, size_t submits) {
  std::string text;
  bool reached = !rows.empty() && rows.back().hosts >= kTargetHosts;
  for (size_t i = 0; i < rows.size(); ++i) {
    text +=
        fmt::format("{}{} hosts: p50 {:.1f} ms, p99 {:.1f} ms, {} B/host", i == 0 ? "" : "; ",
                    rows[i].hosts, rows[i].p50 * 1e3, rows[i].p99 * 1e3, rows[i].bytes_per_host);
    if (rows[i].hosts == kTargetHosts) reached = reached && rows[i].p99 <= kTargetSeconds;
    if (rows[i].hosts == kMoreHosts) reached = reached && rows[i].p99 <= kMoreSeconds;
    if (i == 0) continue;
    const double growth = Growth(rows[i - 1], rows[i]);
    text += fmt::format(", {:.2f} of linear", growth);
    reached = reached && growth <= kTargetGrowth &&
              rows[i].bytes_per_host <= rows[0].bytes_per_host * kFlatPercent / 100;
  }
  fmt::print("verdict: {} {}; {} samples each{}, heartbeat {} s, lease {}",
             reached ? "pass" : "short", text, submits,
             P99IsSlowest(submits) ? ", p99 is the slowest" : "",
             HeartbeatOf(rows.empty() ? 0 : rows.back().hosts).count(), kLease);
  if (!reached) {
    fmt::print(" (target {:.0f} ms p99 at {} hosts, growth at most {} of linear, bytes flat)",
               kTargetSeconds * 1e3, kTargetHosts, kTargetGrowth);
  }
  fmt::print("\n");
}

int Main(int argc, char** argv) {
  std::string program = std::filesystem::path(os::SelfPath()).parent_path() /
                        "../../../coordinator/meshrun-coordinator";
  std::vector<size_t> sizes = {10, 100, 1000};
  int submits = 30;
  CLI::App app("Time from submit to every rank's assignment, against a real coordinator.",
               "rendezvous");
  app.add_option("--coordinator", program, "The coordinator's program")->capture_default_str();
  app.add_option("--hosts", sizes, "Simulated hosts, of 8 ranks each")->delimiter(',');
  app.add_option("--submits", submits, "Jobs per row, one after another")
      ->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);

  fmt::print(
      "rendezvous: {} ranks per host, {} submits per row, at most {} streams per channel, lease "
      "{}\n",
      kRanksPerHost, submits, kStreamsPerChannel, kLease);
  if (P99IsSlowest(submits)) fmt::print("p99 of {} samples is the slowest of them\n", submits);
  fmt::print("{:>6} {:>7} {:>10} {:>10} {:>12} {:>16} {:>9}\n", "hosts", "ranks", "p50", "p99",
             "target p99", "p50 growth/host", "B/host");
  std::vector<Row> rows;
  for (const size_t hosts : sizes) {
    const auto row = Measure(program, hosts, submits);
    if (!row.ok()) {
      fmt::print(stderr, "rendezvous: {} hosts: {}\n", hosts, std::string(row.status().message()));
      return 1;
    }
    rows.push_back(*row);
    fmt::print("{:>6} {:>7} {:>8.1f}ms {:>8.1f}ms {:>12} {:>16} {:>9}\n", row->hosts,
               row->hosts * kRanksPerHost, row->p50 * 1e3, row->p99 * 1e3,
               hosts == kTargetHosts ? fmt::format("{:.0f}ms", kTargetSeconds * 1e3)
               : hosts == kMoreHosts ? fmt::format("{:.0f}ms", kMoreSeconds * 1e3)
                                     : "-",
               rows.size() < 2 ? "-" : fmt::format("{:.2f}", Growth(rows[rows.size() - 2], *row)),
               row->bytes_per_host);
    std::fflush(stdout);
  }
  PrintVerdict(rows, submits);
  return 0;
}

}  // namespace
}  // namespace meshrun::bench

int main(int argc, char** argv) { return meshrun::bench::Main(argc, argv); }
