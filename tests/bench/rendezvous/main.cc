// How long until every rank has its place: n simulated workers with real session streams against
// the real coordinator, all on this machine. Connected before the clock starts; each submit takes
// all of them.
//
// Time: from the call of SubmitJob to the moment at which the last worker holds its Start, which
// comes after all have prepared and the generation is on disk. Bytes: messages to one host, from
// submit to Start, without HTTP/2's own.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/mutex.h"
#include "core/os/fd.h"
#include "core/os/files.h"
#include "core/os/process.h"
#include "core/rpc/channel.h"
#include "core/text.h"
#include "meshrun/v1/job_service.grpc.pb.h"
#include "tests/coordinator/support/grpc_worker.h"

namespace meshrun::coordinator::testing {
namespace {

constexpr uint32_t kRanksPerHost = 8;
constexpr size_t kStreamsPerChannel = 100;
constexpr size_t kTargetHosts = 1000;
constexpr double kTargetSeconds = 1.0;
// Of the median per host, where the hosts become ten times as many; 1 is linear.
constexpr double kTargetGrowth = 1.5;
// "Flat" for bytes: a rank's number takes two bytes where it took one, and comes 20 times.
constexpr uint64_t kFlatPercent = 125;
// A machine this busy must not lose its own simulated hosts.
constexpr const char* kLease = "30s";

// The coordinator's own process, on a state directory that goes with it.
class Coordinator {
 public:
  absl::Status Start(const std::string& program) {
    char directory[] = "/tmp/meshrun-bench-XXXXXX";
    if (::mkdtemp(directory) == nullptr) return absl::InternalError("no directory in /tmp");
    directory_ = directory;
    int ready[2];
    if (::pipe2(ready, O_CLOEXEC) != 0) return absl::InternalError("pipe");
    os::UniqueFd read_end(ready[0]);
    os::UniqueFd write_end(ready[1]);
    auto pid =
        os::Spawn({.argv = {program, "--listen", "unix:" + directory_ + "/c.sock", "--state-dir",
                            directory_, "--ready-fd", std::to_string(write_end.get()),
                            "--log-level", "error", "--lease", kLease},
                   .keep_fds = {write_end.get()}});
    if (!pid.ok()) return pid.status();
    pid_ = *pid;
    write_end.reset();
    std::string line(4096, '\0');
    const ssize_t n = ::read(read_end.get(), line.data(), line.size());
    if (n <= 0) return absl::UnavailableError("the coordinator did not start");
    address_ = nlohmann::json::parse(line.substr(0, n)).at("address").get<std::string>();
    return absl::OkStatus();
  }
  ~Coordinator() {
    if (pid_ > 0) {
      ::kill(pid_, SIGTERM);
      ::waitpid(pid_, nullptr, 0);
    }
    if (!directory_.empty()) (void)os::RemoveTree(directory_);
  }
  const std::string& address() const { return address_; }

 private:
  std::string directory_;
  std::string address_;
  pid_t pid_ = -1;
};

// The workers of one row, and a count of those that hold their Start.
class Fleet {
 public:
  explicit Fleet(size_t size) : size_(size) {}
  ~Fleet() {
    {
      MutexLock lock(mu_);
      stopping_ = true;
      changed_.NotifyAll();
    }
    if (heart_.joinable()) heart_.join();
  }

  absl::Status Connect(const std::string& address) {
    std::shared_ptr<grpc::Channel> channel;
    for (size_t i = 0; i < size_; ++i) {
      if (i % kStreamsPerChannel == 0) {
        auto made = rpc::MakeChannel("rendezvous", address, {});
        if (!made.ok()) return made.status();
        channel = *made;
      }
      workers_.push_back(std::make_unique<GrpcWorker>(
          channel, FakeWorker::Options{.name = fmt::format("node{}", i), .slots = kRanksPerHost},
          [this](GrpcWorker&, const v1::OpenSessionResponse& message) { OnMessage(message); }));
      if (!workers_.back()->Connect()) return absl::UnavailableError("a worker found no Welcome");
    }
    heart_ = std::thread([this] { Beat(); });
    return absl::OkStatus();
  }

  // Once each worker has had so many Starts; when the last one came.
  bool AwaitStarts(size_t starts, std::chrono::steady_clock::time_point* last) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    MutexLock lock(mu_);
    while (starts_ < starts) {
      if (!changed_.WaitUntil(mu_, deadline)) return false;
    }
    *last = last_start_;
    return true;
  }
  void EndAll(const std::string& job_id) {
    for (auto& worker : workers_) {
      worker->Say([&](FakeWorker& fake) {
        fake.received.clear();
        return fake.ExitAll(job_id, 0);
      });
    }
  }
  // The most that one host received.
  uint64_t BytesPerHost() {
    uint64_t most = 0;
    for (auto& worker : workers_) most = std::max(most, worker->bytes_received());
    return most;
  }

