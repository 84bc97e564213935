// A rank's line to the worker daemon of its host, and through it to the coordinator.
//
// Everything a rank says or hears crosses this header: who it is, the store, barriers, unique ids,
// process groups, progress, and the news that its generation is being stopped. No gRPC or protobuf
// type appears here, so parallel/ can include it beside LibTorch.
//
// Threads: every method may be called from any thread. Calls that wait hold no lock. A broken
// connection to the daemon, or of the daemon to the coordinator, is retried until the call's
// timeout; calls that change something carry a request id, so a retry never counts twice.
//
// Errors, on every method: FAILED_PRECONDITION (this generation is over), UNAVAILABLE (the daemon
// or the coordinator could not be reached within the timeout), CANCELLED (the agent is being
// destroyed).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/report.h"
#include "core/clock.h"
#include "core/mesh.h"
#include "core/wait_board.h"

namespace meshrun::agent {

using Milliseconds = std::chrono::milliseconds;

// This rank's place in its generation.
struct Assignment {
  std::string job_id;
  uint64_t generation = 0;
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  int node_rank = 0;
  int node_count = 1;
  std::string node_name;
  // Where rank 0's host is reached; the port is reserved for this generation alone.
  std::string master_addr;
  int master_port = 0;
  // Empty when the job was submitted without --mesh. Slowest axis first.
  std::vector<Axis> mesh;
};

// Where the ranks of the generation are, by rank.
struct WorldTable {
  std::vector<int> node_ranks;
  // Where ranks of other hosts reach the rank's host.
  std::vector<std::string> addresses;
};

// Why the ranks are to stand still at the end of a step.
struct Quiesce {
  std::string reason;
  // A checkpoint is wanted first.
  bool save = false;
  // What they have for it.
  Milliseconds deadline{0};
};

// The newest checkpoint of a name, as the coordinator knows it.
struct Checkpoint {
  int64_t step = 0;
  // SHA-256 of its manifest.
  std::string digest;
  // Where it lies until it is renamed.
  std::string temporary;
  uint64_t generation = 0;
};

// News of the generation. The agent calls these on a thread of its own, one at a time. Past events
// are replayed first and may repeat. Verdicts never repeat: if one listener has heard a verdict,
// later listeners do not hear it again.
struct GenerationListener {
  std::function<void(int rank, const std::string& reason)> on_lost;
  // Exited with code 0.
  std::function<void(int rank)> on_left;
  // The generation is being stopped.
  std::function<void(const std::string& reason)> on_stopping;
  // Ranks wait for each other, or for one that has left, and would wait for ever.
  std::function<void(const WaitVerdict& verdict)> on_verdict;
  // A person asks for this rank's flight record, with so many operations of each group at most; 0:
  // the usual number. Returns JSON; an empty text: there is none. Optional: a listener without it
  // leaves the answer to another.
  std::function<std::string(int most_operations)> flight_record;
  // The rank is to stand still at the end of a step: ReportQuiesced, then NextGeneration. Optional.
  std::function<void(const Quiesce&)> on_quiesce;
  // The job continues in a later generation that has a place for this process: call NextGeneration.
  // The reason why this generation ended may stay unknown, because the coordinator that knew it may
  // be gone. Optional.
  std::function<void(uint64_t generation)> on_superseded;
};

class Agent {
 public:
  // Connects to the daemon named by MESHRUN_AGENT and registers this process as the rank named by
  // MESHRUN_JOB_ID, MESHRUN_GENERATION, RANK and MESHRUN_TOKEN.
  // Errors: INVALID_ARGUMENT (a variable is missing or malformed, named), NOT_FOUND (the daemon
  // runs no such rank), UNAUTHENTICATED (wrong token), DEADLINE_EXCEEDED.
  static absl::StatusOr<std::unique_ptr<Agent>> Connect(Milliseconds timeout = Milliseconds(30000));

  virtual ~Agent() = default;

  virtual const Assignment& assignment() const = 0;
  // The daemon fetches it once for all its ranks.
  virtual absl::StatusOr<WorldTable> World(Milliseconds timeout) = 0;

  // --- store, keyed by (job, generation) ---
  virtual absl::Status Set(std::string_view key, std::string_view value) = 0;
  virtual absl::Status MultiSet(const std::vector<std::string>& keys,
                                const std::vector<std::string>& values) = 0;
  // Waits until the key exists. DEADLINE_EXCEEDED names the missing key.
  virtual absl::StatusOr<std::string> Get(std::string_view key, Milliseconds timeout) = 0;
  // `stop` ends the wait with CANCELLED.
  virtual absl::StatusOr<std::vector<std::string>> MultiGet(const std::vector<std::string>& keys,
                                                            Milliseconds timeout,
                                                            const std::stop_token& stop) = 0;
  virtual absl::Status Wait(const std::vector<std::string>& keys, Milliseconds timeout) = 0;
  virtual absl::StatusOr<bool> Check(const std::vector<std::string>& keys) = 0;
  // INVALID_ARGUMENT: the stored value is not a decimal integer.
  virtual absl::StatusOr<int64_t> Add(std::string_view key, int64_t amount) = 0;
  // Returns the value afterwards. Where the key is missing and `expected` is not empty it returns
  // `expected`, as c10d's stores do.
  virtual absl::StatusOr<std::string> CompareSet(std::string_view key, std::string_view expected,
                                                 std::string_view desired) = 0;
  virtual absl::Status Append(std::string_view key, std::string_view value) = 0;
  virtual absl::StatusOr<bool> Delete(std::string_view key) = 0;
  virtual absl::StatusOr<int64_t> CountKeys() = 0;

