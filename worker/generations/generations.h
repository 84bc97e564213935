// All generations that run on this host, or whose end is not reported yet. Carries out the
// coordinator's commands, reports to it, and checks the ranks that call. Lives on the event loop's
// thread.
//
// While there is a session everything is reported at once; the rest is part of the next Hello
// (Running). A generation that has ended stays, with its directory, until the coordinator answers
// Forget; its log files stay after that. A generation whose processes live on into a later one is
// dropped when that one starts: there is nothing to report of its end.
//
// No call here waits for a file system: files are written, read and removed by FileTasks, the
// ranks' working directory and program are looked at by their supervisor. What does not answer
// within Host::file_timeout is an error of that one generation. (MASTER_PORT is claimed in the
// host's own
// /tmp.)
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
#include "meshrun/v1/stack.pb.h"
#include "worker/clock/coordinator_clock.h"
#include "worker/dumps/stack_requests.h"
#include "worker/event_loop/event_loop.h"
#include "worker/files/file_tasks.h"
#include "worker/generations/agent_socket.h"
#include "worker/generations/generation.h"
#include "worker/generations/port_range.h"
#include "worker/generations/preparation.h"
#include "worker/generations/state_dir.h"
#include "worker/launch/job_limits.h"
#include "worker/launch/rank_environment.h"
#include "worker/logs/retention.h"
#include "worker/metrics/host_metrics.h"

namespace meshrun::worker {

class Generations {
 public:
  // Numbers of flight records that a dump asks for have this bit; the coordinator's have not.
  static constexpr uint64_t kDumpRequest = uint64_t{1} << 63;

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
    // What it offers.
    std::vector<v1::Gpu> gpus;
    Environment environment;
    std::string jobs_dir;
    SupervisorProgram supervisor;
    const Cgroups& cgroups;
    HostLimits limits;
    // For a file system to answer: for the files of a generation, and again for its program.
    std::chrono::nanoseconds file_timeout;
  };
  struct Handler {
    // To the coordinator; dropped where there is no session.
    std::function<void(v1::OpenSessionRequest)> send;
    // The output of the process that was started as this rank of that generation is complete.
    std::function<void(const std::string& job_id, uint64_t generation, int rank)> on_rank_ended;
    // Nothing of the generation is left on this host. The handler must not remove it.
    std::function<void(const std::string& job_id, uint64_t generation)> on_generation_ended;
    // A rank has connected to its job's socket.
    AgentSocket::OnConnection on_agent_connection;
    // To the coordinator, without node and incarnation; lost where it does not answer.
    std::function<void(v1::UploadStackRequest)> upload_stack;
    std::function<void(v1::UploadFlightRecordRequest)> upload_flight_record;
    // How the coordinator's clock stands to this host's; absent: not known yet.
    std::function<std::optional<CoordinatorClock::Comparison>()> clock;
    // What supervisors are told: until when their ranks may run.
    std::function<v1::SupervisorPing()> ping;
  };

  Generations(Host host, Handler handler) : host_(std::move(host)), handler_(std::move(handler)) {}

  // Takes over what an earlier incarnation left; `on_done` is called when the state of all is
  // known, or after two seconds.
  void Adopt(std::function<void()> on_done);
  // The earliest time at which an earlier incarnation sent the last heartbeat that was answered
  // (CLOCK_BOOTTIME), as the supervisors that run know it; absent: nothing was taken over.
  std::optional<std::chrono::nanoseconds> InheritedContact() const;

  // A session has begun, with this Hello: repeats what the coordinator may have missed.
  void OnSession(std::chrono::nanoseconds lease, const v1::Hello& hello);
  // Prepare, Start, Stop, Forget, PeerNews, CollectFlightRecords, Quiesce, Dump, CollectStacks,
  // SignalRanks.
  void Handle(const v1::OpenSessionResponse& message);
  std::vector<v1::RunningGeneration> Running() const;
  // A message for each of those that have been started and have not ended.
  std::vector<v1::OpenSessionRequest> Details() const;

  // The ranks whose processes run now, for metrics.
  std::vector<RunningRank> RunningRanks() const;

