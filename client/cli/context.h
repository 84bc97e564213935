// What the commands share: where the coordinator is, how output looks, and how errors end the
// program.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "client/cli/flag_set.h"
#include "client/client.h"
#include "client/render/style.h"
#include "client/run_registry.h"
#include "core/json/json.h"

namespace meshrun::client {

// The coordinator's flags, on every command that talks to one.
struct CoordinatorFlags {
  std::string address;
  rpc::Security security;
  std::string timeout;
};
void AddCoordinatorFlags(FlagSet& flags, CoordinatorFlags* values);

// To the coordinator that the flags name, else client/coordinator_address.h finds it.
absl::StatusOr<std::unique_ptr<Client>> ConnectTo(const CoordinatorFlags& flags);
// The same for what concerns a job, of which the start of its id is given. Where nothing names a
// coordinator and the job is a `meshrun run` of this user on this host: to that run's coordinator.
// INVALID_ARGUMENT: the ids of several runs begin like that, or those of a run and of a job of the
// coordinator that is found without the run.
absl::StatusOr<std::unique_ptr<Client>> ConnectTo(const CoordinatorFlags& flags,
                                                  const std::string& job);
// The same, with what it was reached by: for its HTTP port.
struct Connection {
  std::unique_ptr<Client> client;
  rpc::Security security;
};
absl::StatusOr<Connection> Connect(const CoordinatorFlags& flags, const std::string& job);
// The `meshrun run` calls of this user on this host; none where flags or MESHRUN_COORDINATOR name a
// coordinator.
std::vector<RegisteredRun> RunsHere(const CoordinatorFlags& flags);
absl::StatusOr<std::unique_ptr<Client>> ConnectTo(const CoordinatorFlags& flags,
                                                  const RegisteredRun& run);

// As ConnectTo(flags, job), for many jobs: one connection to each coordinator.
class Connections {
 public:
  explicit Connections(const CoordinatorFlags& flags) : flags_(flags), runs_(RunsHere(flags)) {}
  absl::StatusOr<Client*> To(const std::string& job);

 private:
  const CoordinatorFlags& flags_;
  const std::vector<RegisteredRun> runs_;
  // By address; the empty one: the coordinator that is not a run's.
  std::map<std::string, std::unique_ptr<Client>> clients_;
};

// The value of --ranks, such as "0,2-5"; empty: all ranks. INVALID_ARGUMENT: the flag, and what is
// wrong.
absl::StatusOr<std::vector<int>> ParseRanksFlag(const std::string& text);

void AddOutputFlag(FlagSet& flags, std::string* output);

// Style of standard output (fd 1) or error (fd 2), as it is now.
Style StyleOf(int fd);
std::chrono::nanoseconds WallNow();

// What the shell gets for an error.
int ExitCodeOf(const absl::Status& status);
// Text to standard output. The first failure is remembered for FlushOutput.
void Print(std::string_view text);
// Flushes stdio. Returns the errno of the first write to standard output that ever failed; 0: none.
// We remember it because stdio does not: it drops the bytes, and its next flush succeeds.
int FlushOutput();
// The text as Say prints it: without control characters, except the line breaks before a daemon's
// log lines (kLogLine).
std::string Sentence(std::string_view text);
// "meshrun: <text>" on standard error.
void Say(std::string_view text);
// Says it and returns its exit code.
int Fail(const absl::Status& status);

// On standard error, milliseconds since the process began, where MESHRUN_TRACE is set.
void Trace(const char* phase);

// Jobs that ship with the meshrun of this worker program, in natural order.
std::vector<std::string> ShippedJobs(const std::string& worker);
// The program of one of them; with `gpus` that for GPUs where there is one. Empty: there is none.
std::string ShippedJobProgram(const std::string& worker, const std::string& job, bool gpus);

// One command: its flags and what it does. `rest`: where the user's own command goes, for those
// that run one.
struct Command {
  CLI::App* app = nullptr;
  std::function<int()> run;
  std::vector<std::string>* rest = nullptr;
  // torchrun's PET_* variables stand for flags that are not given.
  bool reads_pet = false;
};
using Commands = std::vector<Command>;

void AddRun(FlagSet& root, Commands* commands);
void AddSubmit(FlagSet& root, Commands* commands);
void AddPs(FlagSet& root, Commands* commands);
void AddDescribe(FlagSet& root, Commands* commands);
void AddLogs(FlagSet& root, Commands* commands);
void AddCheckpoint(FlagSet& root, Commands* commands);
void AddCa(FlagSet& root, Commands* commands);
void AddCancel(FlagSet& root, Commands* commands);
void AddLeave(FlagSet& root, Commands* commands);
void AddQueue(FlagSet& root, Commands* commands);
void AddEvents(FlagSet& root, Commands* commands);
void AddWhy(FlagSet& root, Commands* commands);
void AddWait(FlagSet& root, Commands* commands);
void AddSignal(FlagSet& root, Commands* commands);
void AddTrace(FlagSet& root, Commands* commands);
void AddMetrics(FlagSet& root, Commands* commands);
void AddStack(FlagSet& root, Commands* commands);
void AddTop(FlagSet& root, Commands* commands);
void AddPage(FlagSet& root, Commands* commands);
void AddLimits(FlagSet& root, Commands* commands);
void AddBackup(FlagSet& root, Commands* commands);
void AddUsage(FlagSet& root, Commands* commands);
void AddAudit(FlagSet& root, Commands* commands);
void AddNodes(FlagSet& root, Commands* commands);
void AddNode(FlagSet& root, Commands* commands);
void AddDev(FlagSet& root, Commands* commands);
void AddDoctor(FlagSet& root, Commands* commands);
void AddVerify(FlagSet& root, Commands* commands);
void AddCompletion(FlagSet& root, Commands* commands);
void AddVersion(FlagSet& root, Commands* commands);

}  // namespace meshrun::client
