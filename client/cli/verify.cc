// meshrun verify: the shipped job `verify`, with what it needs. Where each task of srun, mpirun or
// torchrun calls this command, the task becomes a rank; with flags that say how many ranks a node
// has, one task of srun on each node starts them.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>

#include "client/cli/context.h"
#include "client/cli/run.h"
#include "client/job_context.h"
#include "core/exit_codes.h"
#include "core/os/process.h"
#include "core/status.h"

namespace meshrun::client {
namespace {

constexpr char kJob[] = "verify";
// The job's stages have a deadline of their own, within 3 minutes; this one ends ranks that hang.
constexpr char kTimeLimit[] = "10m";

struct VerifyFlags {
  std::string procs;
  std::string nodes;
  std::string directory = ".";
  std::string report = "meshrun-verify.json";
  bool gpu_check = false;
  std::string output;
  RendezvousFlags rendezvous;
};

std::vector<std::string> Arguments(const VerifyFlags& flags) {
  return {"--dir", flags.directory, "--report", flags.report};
}

// Runs the tests of a bundle that need a GPU, which print a table of their own. What the job
// is told of them: "passed", "failed", "no-gpu".
absl::StatusOr<std::string> CheckGpu() {
  const auto program =
      std::filesystem::path(os::SelfPath()).parent_path().parent_path() / "gpu-check";
  if (::access(program.c_str(), X_OK) != 0) {
    return absl::NotFoundError(
        fmt::format("--gpu-check: there is no {}: a tree of 'tools/bundle --tests gpu' has it",
                    program.string()));
  }
  MESHRUN_ASSIGN_OR_RETURN(const pid_t pid, os::Spawn({.argv = {program}, .new_session = false}));
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status)) return "failed";
  // Its own words for a machine without one.
  constexpr int kNoGpu = 77;
  return WEXITSTATUS(status) == 0 ? "passed" : WEXITSTATUS(status) == kNoGpu ? "no-gpu" : "failed";
}

// The variable by which another launcher says that this process is one of several ranks; empty:
// none does. parallel/manager/environment.h, which the client must not use, lists all that the rank
// reads: a launcher that is new there belongs here too.
std::string SeveralRanks(const JobContext& context) {
  const auto number = [&](const char* name) {
    const std::string text = context.variable(name).value_or("");
    int value = 0;
    std::from_chars(text.data(), text.data() + text.size(), value);
    return value;
  };
  const auto is_set = [&](const char* name) { return context.variable(name).has_value(); };
  // A batch script of Slurm has the number of tasks too, and is none of them.
  const bool is_slurm_task = is_set("SLURM_PROCID") && is_set("SLURM_STEP_ID");
  for (const char* name : {"SLURM_NPROCS", "SLURM_NTASKS"}) {
    if (is_slurm_task && number(name) > 1) return name;
  }
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    if (number(name) > 1) return name;
  }
  // PALS may leave the size to the PMI library. The rank says what it misses.
  if (is_set("PALS_RANKID") && !is_set("PMI_SIZE")) return "PALS_RANKID";
  return is_set("RANK") && is_set("MASTER_ADDR") && number("WORLD_SIZE") > 1 ? "WORLD_SIZE" : "";
}

// The surroundings without the shell of salloc that is a step of its own
// (LaunchParameters=use_interactive_step): it has one task, and the job's number of tasks beside
// that.
JobContext WithoutShellOfSlurm(JobContext context) {
  if (context.variable("SLURM_STEP_NUM_TASKS") != "1") return context;
  context.variable = [all = context.variable](const std::string& name) {
    return name == "SLURM_STEP_ID" ? std::nullopt : all(name);
  };
  return context;
}