  // Renews every supervisor's lease.
  void PingAll();
  // Stops all: with each job's own grace, at most `grace`.
  void StopAll(std::optional<std::chrono::nanoseconds> grace, const std::string& reason);
  // For a worker that stops and has told its coordinator so. Ranks that continue in process get the
  // first half of their grace to stand still, to save and to be told to end; then they are stopped.
  // All other ranks are stopped now.
  void StopAllAfterTheyMoved(const std::string& reason);
  // Marks all running ranks as orphans, which a stop ends for want of a coordinator. Returns true
  // if it marked any.
  bool MarkOrphaned();
  // SIGKILL to every rank: this host's fence time is over.
  void KillAll(const std::string& reason);
  bool AllEnded() const;
  // Longest grace of the generations that have not ended; 0 without any.
  std::chrono::nanoseconds LongestKillGrace() const;
  // For people: which ranks have not ended.
  std::string DescribeRunning() const;
  // The worker is draining: nothing is prepared from now on.
  void Refuse(const std::string& reason);

  // NOT_FOUND (no such generation, or `rank` is not here), FAILED_PRECONDITION (a later one has
  // started), UNAUTHENTICATED (token). rank -1: any.
  absl::StatusOr<Generation*> Authenticate(const v1::Fence& fence, const std::string& token,
                                           int rank = -1);
  // Also of a generation that has ended meanwhile, which Authenticate does not find.
  void RemoveWatcher(GenerationWatcher* watcher);
  // The place of a rank whose process has lived on from the fence's generation into a later one.
  // Errors: as Authenticate.
  absl::StatusOr<v1::RegisterRankResponse> FindSuccessor(const v1::Fence& fence,
                                                         const std::string& token, int rank) const;
  // The rank has registered, or stands still. `answer` is called when that is written, so that a
  // restarted daemon knows it, or when it cannot be written. It is also called after
  // Host::file_timeout, because a file system that hangs must not hold up a rank.
  void Join(Generation& generation, int rank, bool in_process, std::function<void()> answer);
  void ReportQuiesced(Generation& generation, int rank, int64_t step, std::function<void()> answer);
  // A rank is blocked, or no longer: reported to the coordinator, and again in a new session.
  void ReportWait(Generation& generation, const v1::WaitReport& report);
  void WithdrawWait(Generation& generation, int rank);
  void ReportProgress(Generation& generation, int rank, const v1::Progress& progress);
  // Adds what this host knows beside the rank: how its clock stands to the coordinator's, and its
  // last steps.
  void AddTimes(const Generation& generation, v1::FlightRecord* record) const;
  // The flight record that Dump has asked a rank for.
  void WriteFlightRecord(const Generation& generation, const v1::FlightRecord& record);
  // True while the process that was started as this rank may add to its output.
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
    // Ranks have joined or stand still, and the coordinator was not told.
    bool unsaid = false;
    // To ranks, in the order of their calls, until that is written.
    std::map<uint64_t, std::function<void()>> answers;
    // Its record is being written; 0: it has been.
    EventLoop::TimerId saving = 0;
  };
  // Files of a generation that are being written, with its processes' supervisor to come.
  struct Preparing {
    std::shared_ptr<Preparation> preparation;
    EventLoop::TimerId deadline = 0;
  };
  struct Deferred {
    v1::Fence fence;
    v1::Prepare prepare;
  };

  // generations_prepare.cc
  void Prepare(const v1::Fence& fence, const v1::Prepare& prepare);
  // Prepares a generation without processes here: starts a supervisor for it.
  absl::Status Create(const v1::Fence& fence, const v1::Prepare& prepare);
  // Prepares a generation into which processes live on.
  absl::Status Continue(const v1::Fence& fence, const v1::Prepare& prepare);
  absl::StatusOr<std::shared_ptr<RankProcesses>> FindContinuing(const v1::Fence& fence,
                                                                const v1::Prepare& prepare) const;
  absl::StatusOr<v1::GenerationRecord> NewRecord(const v1::Fence& fence, const v1::Prepare& prepare,
                                                 const std::string& token);
  // Where ranks of other users find what is theirs; empty: they are the daemon's user's.
  std::string RanksDirectory(const std::string& job_id) const;
  // Cores of each rank; empty: the job binds none. INVALID_ARGUMENT: they cannot be bound here.
  absl::StatusOr<std::vector<os::CoreSet>> PlanCores(const v1::Prepare& prepare) const;
  v1::SupervisorLaunch PlanLaunch(const v1::GenerationRecord& record, const GenerationPaths& paths,
                                  std::vector<os::CoreSet> cores_of_ranks);
  void OnFilesWritten(const Key& key, const std::shared_ptr<Preparation>& preparation);
  void OnSaved(const Key& key, EventLoop::TimerId saving, const absl::Status& status);
  // Whatever the preparation does from now on, nothing comes of it.
  void GiveUp(const Key& key);
  void AnswerPrepare(const Key& key);
  void RefusePrepare(const v1::Fence& fence, const absl::Status& status, bool bad_command = false);
  absl::Status Silent(const std::string& what) const;
  void Start(const Key& key, const v1::Start& start);
  // The earlier generations of the same processes are over.
  void Supersede(const Key& key);
  // Stops the running ones that the current generation has no ranks for.
  void StopLeftOut(RankProcesses& processes);
  void PrepareDeferred(const std::string& job_id);
  // The socket stays while any generation of the job is here.
  absl::Status OpenAgentSocket(const std::string& job_id);
  void CloseAgentSocketIfUnused(const std::string& job_id);
  bool HasGenerations(const std::string& job_id) const;
  void RemoveLater(const std::string& job_id, const std::string& directory);

  // generations_reports.cc
  RankProcesses::Handler ProcessesHandler();
  void OnReady(RankProcesses& processes);
  void OnUnready(RankProcesses& processes, const v1::ProgramFound& why);
  void OnStarted(RankProcesses& processes, uint64_t generation);
  void OnExit(RankProcesses& processes, const ProcessName& name, const v1::RankExit& exit);
  void OnProgress(RankProcesses& processes, const ProcessName& name,
                  const v1::ProcessProgress& progress);
  void OnEnded(RankProcesses& processes);
  void SendStarted(const Key& key);
  void SendExit(const Key& key, const v1::RankExit& exit);
  void SendEnded(const Key& key);
  // No process of the job is left here.
  void SendEndsAs(const std::string& job_id);
  void SendWaiting(const Key& key, const v1::WaitReport& report);
  void SaveJoined(const Key& key, std::function<void()> answer);
  // Calls the answers up to this number. False: there were none.
  bool Answer(const Key& key, uint64_t last);
  void SendJoined();
  void ScheduleProgress();
  void SendProgress();
  void Send(const Key& key, v1::OpenSessionRequest message);

  // generations_adopt.cc
  void FinishAdoption();

  // generations_stop.cc
  void StopProcesses(RankProcesses& processes, std::chrono::nanoseconds grace,
                     const std::string& reason, int first_signal = 0);
  void GiveUpPreparing();

  // generations_dumps.cc
  // Writes what the ranks' processes do right now into files beside their logs, and uploads where
  // they stand if that is asked for.
  void CollectFlightRecords(Generation& generation, const v1::CollectFlightRecords& command);
  // In place of a rank's own record.
  void AnswerForRank(const Generation& generation, uint64_t request, int rank, std::string why);
  void Dump(Generation& generation, const v1::Dump& dump);
  // Looks where ranks stand, and uploads it.
  void CollectStacks(const Generation& generation, const v1::CollectStacks& command);
  std::string StackFileOf(const Generation& generation, const ProcessName& name) const;
  void UploadStack(const v1::Fence& fence, uint64_t request, v1::RankStack stack);

  // generations.cc
  // A command for a generation that is not here. It ends what runs of earlier ones.
  void HandleAbsent(const Key& key, const v1::OpenSessionResponse& message);
  void SignalRanks(Generation& generation, const v1::SignalRanks& command);
  void Forget(const Key& key);
  // Takes a generation out of the table.
  void Drop(const Key& key);
  void HoldLogs(RankProcesses& processes, uint64_t generation);
  void ReleaseLogs(RankProcesses& processes);
  Entry* Find(const Key& key);
  // Keys of the generations of these processes, ascending.
  std::vector<Key> KeysOf(const RankProcesses& processes) const;
  // The one that has started, and is not over; nullptr: none.
  Entry* Current(const RankProcesses& processes);
  // Highest generation of the job here; 0: none.
  uint64_t HighestOf(const std::string& job_id) const;
  // Processes of the job that have not ended.
  std::shared_ptr<RankProcesses> LiveProcesses(const std::string& job_id) const;

  Host host_;
  Handler handler_;
  StackRequests stacks_{host_.files};
  std::map<Key, Entry> entries_;
  // The session's Hello named them as running, so the coordinator waits for their end. They may be
  // gone since.
  std::set<Key> named_;
  // By job: a generation that is not here, and ends when the processes of earlier ones do.
  std::map<std::string, uint64_t> ends_as_;
  std::map<Key, Preparing> preparing_;
  // By job: they wait until older processes of the job are gone.
  std::map<std::string, Deferred> deferred_;
  // By job.
  std::map<std::string, std::unique_ptr<AgentSocket>> agent_sockets_;
  std::chrono::nanoseconds lease_{std::chrono::seconds(5)};
  bool joined_scheduled_ = false;
  uint64_t last_answer_ = 0;
  bool progress_scheduled_ = false;
  std::string refusal_;
  std::function<void()> on_adopted_;
};

}  // namespace meshrun::worker
