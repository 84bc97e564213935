// One supervisor process, and the daemon's end of its socket in the test's hands.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "core/os/fd.h"
#include "meshrun/v1/supervisor.pb.h"
#include "tests/worker/support/processes.h"
#include "worker/supervisor/frame.h"

namespace meshrun::testing {

class SupervisorHarness {
 public:
  SupervisorHarness();
  // Kills the supervisor where a test has left it.
  ~SupervisorHarness();

  // Before Spawn.
  v1::SupervisorLaunch& launch() { return launch_; }
  // Adds a rank that runs `script` with /bin/sh in this directory.
  v1::RankLaunch& AddRank(const std::string& script);

  void Spawn(std::vector<std::string> flags = {}, int lifeline_fd = -1);
  // A new connection; the first message, the state, is returned.
  v1::SupervisorState Connect();
  void Disconnect();

  void Start();
  // A rank that AddRank has not added, for a later generation. Started by StartLater.
  v1::RankLaunch LaterRank(uint64_t generation, int rank, const std::string& script);
  void StartLater(const v1::RankLaunch& launch);
  void Stop(std::chrono::milliseconds grace, int first_signal = 0);
  void StopAlone(uint64_t generation, int rank, std::chrono::milliseconds grace);
  void Signal(uint64_t generation, int rank, int signal);
  void Ping();
  // The fence time is over after this, from now on.
  void PingWithFence(std::chrono::milliseconds good_for);
  void Release();
  pid_t pid() const { return pid_; }
  // Wait status.
  int AwaitExit();

  // The next message of this kind; those before it are passed over. Absent after kPatience, or when
  // the supervisor closes the connection.
  std::optional<v1::SupervisorResponse> Await(v1::SupervisorResponse::MessageCase kind);
  // Exits of all ranks, in order of rank.
  std::vector<v1::RankExit> AwaitExits(size_t count);

  std::string Path(const std::string& name) const { return directory_ / name; }
  std::string Directory() const { return directory_.path(); }

 private:
  void Send(const v1::SupervisorRequest& request);

  TemporaryDirectory directory_;
  v1::SupervisorLaunch launch_;
  pid_t pid_ = -1;
  os::UniqueFd connection_;
  worker::FrameReader reader_;
};

}  // namespace meshrun::testing
