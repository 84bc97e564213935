// All generations that run on this host, or whose end is not reported yet. Carries out the
// coordinator's commands, reports to it, and checks the ranks that call. Lives on the event loop's
// thread.
//
// While there is a session everything is reported at once; the rest is part of the next Hello
// (Running). A generation that has ended stays, with its directory, until the coordinator answers
// Forget; its log files stay after that.
//
// No call here waits for a file system: files are written, read and removed by FileTasks, the ranks'
// working directory and program are looked at by their supervisor. What does not answer within
// Host::file_timeout is an error of that one generation. (MASTER_PORT is claimed in the host's own /tmp.)
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/ids.h"
#include "meshrun/v1/session.pb.h"
#include "worker/event_loop/event_loop.h"
#include "worker/files/file_tasks.h"
#include "worker/generations/agent_socket.h"
#include "worker/generations/generation.h"
#include "worker/generations/port_range.h"
#include "worker/generations/preparation.h"
#include "worker/generations/state_dir.h"
#include "worker/launch/rank_environment.h"
#include "worker/logs/retention.h"

namespace meshrun::worker {

class Generations {
 public:
  // What the generations need; all of it outlives them.
  struct Host {
    EventLoop& loop;
    FileTasks& files;
    LogsInUse& logs_in_use;
    StateDir& state_dir;
    PortRange& ports;
    IdSource& ids;
    // Without the agent's address, which is each job's own.
    HostFacts facts;
    Environment environment;
    std::string jobs_dir;
    SupervisorProgram supervisor;
    // For a file system to answer: for the files of a generation, and again for its program.
    std::chrono::nanoseconds file_timeout;
  };
  struct Handler {
    // To the coordinator; dropped where there is no session.
    std::function<void(v1::OpenSessionRequest)> send;
    // This rank's output is complete.
    std::function<void(const std::string& job_id, uint64_t generation, int rank)> on_rank_ended;
    // Nothing of the generation is left on this host. The handler must not remove it.
    std::function<void(const std::string& job_id, uint64_t generation)> on_generation_ended;
    // A rank has connected to its job's socket.
    AgentSocket::OnConnection on_agent_connection;
  };

  Generations(Host host, Handler handler) : host_(std::move(host)), handler_(std::move(handler)) {}

  // Takes over what an earlier incarnation left; `on_done` is called when the state of all is
  // known, or after two seconds.
  void Adopt(std::function<void()> on_done);

  // A session has begun: repeats what the coordinator may have missed.
  void OnSession(std::chrono::nanoseconds lease);
  // Prepare, Start, Stop, Forget, PeerNews, CollectFlightRecords.
  void Handle(const v1::OpenSessionResponse& message);
  std::vector<v1::RunningGeneration> Running() const;

  // Renews every supervisor's lease.
  void PingAll();
  // Stops all: with each job's own grace, or with `grace`.
  void StopAll(std::optional<std::chrono::nanoseconds> grace, const std::string& reason);
  bool AllEnded() const;
  // Longest grace of the generations that have not ended; 0 without any.
  std::chrono::nanoseconds LongestKillGrace() const;
  // For people: which ranks have not ended.
  std::string DescribeRunning() const;
  // The worker is draining: nothing is prepared from now on.
  void Refuse(const std::string& reason);

  // NOT_FOUND (no such generation, or `rank` is not here), UNAUTHENTICATED (token). rank -1: any.
  absl::StatusOr<Generation*> Authenticate(const v1::Fence& fence, const std::string& token,
                                           int rank = -1);
  // A rank is blocked, or no longer: reported to the coordinator, and again in a new session.
  void ReportWait(Generation& generation, const v1::WaitReport& report);
  void WithdrawWait(Generation& generation, int rank);
  // True while this rank may add to its output.
  bool RankMayWrite(const std::string& job_id, uint64_t generation, int rank) const;
  const HostFacts& facts() const { return host_.facts; }

 private:
  using Key = std::pair<std::string, uint64_t>;
  struct Entry {
    std::unique_ptr<Generation> generation;
    // Prepare was answered, or needs no answer.
    bool announced = false;
    // The coordinator does not know it: report nothing about it.
    bool forgotten = false;
  };

  // Files of a generation that are being written.
  struct Preparing {
    std::shared_ptr<Preparation> preparation;
    EventLoop::TimerId deadline = 0;
  };

  void Prepare(const v1::Fence& fence, const v1::Prepare& prepare);
  absl::StatusOr<std::shared_ptr<Preparation>> Plan(const v1::Fence& fence,
                                                    const v1::Prepare& prepare);
  void OnFilesWritten(const Key& key, const std::shared_ptr<Preparation>& preparation);
  // Whatever the preparation does from now on, nothing comes of it.
  void GiveUp(const Key& key);
  void OnUnprepared(const Key& key, const v1::ProgramFound& why);
  void AnswerPrepare(const Key& key);
  void RefusePrepare(const v1::Fence& fence, const absl::Status& status, bool bad_command);
  Generation::Handler HandlerFor(const Key& key);
  void OnPrepared(const Key& key);
  void OnStarted(const Key& key);
  void OnExit(const Key& key, const v1::RankExit& exit);
  void OnEnded(const Key& key);
  void SendExit(const Key& key, const v1::RankExit& exit);
  void SendEnded(const Key& key);
  void SendWaiting(const Key& key, const v1::WaitReport& report);
  void ScheduleProgress();
  void SendProgress();
  void Drop(const Key& key);
  // The socket stays while any generation of the job is here.
  absl::Status OpenAgentSocket(const std::string& job_id);
  void CloseAgentSocketIfUnused(const std::string& job_id);
  bool HasGenerations(const std::string& job_id) const;
  void RemoveLater(const std::string& job_id, const std::string& directory);
  Entry* Find(const Key& key);
  void Send(const Key& key, v1::OpenSessionRequest message);
  void FinishAdoption();

  Host host_;
  Handler handler_;
  std::map<Key, Entry> entries_;
  std::map<Key, Preparing> preparing_;
  // By job.
  std::map<std::string, std::unique_ptr<AgentSocket>> agent_sockets_;
  std::chrono::nanoseconds lease_{std::chrono::seconds(5)};
  bool progress_scheduled_ = false;
  std::string refusal_;
  std::function<void()> on_adopted_;
};

}  // namespace meshrun::worker