// A process that another launcher has started, with flags that say which ranks to start here. One
// task of srun on each node does so, as with 'meshrun run': then `*several` becomes empty, and
// `*nodes` is set.
absl::Status TakeFlags(const VerifyFlags& flags, const JobContext& context, std::string* several,
                       std::string* nodes) {
  std::vector<std::string> given = flags.rendezvous.Given();
  if (!flags.nodes.empty()) given.push_back("--nnodes");
  if (!flags.procs.empty()) given.push_back("--nproc-per-node");
  if (several->empty() || given.empty()) return absl::OkStatus();
  const bool is_slurm = several->starts_with("SLURM_");
  const auto tasks = context.variable("SLURM_STEP_NUM_TASKS");
  if (is_slurm && tasks && tasks == context.variable("SLURM_STEP_NUM_NODES")) {
    several->clear();
    if (nodes->empty()) *nodes = *tasks;
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(fmt::format(
      "{}: {} says that this process is one of several ranks, which start no others: leave "
      "these flags out, or start 'meshrun verify' once on each host ({})",
      fmt::join(given, ", "), *several,
      is_slurm ? "srun --ntasks-per-node=1" : "without " + *several));
}

int BecomeRank(const VerifyFlags& flags, bool gpus) {
  const auto worker = os::FindOwnProgram("meshrun-worker");
  if (!worker.ok()) return Fail(worker.status());
  const std::string program = ShippedJobProgram(*worker, kJob, gpus);
  if (program.empty()) {
    Say(
        fmt::format("there is no job '{}' beside {}: build it (it needs LibTorch): bazel build "
                    "//jobs/verify",
                    kJob, *worker));
    return kExitNotFound;
  }
  std::vector<std::string> words = Arguments(flags);
  words.insert(words.begin(), program);
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  ::execv(program.c_str(), argv.data());
  Say(fmt::format("{}: {}", program, std::strerror(errno)));
  return kExitNotExecutable;
}

int Run(const VerifyFlags& flags) {
  const JobContext context = RealJobContext();
  std::string several = SeveralRanks(WithoutShellOfSlurm(context));
  std::string nodes = flags.nodes;
  if (const absl::Status status = TakeFlags(flags, context, &several, &nodes); !status.ok()) {
    return Fail(status);
  }
  if (flags.gpu_check && (!several.empty() || !nodes.empty())) {
    return Fail(absl::InvalidArgumentError(
        fmt::format("--gpu-check is for one host: leave out {}, or call DIR/gpu-check on each host",
                    several.empty() ? "--nodes" : "the launcher that sets " + several)));
  }
  if (!several.empty()) return BecomeRank(flags, context.has_gpu);
  RunFlags run;
  run.command = Arguments(flags);
  if (flags.gpu_check) {
    const auto result = CheckGpu();
    if (!result.ok()) return Fail(result.status());
    run.command.insert(run.command.end(), {"--gpu-check", *result});
  }
  const auto set = [&](const char* flag, const std::string& value) {
    run.job.fields[flag] = {value};
  };
  set("--job", kJob);
  // Two ranks of a host show what ranks of a host do.
  set("--procs-per-node", !flags.procs.empty() ? flags.procs : context.has_gpu ? "gpu" : "2");
  if (!nodes.empty()) set("--nodes", nodes);
  // One rank is killed and started again.
  set("--max-restarts", "1");
  set("--time-limit", kTimeLimit);
  // Rank 0 speaks for all.
  run.output.local_ranks_filter = "0";
  run.output.input = "none";
  run.rendezvous = flags.rendezvous;
  run.format = flags.output;
  return RunJob(run);
}

}  // namespace

void AddVerify(FlagSet& root, Commands* commands) {
  auto values = std::make_shared<VerifyFlags>();
  FlagSet flags = root.Command(
      "verify",
      "Verifies that this site computes right, and how fast it is\n\n"
      "Runs the shipped job 'verify': what there is, collectives, transforms and "
      "sharded tensors against known\n"
      "values, rates of memory, links and files, clocks, a checkpoint, and a rank that "
      "is killed. Prints a table and\n"
      "writes a JSON file without names of hosts or users. Exit code 1 where something "
      "is wrong, which is named.");
  flags.Examples(
      "  meshrun verify                                this host: a rank per GPU, else two ranks\n"
      "  meshrun verify --dir /scratch                 the file system that checkpoints will use\n"
      "  meshrun verify --nnodes 2 --node-rank 0 --master-addr gpu0     on gpu0; as 'meshrun run'\n"
      "  srun --ntasks-per-node 2 meshrun verify       each task is a rank; so with mpirun\n"
      "  srun --ntasks-per-node 1 meshrun verify --nproc-per-node gpu    a rank per GPU of each "
      "node\n"
      "  meshrun submit --follow --nodes 2 --max-restarts 1 --job verify    on a cluster\n"
      "\n"
      "docs/verify.md says what each row means, and what to send back.");
  flags.ListUnder("Set up");
  flags.Text("--dir", &values->directory, "DIR",
             "A directory on the file system to verify (default: this one)");
  flags.Text("--report", &values->report, "FILE",
             "The JSON file of rank 0 (default meshrun-verify.json); /dev/null: none");
  flags.Switch("--gpu-check", &values->gpu_check,
               "First run the bundle's tests of kernels on a GPU, which take longer");
  flags.Section("How large");
  flags.Text("--procs-per-node,--nproc-per-node,--nproc", &values->procs, "N|gpu|cpu",
             "Ranks on each host (default: a rank per GPU, else 2)");
  flags.Text("--nodes,--nnodes", &values->nodes, "N", "Hosts (default 1)");
  AddOutputFlag(flags, &values->output);
  AddRendezvousFlags(flags, &values->rendezvous);
  commands->push_back({flags.app(), [values] { return Run(*values); }});
}

}  // namespace meshrun::client