 private:
  void OnMessage(const v1::OpenSessionResponse& message) {
    if (!message.has_start()) return;
    const auto now = std::chrono::steady_clock::now();
    MutexLock lock(mu_);
    last_start_ = now;
    if (++starts_ % size_ == 0) changed_.NotifyAll();
  }
  void Beat() {
    while (true) {
      {
        const auto next = std::chrono::steady_clock::now() + std::chrono::seconds(1);
        MutexLock lock(mu_);
        while (!stopping_ && changed_.WaitUntil(mu_, next)) {
        }
        if (stopping_) return;
      }
      for (auto& worker : workers_) {
        worker->Say([](FakeWorker& fake) { return FakeWorker::Requests{fake.Heartbeat()}; });
      }
    }
  }

  const size_t size_;
  std::vector<std::unique_ptr<GrpcWorker>> workers_;
  std::thread heart_;
  Mutex mu_;
  CondVar changed_;
  size_t starts_ MESHRUN_GUARDED_BY(mu_) = 0;
  bool stopping_ MESHRUN_GUARDED_BY(mu_) = false;
  std::chrono::steady_clock::time_point last_start_ MESHRUN_GUARDED_BY(mu_);
};

struct Row {
  size_t hosts = 0;
  double p50 = 0;
  double p99 = 0;
  uint64_t bytes_per_host = 0;
};

size_t P99Index(size_t samples) { return std::min(samples - 1, samples * 99 / 100); }
bool P99IsSlowest(size_t samples) { return P99Index(samples) == samples - 1; }

// Waits for the end of the job, so that the next submit finds all hosts free.
bool AwaitEnd(v1::JobService::Stub& jobs, const std::string& id) {
  grpc::ClientContext context;
  rpc::SetTimeout(context, std::chrono::seconds(60));
  v1::WatchJobRequest request;
  request.set_job_id(id);
  const auto reader = jobs.WatchJob(&context, request);
  v1::WatchJobResponse response;
  while (reader->Read(&response)) {
  }
  return reader->Finish().ok() && response.job().state() == v1::JOB_STATE_SUCCEEDED;
}

absl::StatusOr<Row> Measure(const std::string& program, size_t hosts, int submits) {
  Coordinator coordinator;
  if (absl::Status status = coordinator.Start(program); !status.ok()) return status;
  Fleet fleet(hosts);
  if (absl::Status status = fleet.Connect(coordinator.address()); !status.ok()) return status;
  const auto jobs =
      v1::JobService::NewStub(*rpc::MakeChannel("rendezvous", coordinator.address(), {}));
  v1::SubmitJobRequest request;
  request.mutable_spec()->set_name("bench");
  request.mutable_spec()->add_command("/usr/bin/true");
  request.mutable_spec()->set_min_nodes(static_cast<uint32_t>(hosts));
  request.mutable_spec()->mutable_procs_per_node()->set_count(kRanksPerHost);
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
      return absl::DeadlineExceededError("not every host got its Start within 60 s");
    }
    times.push_back(std::chrono::duration<double>(end - start).count());
    row.bytes_per_host = std::max(row.bytes_per_host, fleet.BytesPerHost() - bytes_before);
    fleet.EndAll(response.job().job_id());
    if (!AwaitEnd(*jobs, response.job().job_id()))
      return absl::InternalError("the job did not end well");
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
    if (i == 0) continue;
    const double growth = Growth(rows[i - 1], rows[i]);
    text += fmt::format(", {:.2f} of linear", growth);
    reached = reached && growth <= kTargetGrowth &&
              rows[i].bytes_per_host <= rows[0].bytes_per_host * kFlatPercent / 100;
  }
  fmt::print("verdict: {} {}; {} samples each{}, lease {}", reached ? "pass" : "short", text,
             submits, P99IsSlowest(submits) ? ", p99 is the slowest" : "", kLease);
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
               hosts == kTargetHosts ? fmt::format("{:.0f}ms", kTargetSeconds * 1e3) : "-",
               rows.size() < 2 ? "-" : fmt::format("{:.2f}", Growth(rows[rows.size() - 2], *row)),
               row->bytes_per_host);
    std::fflush(stdout);
  }
  PrintVerdict(rows, submits);
  return 0;
}

}  // namespace
}  // namespace meshrun::coordinator::testing

int main(int argc, char** argv) { return meshrun::coordinator::testing::Main(argc, argv); }