  // Returns when all `ranks` (empty: the whole generation) have entered `name`. DEADLINE_EXCEEDED
  // names the missing ranks; ABORTED names a member that has exited.
  virtual absl::Status Barrier(std::string_view name, const std::vector<int>& ranks,
                               Milliseconds timeout) = 0;

  // One-shot exchange of NCCL's unique id for a group. ALREADY_EXISTS where another value was
  // published.
  virtual absl::Status PublishUniqueId(std::string_view group, std::string_view unique_id) = 0;
  virtual absl::StatusOr<std::string> AwaitUniqueId(std::string_view group,
                                                    Milliseconds timeout) = 0;

  // Announces a process group to the coordinator. It takes the place of groups of that name
  // that share a rank with it. INVALID_ARGUMENT: ranks that the world does not have.
  virtual absl::Status RegisterGroup(std::string_view name, const std::vector<int>& ranks,
                                     std::string_view backend) = 0;

  // Reports progress through the datagram socket: never blocks; dropped when the socket's buffer is
  // full.
  virtual void Report(const Progress& progress) = 0;
  // Reports what must arrive, for example the final result.
  virtual absl::Status ReportReliably(const Progress& progress) = 0;

  // Tells whether collectives of this rank are under way from now on, at this time of the host's
  // steady clock: the rank waits for other ranks then. The first call says that this is told at
  // all. From then on the rank's reports carry the total time for which this process has waited,
  // the waits of this agent's own calls included (agent/background.h), each moment once. The total
  // shows which rank is slow even when all ranks report equally long steps. Never blocks.
  virtual void SetCollectives(bool /*under_way*/, SteadyNanos /*at*/) {}
  // Adds bytes that this rank's collectives have sent to other ranks: another total of the process.
  // Never blocks.
  virtual void AddSent(uint64_t /*bytes*/) {}

  // Calls `on_stop(reason)` once, on a thread of the agent, when the generation is being stopped.
  virtual void OnStop(std::function<void(std::string)> on_stop) = 0;

  // Calls `listener` until the generation or the agent ends.
  virtual void Watch(GenerationListener listener) = 0;
  // Says that this rank has been blocked in an operation for WaitBoard::kReportAfter; replaces its
  // last report. The coordinator compares the reports of all ranks and sends its verdict to the
  // listener of Watch.
  virtual absl::Status ReportWait(const WaitReport& report, Milliseconds timeout) = 0;
  // Says that this rank is no longer blocked.
  virtual absl::Status WithdrawWait(Milliseconds timeout) = 0;

  // --- generations that change in process; docs/protocol.md ---

  // Says whether this process can take another generation without being started again. Until it has
  // said so, it cannot.
  virtual absl::Status SetInProcess(bool can, Milliseconds timeout) = 0;
  // Waits for the generation that follows this one, and returns this process's agent there, which
  // has said SetInProcess(true). This agent is good for nothing else afterwards: destroy it when
  // nothing uses it any more. Errors: ABORTED (the generation is being stopped: no other one
  // follows for this process), DEADLINE_EXCEEDED (neither has happened yet: call it again),
  // FAILED_PRECONDITION (this process has no place any more).
  virtual absl::StatusOr<std::unique_ptr<Agent>> NextGeneration(Milliseconds timeout) = 0;
  // Says that this rank has passed the last barrier of its work, so that every rank of the
  // generation has done its part. Durable when it returns ok: from then on no end of a rank or of a
  // host starts the job again; a rank that exits with another code than 0 still fails it. May be
  // repeated. FAILED_PRECONDITION: the generation has failed before; another one may follow.
  virtual absl::Status ReportFinished(Milliseconds timeout) = 0;
  // Whether a rank of this generation has said so. FAILED_PRECONDITION: as ReportFinished.
  virtual absl::StatusOr<bool> HasFinished(Milliseconds timeout) = 0;
  // This rank stands still after so many steps, as GenerationListener::on_quiesce asked.
  virtual absl::Status ReportQuiesced(int64_t step, Milliseconds timeout) = 0;

  // Makes a checkpoint that lies complete at `temporary` the newest of `name`: rename it only after
  // ok. `expected`: the step of the newest commit as the caller knows it; absent: there is none.
  // FAILED_PRECONDITION: another generation holds the job's checkpoint right, or the newest commit
  // is another one.
  virtual absl::Status CommitCheckpoint(std::string_view name, int64_t step,
                                        std::string_view digest, std::string_view temporary,
                                        std::optional<int64_t> expected) = 0;
  // Absent: nothing was committed under this name.
  virtual absl::StatusOr<std::optional<Checkpoint>> CommittedCheckpoint(std::string_view name) = 0;
};

}  // namespace meshrun::agent
