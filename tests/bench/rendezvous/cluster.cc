#include "tests/bench/rendezvous/cluster.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/os/fd.h"
#include "core/os/files.h"
#include "core/os/process.h"
#include "core/rpc/channel.h"

namespace meshrun::bench {
namespace {

using coordinator::testing::FakeWorker;
using coordinator::testing::GrpcWorker;

constexpr std::chrono::seconds kPatience(120);
// Moments over which the beats are spread.
constexpr size_t kBeats = 20;

}  // namespace

absl::Status Coordinator::Start(const std::string& program, std::chrono::seconds heartbeat) {
  char directory[] = "/tmp/meshrun-bench-XXXXXX";
  if (::mkdtemp(directory) == nullptr) return absl::InternalError("no directory in /tmp");
  directory_ = directory;
  int ready[2];
  if (::pipe2(ready, O_CLOEXEC) != 0) return absl::InternalError("pipe");
  os::UniqueFd read_end(ready[0]);
  os::UniqueFd write_end(ready[1]);
  auto pid = os::Spawn(
      {.argv = {program, "--listen", "unix:" + directory_ + "/c.sock", "--state-dir", directory_,
                "--ready-fd", std::to_string(write_end.get()), "--log-level", "error", "--lease",
                kLease, "--heartbeat", fmt::format("{}s", heartbeat.count())},
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

Coordinator::~Coordinator() {
  if (pid_ > 0) {
    ::kill(pid_, SIGTERM);
    ::waitpid(pid_, nullptr, 0);
  }
  if (!directory_.empty()) (void)os::RemoveTree(directory_);
}

size_t Coordinator::resident() const {
  std::ifstream statm(fmt::format("/proc/{}/statm", pid_));
  size_t all = 0;
  size_t pages = 0;
  statm >> all >> pages;
  return pages * static_cast<size_t>(::sysconf(_SC_PAGESIZE));
}

void Coordinator::AwaitIdle() const {
  const auto ticks = [this] {
    std::ifstream stat(fmt::format("/proc/{}/stat", pid_));
    std::string word;
    for (int i = 0; i < 13; ++i) stat >> word;
    long user = 0;
    long system = 0;
    stat >> user >> system;
    return user + system;
  };
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  long before = -1;
  for (long now = ticks(); now - before > 1 && std::chrono::steady_clock::now() < deadline;) {
    before = now;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    now = ticks();
  }
}

Fleet::~Fleet() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (heart_.joinable()) heart_.join();
}

absl::Status Fleet::Connect(const std::string& address) {
  workers_.reserve(size_);
  std::shared_ptr<grpc::Channel> channel;
  for (size_t i = 0; i < size_; ++i) {
    if (i % kStreamsPerChannel == 0) {
      auto made = rpc::MakeChannel("bench", address, {});
      if (!made.ok()) return made.status();
      channel = *made;
    }
    workers_.push_back(std::make_unique<GrpcWorker>(
        channel, FakeWorker::Options{.name = fmt::format("node{}", i), .slots = slots_},
        [this](GrpcWorker&, const v1::OpenSessionResponse& message) { OnMessage(message); }));
    if (!workers_.back()->Connect()) return absl::UnavailableError("a worker found no Welcome");
    // Beats from the beginning: thousands take longer to connect than a lease.
    if (i == 0) heart_ = std::thread([this] { Beat(); });
    MutexLock lock(mu_);
    connected_ = i + 1;
  }
  return absl::OkStatus();
}

bool Fleet::AwaitStarts(size_t starts, std::chrono::steady_clock::time_point* last) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  MutexLock lock(mu_);
  while (starts_ < starts) {
    if (!changed_.WaitUntil(mu_, deadline)) return false;
  }
  *last = last_start_;
  return true;
}

void Fleet::EndAll(const std::string& job_id) {
  for (auto& worker : workers_) {
    worker->Say([&](FakeWorker& fake) {
      fake.received.clear();
      return fake.ExitAll(job_id, 0);
    });
  }
}

uint64_t Fleet::BytesPerHost() {
  uint64_t most = 0;
  for (auto& worker : workers_) most = std::max(most, worker->bytes_received());
  return most;
}

void Fleet::OnMessage(const v1::OpenSessionResponse& message) {
  if (!message.has_start()) return;
  const auto now = std::chrono::steady_clock::now();
  MutexLock lock(mu_);
  last_start_ = now;
  ++starts_;
  changed_.NotifyAll();
}

void Fleet::Beat() {
  for (size_t beat = 0;; beat = (beat + 1) % kBeats) {
    size_t connected = 0;
    {
      const auto next = std::chrono::steady_clock::now() + heartbeat_ / kBeats;
      MutexLock lock(mu_);
      while (!stopping_ && changed_.WaitUntil(mu_, next)) {
      }
      if (stopping_) return;
      connected = connected_;
    }
    for (size_t i = beat; i < connected; i += kBeats) {
      workers_[i]->Say([](FakeWorker& fake) { return FakeWorker::Requests{fake.Heartbeat()}; });
    }
  }
}

v1::JobSpec BenchSpec(size_t hosts, uint32_t ranks) {
  v1::JobSpec spec;
  spec.set_name("bench");
  spec.add_command("/usr/bin/true");
  spec.set_min_nodes(static_cast<uint32_t>(hosts));
  spec.mutable_procs_per_node()->set_count(ranks);
  return spec;
}

namespace {

absl::Status WatchUntilEnd(v1::JobService::Stub& jobs, const std::string& id, v1::JobState wanted) {
  grpc::ClientContext context;
  rpc::SetTimeout(context, kPatience);
  v1::WatchJobRequest request;
  request.set_job_id(id);
  request.set_deltas(true);
  const auto reader = jobs.WatchJob(&context, request);
  v1::WatchJobResponse response;
  v1::Job last;
  while (reader->Read(&response)) {
    last = response.has_delta() ? response.delta().head() : response.job();
  }
  const grpc::Status status = reader->Finish();
  if (!status.ok()) {
    const bool is_full = status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED;
    return absl::Status(
        is_full ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kInternal,
        fmt::format("WatchJob: {}; the job was {}", status.error_message(),
                    v1::JobState_Name(last.state())));
  }
  if (last.state() == wanted) return absl::OkStatus();
  return absl::InternalError(fmt::format("the job ended as {}, not as {}: {}",
                                         v1::JobState_Name(last.state()), v1::JobState_Name(wanted),
                                         last.reason()));
}

}  // namespace

absl::Status AwaitEnd(v1::JobService::Stub& jobs, const std::string& id, v1::JobState wanted) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  absl::Status status;
  do {
    status = WatchUntilEnd(jobs, id, wanted);
    // The queue of a coordinator that hears of tens of thousands of ends is full for a moment.
  } while (absl::IsResourceExhausted(status) && std::chrono::steady_clock::now() < deadline);
  return status;
}

}  // namespace meshrun::bench
