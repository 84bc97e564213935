#include "tests/worker/support/supervisor_harness.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>

#include "core/env_entries.h"
#include "core/os/boot_time.h"
#include "core/os/files.h"
#include "core/os/process.h"
#include "core/proto_time.h"
#include "worker/supervisor/unix_socket.h"

namespace meshrun::testing {

SupervisorHarness::SupervisorHarness() {
  launch_.mutable_fence()->set_job_id("job");
  launch_.mutable_fence()->set_generation(1);
  // Tests of the lease set their own: no other test ends by it.
  *launch_.mutable_lease() = ToProtoDuration(std::chrono::hours(1));
  *launch_.mutable_kill_grace() = ToProtoDuration(std::chrono::seconds(5));
}

SupervisorHarness::~SupervisorHarness() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

v1::RankLaunch& SupervisorHarness::AddRank(const std::string& script) {
  const int rank = launch_.ranks_size();
  return *launch_.add_ranks() = LaterRank(1, rank, script);
}

v1::RankLaunch SupervisorHarness::LaterRank(uint64_t generation, int number,
                                            const std::string& script) {
  const std::string rank =
      (generation == 1 ? "" : std::to_string(generation) + "-") + std::to_string(number);
  v1::RankLaunch out;
  out.set_rank(number);
  out.set_generation(generation);
  for (const std::string& word : {std::string("/bin/sh"), std::string("-c"), script})
    out.add_argv(word);
  SetEnv(*out.mutable_env(), "PATH", "/usr/local/bin:/usr/bin:/bin");
  out.set_working_dir(Directory());
  out.set_stdout_path(Path(rank + ".stdout.log"));
  out.set_stderr_path(Path(rank + ".stderr.log"));
  out.set_error_file(Path(rank + ".error.json"));
  out.set_report_socket(Path("r" + rank + ".sock"));
  SetEnv(*out.mutable_env(), "MESHRUN_REPORT", out.report_socket());
  return out;
}

void SupervisorHarness::Spawn(std::vector<std::string> flags, int lifeline_fd) {
  ASSERT_TRUE(os::WriteFileAtomically(Path("launch"), launch_.SerializeAsString()).ok());
  const auto listener = worker::ListenUnix(Path("sup.sock"));
  ASSERT_TRUE(listener.ok()) << listener.status();
  os::SpawnOptions spawn;
  spawn.argv = {WorkerProgram(), "supervise",   "--launch",
                Path("launch"),  "--listen-fd", std::to_string(listener->get())};
  spawn.argv.insert(spawn.argv.end(), flags.begin(), flags.end());
  spawn.keep_fds = {listener->get()};
  if (lifeline_fd >= 0) {
    spawn.argv.insert(spawn.argv.end(), {"--lifeline-fd", std::to_string(lifeline_fd)});
    spawn.keep_fds.push_back(lifeline_fd);
  }
  const auto pid = os::Spawn(spawn);
  ASSERT_TRUE(pid.ok()) << pid.status();
  pid_ = *pid;
}

v1::SupervisorState SupervisorHarness::Connect() {
  auto connection = worker::ConnectUnix(Path("sup.sock"));
  EXPECT_TRUE(connection.ok()) << connection.status();
  if (!connection.ok()) return {};
  connection_ = *std::move(connection);
  reader_ = worker::FrameReader();
  const auto first = Await(v1::SupervisorResponse::kState);
  EXPECT_TRUE(first.has_value());
  return first ? first->state() : v1::SupervisorState();
}

void SupervisorHarness::Disconnect() { connection_.reset(); }

void SupervisorHarness::Start() {
  v1::SupervisorRequest request;
  SetEnv(*request.mutable_start()->mutable_env(), "MASTER_PORT", "20001");
  Send(request);
}

void SupervisorHarness::StartLater(const v1::RankLaunch& launch) {
  v1::SupervisorRequest request;
  request.mutable_start()->set_generation(launch.generation());
  *request.mutable_start()->add_ranks() = launch;
  Send(request);
}

void SupervisorHarness::StopAlone(uint64_t generation, int rank, std::chrono::milliseconds grace) {
  v1::SupervisorRequest request;
  *request.mutable_stop()->mutable_grace() = ToProtoDuration(grace);
  v1::SupervisedProcess& process = *request.mutable_stop()->add_processes();
  process.set_generation(generation);
  process.set_rank(rank);
  Send(request);
}

void SupervisorHarness::PingWithFence(std::chrono::milliseconds good_for) {
  v1::SupervisorRequest request;
  *request.mutable_ping()->mutable_good_for() = ToProtoDuration(good_for);
  request.mutable_ping()->set_since_boottime_nanos(os::BootTimeNow().count());
  Send(request);
}

void SupervisorHarness::Stop(std::chrono::milliseconds grace, int first_signal) {
  v1::SupervisorRequest request;
  *request.mutable_stop()->mutable_grace() = ToProtoDuration(grace);
  request.mutable_stop()->set_first_signal(first_signal);
  Send(request);
}

void SupervisorHarness::Signal(uint64_t generation, int rank, int signal) {
  v1::SupervisorRequest request;
  request.mutable_signal()->set_signal(signal);
  v1::SupervisedProcess& process = *request.mutable_signal()->add_processes();
  process.set_generation(generation);
  process.set_rank(rank);
  Send(request);
}

void SupervisorHarness::Ping() {
  v1::SupervisorRequest request;
  request.mutable_ping();
  Send(request);
}

void SupervisorHarness::Release() {
  v1::SupervisorRequest request;
  request.mutable_release();
  Send(request);
}

int SupervisorHarness::AwaitExit() {
  const int status = testing::AwaitExit(pid_);
  pid_ = -1;
  return status;
}

void SupervisorHarness::Send(const v1::SupervisorRequest& request) {
  worker::FrameWriter writer;
  writer.Append(request);
  EXPECT_TRUE(writer.Flush(connection_.get()));
}

std::optional<v1::SupervisorResponse> SupervisorHarness::Await(
    v1::SupervisorResponse::MessageCase kind) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  bool open = true;
  while (true) {
    while (const auto bytes = reader_.Next()) {
      v1::SupervisorResponse response;
      EXPECT_TRUE(response.ParseFromString(*bytes));
      if (response.message_case() == kind) return response;
    }
    const auto left = deadline - std::chrono::steady_clock::now();
    if (!open || left.count() <= 0) return std::nullopt;
    pollfd fd = {connection_.get(), POLLIN, 0};
    ::poll(&fd, 1, static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(left).count()));
    open = reader_.ReadAvailable(connection_.get());
  }
}

std::vector<v1::RankExit> SupervisorHarness::AwaitExits(size_t count) {
  std::vector<v1::RankExit> exits;
  while (exits.size() < count) {
    const auto response = Await(v1::SupervisorResponse::kRankExit);
    if (!response) break;
    exits.push_back(response->rank_exit());
  }
  EXPECT_EQ(exits.size(), count);
  std::sort(exits.begin(), exits.end(),
            [](const auto& a, const auto& b) { return a.rank() < b.rank(); });
  exits.resize(count);
  return exits;
}

}  // namespace meshrun::testing
