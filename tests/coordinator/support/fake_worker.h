// A worker daemon without processes: what it would say to each command. Pure; used against the
// state machine, against a real server, and by the rendezvous benchmark.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "meshrun/v1/session.pb.h"

namespace meshrun::coordinator::testing {

class FakeWorker {
 public:
  using Requests = std::vector<v1::OpenSessionRequest>;

  struct Options {
    std::string name = "node1";
    uint32_t slots = 8;
    uint32_t gpus = 0;
    uint64_t memory_bytes = uint64_t{16} << 30;
    std::vector<std::string> shipped_jobs;
    // Hello.fence_after; 0: not promised.
    std::chrono::nanoseconds fence_after = std::chrono::seconds(20);
    std::map<std::string, std::string> labels;
    std::vector<std::string> addresses = {"127.0.0.1"};
  };

  explicit FakeWorker(Options options) : options_(std::move(options)) {}

  // How the next Prepare messages are answered.
  std::string prepare_error;
  bool bad_command = false;
  // Ignores commands: a daemon that hangs.
  // False: a worker that knows no roll call.
  bool tells_details = true;
  bool deaf = false;
  // Ranks do not end when they are told to, until Forget.
  bool stubborn = false;
  // Ranks end at Forget.
  bool forgets = true;
  // Is stopping: says so, and refuses Prepare.
  bool draining = false;
  // Its ranks take another generation without being started again.
  bool in_process = false;
  // Ranks that live on do not join their next generation.
  bool joins = true;
  // Nor do new ones.
  bool new_ones_join = true;
  // Ranks stand still when they are asked to.
  bool quiesces = true;
  // What its host lacks: in its next Hello, and in HealthReport.
  std::vector<std::string> problems;
  // Steps of each job's ranks, by rank: told by Hello.
  std::map<int, int64_t> steps;
  // Ids in its next Hello.
  std::string machine_id;
  std::string cluster_id;
  // End of the certificate that its sessions show, in wall time; 0: it comes without TLS.
  std::chrono::nanoseconds certificate_ends{0};

  const std::string& name() const { return options_.name; }
  std::string node_id() const { return "id-" + options_.name; }
  uint64_t incarnation() const { return incarnation_; }

  // Job and generation.
  using Key = std::pair<std::string, uint64_t>;

  // With its fence, to be filled.
  v1::OpenSessionRequest Message(const Key& key) const;
  v1::OpenSessionRequest Hello() const;
  // A new daemon process; ranks live on under their supervisors, or not.
  void Reboot(bool ranks_survive);
  // Answers of this daemon to one message.
  Requests OnMessage(const v1::OpenSessionResponse& message);
  v1::OpenSessionRequest Heartbeat();
  v1::OpenSessionRequest HealthReport() const;
  // A rank ends by itself; GenerationEnded follows the last one.
  Requests Exit(const std::string& job_id, int rank, int code, int signal = 0);
  Requests ExitAll(const std::string& job_id, int code);
  // The worker itself stops the ranks, which end with this code.
  Requests StopRanks(const std::string& job_id, int code);
  // All its ranks of the job stand still for the next generation.
  Requests StandStill(const std::string& job_id);
  // Ends generations of the job that it has prepared and not started.
  Requests GiveUp(const std::string& job_id);
  v1::OpenSessionRequest Goodbye() const;

  // Ranks that run here, of all generations of the job.
  std::set<int> Running(const std::string& job_id) const;
  bool Carries(const std::string& job_id) const;
  // Every message that arrived, except heartbeat replies.
  std::vector<v1::OpenSessionResponse> received;

 private:
  struct Generation {
    // Process (generation, rank) by rank.
    std::map<int, std::pair<uint64_t, int>> ranks;
    std::set<int> running;
    std::vector<v1::RankExit> exits;
    v1::GenerationDetails details;
    bool started = false;
    bool ended = false;
  };
  Requests Prepare(const Key& key, const v1::Prepare& prepare);
  Requests Start(const Key& key);
  Requests Stop(const Key& key, const v1::Stop& stop);
  // Rank of this process of the job in the newest generation that was started; -1: the process has
  // ended.
  int RunningRank(const std::string& job_id, const std::pair<uint64_t, int>& process) const;
  Requests End(const Key& key, Generation& generation, int rank, int code, int signal,
               bool teardown);

  const Options options_;
  uint64_t incarnation_ = 1;
  uint64_t term_ = 0;
  uint64_t sequence_ = 0;
  std::map<Key, Generation> generations_;
};

}  // namespace meshrun::coordinator::testing
