// meshrun run: one job on this host, with a cluster of its own that ends with it.
#include "client/cli/run.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>

#include "client/cli/context.h"
#include "client/cli/follow.h"
#include "client/cli/slurm_step.h"
#include "client/cli/submission.h"
#include "client/job_spec.h"
#include "client/local_cluster.h"
#include "client/run_directory.h"
#include "client/run_registry.h"
#include "core/env_entries.h"
#include "core/exit_codes.h"
#include "core/job_spec.h"
#include "core/os/cores.h"
#include "core/os/host_name.h"
#include "core/os/process.h"
#include "core/proto_time.h"
#include "core/status.h"
#include "core/text.h"

namespace meshrun::client {
namespace {

// The worker's own limit.
constexpr uint32_t kMostSlots = 1u << 20;
// So many ranks may share a core where nothing says what a rank needs.
constexpr uint64_t kRanksOfACore = 8;

// Checks before anything is started: early errors are the clearest. More ranks than cores get the
// slots that they need, unless flags say what a rank needs or what there is.
absl::Status CheckFitsHere(const v1::JobSpec& spec, uint32_t cores, bool asked_for,
                           uint32_t* slots) {
  if (spec.procs_per_node().kind_case() == v1::ProcsPerNode::kGpu) return absl::OkStatus();
  const bool per_core = spec.procs_per_node().kind_case() == v1::ProcsPerNode::kCpu;
  const uint64_t ranks = per_core ? cores : std::max<uint32_t>(spec.procs_per_node().count(), 1);
  const uint64_t each = CpusPerProc(spec);
  if (!asked_for && ranks > cores && ranks <= kRanksOfACore * cores) {
    Say(fmt::format("{} share {}", Count(ranks, "rank"), Count(cores, "core")));
    *slots = std::max(*slots, static_cast<uint32_t>(ranks));
  }
  if (ranks * each <= *slots) return absl::OkStatus();
  if (!asked_for) {
    return absl::InvalidArgumentError(fmt::format(
        "{0} need {1} slots, and this host offers {2} ({3} for each of {4}): start fewer, or let "
        "them share the cores with --slots {1}",
        Count(ranks, "rank"), ranks, kRanksOfACore * cores, kRanksOfACore, Count(cores, "core")));
  }
  return absl::InvalidArgumentError(
      fmt::format("{} x {} need {} slots, and this host offers {} ({}): start fewer, or let them "
                  "share the cores with --slots {}",
                  Count(ranks, "rank"), Count(each, "slot"), ranks * each, *slots,
                  Count(cores, "core"), ranks * each));
}

// As far as it is known before the worker counts its GPUs. `gpus`: how many the user names.
uint32_t RanksHere(const v1::JobSpec& spec, uint32_t cores, uint32_t slots, size_t gpus) {
  switch (spec.procs_per_node().kind_case()) {
    case v1::ProcsPerNode::kCpu:
      return cores;
    case v1::ProcsPerNode::kGpu:
      return gpus > 0 ? static_cast<uint32_t>(gpus) : slots;
    default:
      return std::max<uint32_t>(spec.procs_per_node().count(), 1);
  }
}

// Programs that draw bars ask for the width of their terminal, and ranks have none: they find it
// here, less what stands in front of lines that all of them write.
void OfferColumns(uint32_t ranks, bool tty) {
  const Style style = StyleForRanks(ranks);
  if (!style.terminal) return;
  // What the user has set stays.
  ::setenv("COLUMNS", fmt::format("{}", style.width).c_str(), 0);
  if (tty) ::setenv("LINES", fmt::format("{}", style.height).c_str(), 0);
}

// What only this host can tell, which is the ranks' host too.
absl::Status CheckFilesHere(const v1::JobSpec& spec, const JobContext& context,
                            const std::vector<std::string>& typed) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (!fs::is_directory(spec.working_dir(), error)) {
    return absl::NotFoundError(fmt::format(
        "{}: {}", spec.working_dir(),
        fs::exists(spec.working_dir(), error) ? "this is not a directory" : "no such directory"));
  }
  if (spec.command().empty() || !spec.shipped_job().empty()) return absl::OkStatus();
  const auto variable = context.variable("PATH");
  const std::string* const found = FindEnv(spec.env(), "PATH");
  const std::string path = found != nullptr ? *found : variable.value_or("/usr/bin:/bin");
  MESHRUN_RETURN_IF_ERROR(os::FindCommand(spec.command(0), spec.working_dir(), path).status());
  // The interpreter is there. Was it put before a script that is not?
  const bool script = !typed.empty() && spec.command_size() > 2 && spec.command(0) != typed[0] &&
                      spec.command(2) == typed[0];
  if (script && !fs::exists(fs::path(spec.working_dir()) / typed[0], error)) {
    return absl::NotFoundError(
        fmt::format("{}: no such file", (fs::path(spec.working_dir()) / typed[0]).string()));
  }
  return absl::OkStatus();
}

// What ranks write beside their logs goes with the run's own directory, and a line of the log that
// names a flight record must stay true. `parent`: a directory on the hosts of the job.
void KeepFlightRecords(const JobContext& context, const std::string& parent, v1::JobSpec* spec) {
  constexpr char kVariable[] = "MESHRUN_FLIGHT_RECORD_DIR";
  if (FindEnv(spec->env(), kVariable) != nullptr) return;
  SetEnv(*spec->mutable_env(), kVariable, context.variable(kVariable).value_or(parent));
}

// A job of several hosts has one of these calls on each.
bool IsAcrossHosts(const RendezvousFlags& f, const v1::JobSpec& spec) {
  return spec.max_nodes() > 1 &&
         !(f.node_rank.empty() && f.master_addr.empty() && f.endpoint.empty());
}

// torchrun reads the variable too.
void SetPrefix(const RunFlags& flags, const JobContext& context, RunOutput* output) {
  const std::string text =
      flags.output.prefix_template.empty()
          ? context.variable("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE").value_or("")
          : flags.output.prefix_template;
  if (text.empty()) return;
  const LinePrefix prefix{.text = text,
                          .role = flags.job.role.empty() ? "default" : flags.job.role,
                          .host = os::HostName()};
  output->view.prefix = [prefix](int rank, int local_rank) { return prefix.Of(rank, local_rank); };
}

// Each node may start a number of ranks of its own, unless something depends on their being equal:
// a mesh that fits no other number, or files that are chosen by ranks. Node 0 decides.
bool LeavesRanksToNodes(const RunOutput& output, const v1::JobSpec& spec) {
  return spec.procs_per_node().kind_case() == v1::ProcsPerNode::kCount && spec.mesh().empty() &&
         !output.names_ranks();
}

// On another node than node 0.
absl::Status CheckRanksOfNodes(const RunOutput& output, const v1::Job& job) {
  if (job.spec().procs_per_node().kind_case() != v1::ProcsPerNode::kNode || !output.names_ranks()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "--tee and --redirects with a rank (0:1): which ranks this node gets is known where all "
      "nodes start as many: give node 0 the same, or write 1, 2 or 3");
}

// Other commands of this user find the job by it. A host without a directory for that has no list
// of runs, and its runs are as good.
RunRegistration Register(const v1::Job& job, const LocalCluster& cluster,
                         const Rendezvous* rendezvous) {
  RegisteredRun run{.job_id = job.job_id(), .pid = ::getpid(), .address = cluster.address()};
  if (rendezvous != nullptr) {
    const Options options = rendezvous->ClientOptions();
    run.address = options.address;
    run.tls = options.security.tls;
    run.node = rendezvous->node_name();
    run.hosts = rendezvous->host();
  }
  const auto directory = RunRegistration::DefaultDirectory();
  auto added = directory.ok() ? RunRegistration::Add(*directory, run) : directory.status();
  return added.ok() ? *std::move(added) : RunRegistration();
}

// Not to the ranks, nor to what they start.
void ForgetSecret() { ::unsetenv("MESHRUN_RDZV_SECRET"); }

}  // namespace

int RunJob(const RunFlags& flags) {
  if (flags.trace) ::setenv("MESHRUN_TRACE", "1", 1);
  Trace("main");
  // Before any thread starts: Ctrl-C must reach the follower, and not end this process.
  const auto signals = HandlingOfRun(flags.job.handled_signals, flags.leave_on_signal);
  if (!signals.ok()) return Fail(signals.status());
  os::BlockSignals(signals->Set());
  const JobContext context = RealJobContext();
  // Nothing may change the environment beside a thread that reads it.
  ForgetSecret();
  v1::JobSpec spec;
  if (const absl::Status status = ApplyJobFlags(flags.job, flags.command, context, &spec);
      !status.ok()) {
    return Fail(status);
  }
  if (spec.has_array()) {
    return Fail(absl::InvalidArgumentError(
        "--array: 'meshrun run' runs one job: use 'meshrun submit' on a cluster"));
  }
  absl::StatusOr<std::vector<std::string>> gpus = std::vector<std::string>();
  if (!flags.gpu_ids.empty()) gpus = ParseGpuIds(flags.gpu_ids);
  if (!gpus.ok()) return Fail(Annotate(gpus.status(), "--gpu-ids"));
  std::vector<std::string> ignored = flags.ignored;
  RendezvousFlags rendezvous_flags = flags.rendezvous;
  if (!flags.job.standalone) {
    const absl::Status status = CompleteFromSlurm(context.variable, spec, &rendezvous_flags);
    if (!status.ok()) return Fail(status);
  }
  const bool across_hosts = !flags.job.standalone && IsAcrossHosts(rendezvous_flags, spec);
  if (!across_hosts && spec.min_nodes() > 1) {
    return Fail(absl::InvalidArgumentError(HowToStart(context.variable, spec)));
  }
  if (!across_hosts) {
    const std::vector<std::string> given = flags.rendezvous.Given();
    ignored.insert(ignored.end(), given.begin(), given.end());
    if (flags.leave_on_signal) ignored.push_back("--leave-on-signal");
  }
  for (const std::string& name : ignored) Say(fmt::format("{} has no effect here", name));
  if (const absl::Status status = CheckFilesHere(spec, context, flags.command); !status.ok()) {
    return Fail(status);
  }
  const uint32_t cores = os::WholeCores();
  uint32_t slots = flags.slots != 0 ? flags.slots : DefaultSlots(cores);
  const bool asked_for =
      flags.slots != 0 || flags.job.Given("--cpus-per-proc") || flags.job.Given("--memory");
  if (const absl::Status status = CheckFitsHere(spec, cores, asked_for, &slots); !status.ok()) {
    return Fail(status);
  }

  const uint32_t ranks = RanksHere(spec, cores, slots, gpus->size());
  // Before any thread starts, too.
  OfferColumns(ranks, flags.output.tty);
  std::unique_ptr<Rendezvous> rendezvous;
  int signal = 0;
  if (across_hosts) {
    // There is no job to leave yet.
    auto prepared =
        Rendezvous::Prepare(rendezvous_flags, spec, context, signals->WithoutLeaving(), &signal);
    if (signal != 0) return kExitSignalBase + signal;
    if (!prepared.ok()) return Fail(prepared.status());
    rendezvous = *std::move(prepared);
  }
  RunOutputFlags output_flags = flags.output;
  if (rendezvous != nullptr && !rendezvous->host()) output_flags.input = "none";
  auto output = RunOutput::Prepare(output_flags, ranks);
  if (!output.ok()) return Fail(output.status());
  SetPrefix(flags, context, &*output);
  if (rendezvous != nullptr) {
    std::optional<uint32_t> first;
    if (rendezvous->node_rank() && spec.min_nodes() == spec.max_nodes() &&
        spec.procs_per_node().kind_case() != v1::ProcsPerNode::kGpu) {
      first = *rendezvous->node_rank() * ranks;
    }
    if (const absl::Status status = output->CountFrom(first); !status.ok()) return Fail(status);
  }
  LocalCluster::Options local;
  local.slots = slots;
  local.trace = Trace;
  if (!gpus->empty()) {
    local.worker_flags.insert(local.worker_flags.end(), {"--gpu-ids", flags.gpu_ids});
  }
  output->AddTo(&local);
  if (rendezvous != nullptr) {
    rendezvous->AddTo(&local);
    local.worker_flags.insert(local.worker_flags.end(), {"--ranks", fmt::format("{}", ranks)});
    if (rendezvous->host() && LeavesRanksToNodes(*output, spec)) {
      spec.mutable_procs_per_node()->set_node(true);
    }
  }
  std::unique_ptr<Client> client;
  absl::StatusOr<v1::Job> job;
  if (rendezvous != nullptr && !rendezvous->host()) {
    job = rendezvous->AwaitJob(spec, &client, &signal);
    if (signal != 0) return kExitSignalBase + signal;
    if (!job.ok()) return Fail(job.status());
    if (const absl::Status status = CheckRanksOfNodes(*output, *job); !status.ok()) {
      return Fail(status);
    }
  }
  auto cluster = LocalCluster::Start(local);
  if (!cluster.ok()) return Fail(Annotate(cluster.status(), "the local cluster did not start"));
  if (client == nullptr) {
    // The connection is made while the worker registers.
    Options options;
    if (rendezvous != nullptr) options = rendezvous->ClientOptions();
    options.address = (*cluster)->address();
    auto connected = Client::Connect(options);
    if (!connected.ok()) return Fail(connected.status());
    client = *std::move(connected);
    Trace("connected");
  }
  if (const absl::Status status = (*cluster)->WaitForWorker(); !status.ok()) {
    return Fail(Annotate(status, "the local cluster did not start"));
  }
  if (output->log_dir.empty()) {
    KeepFlightRecords(context, across_hosts ? "/tmp" : RunDirectory::DefaultParent(), &spec);
  }
  if (rendezvous == nullptr) {
    job = Submit(*client, spec, /*must_fit=*/true);
  } else if (rendezvous->host()) {
    rendezvous->SayHost(spec.max_nodes());
    if (!spec.has_queue_timeout()) {
      *spec.mutable_queue_timeout() = ToProtoDuration(rendezvous->timeout());
    }
    // The others are on their way.
    std::string too_big;
    job = Submit(*client, spec, /*must_fit=*/false, "", &too_big);
  }
  if (!job.ok()) return Fail(job.status());
  Trace("submitted");

  const RunRegistration registration = Register(*job, **cluster, rendezvous.get());
  if (!output->log_dir.empty()) {
    Say(fmt::format("what the ranks write is kept in {}/{}", output->log_dir, job->job_id()));
  }

  FollowOptions follow;
  follow.view = output->view;
  follow.view.why_lost = fmt::format(
      "{} has no room for it, or it is more than {} of one stream; --log-dir DIR keeps all",
      (*cluster)->directory(), FormatBytes(output->log_limit_bytes));
  follow.must_show_all = true;
  follow.can_ask_later = false;
  follow.detach_on_hangup = false;
  // The coordinator's node stays, and so does the only one.
  const bool can_leave = rendezvous != nullptr && !rendezvous->host();
  follow.signals = can_leave ? *signals : signals->WithoutLeaving();
  follow.json = flags.format == "json";
  follow.patience = std::chrono::seconds(2);
  for (DaemonProcess* daemon : (*cluster)->daemons()) {
    follow.needed.push_back({daemon->ended_fd(), [daemon] { return daemon->DescribeEnd(); }});
  }
  if (rendezvous == nullptr) return Follow(*client, *job, follow);
  follow.only_node = rendezvous->node_name();
  follow.can_leave = can_leave;
  if (!rendezvous->host()) follow.coordinator_lost = [&] { return rendezvous->Lost(); };
  const int code = Follow(*client, *job, follow);
  if (rendezvous->host()) rendezvous->AwaitOthers(*client);
  return code;
}

void AddRun(FlagSet& root, Commands* commands) {
  auto values = std::make_shared<RunFlags>();
  FlagSet flags = root.Command("run",
                               "Runs a job on this host, as torchrun --standalone does\n\n"
                               "Starts a coordinator and a worker for this job alone, shows what "
                               "the ranks write, and ends with them;\n"
                               "nothing stays behind. The first word that is not a flag begins "
                               "the command of each rank.");
  flags.Examples(
      "  meshrun run --nproc 4 -- ./train --steps 100      four ranks of a program\n"
      "  meshrun run --nproc 2 train.py --lr 1e-3          a script, by python3 unless it is "
      "executable\n"
      "  meshrun run --nproc gpu -m package.train          a rank per GPU of a Python module\n"
      "  meshrun run --nproc 4 --mesh dp=-1,spatial=2 -- ./train\n"
      "  meshrun run --job geoid -- --steps 300            a job that ships with meshrun\n"
      "  meshrun run --nnodes 2 --node-rank 0 --master-addr gpu0 train.py     on gpu0; it prints a "
      "secret\n"
      "  MESHRUN_RDZV_SECRET=... meshrun run --nnodes 2 --node-rank 1 --master-addr gpu0 train.py\n"
      "  srun meshrun run --nnodes $SLURM_NNODES train.py  on all nodes of a Slurm job, a task on "
      "each\n"
      "\n"
      "Ctrl-C cancels the job: its ranks get SIGINT, then SIGTERM. A second Ctrl-C kills it. "
      "Ctrl-Z "
      "stops this node's\n"
      "ranks, and fg continues them. SIGUSR1 and SIGUSR2 go to the ranks. torchrun's PET_*\n"
      "variables stand for flags that are not given. Exit codes: 0 ok, 1 the job failed, 2 the "
      "call "
      "is wrong, 130\n"
      "after Ctrl-C.");
  flags.ListUnder("Run jobs");
  flags.TakesCommand();
  AddJobFlags(flags, &values->job);
  flags.Section("How large");
  flags.Number("--slots", &values->slots,
               "CPU slots of this host (default: its cores, at least 8; up to 8 ranks share a core "
               "where no flag says what a rank needs)",
               1, kMostSlots);
  flags.Text("--gpu-ids", &values->gpu_ids, "IDS",
             "GPUs of this host that its ranks may have, by number or UUID, for example 1,3,5 "
             "(default: all that CUDA_VISIBLE_DEVICES leaves)");
  AddRunOutputFlags(flags, &values->output);
  AddOutputFlag(flags, &values->format);
  AddRendezvousFlags(flags, &values->rendezvous);
  flags.Switch("--leave-on-signal", &values->leave_on_signal,
               "SIGTERM makes this node leave the job, which goes on, as 'meshrun leave' does; on "
               "node 0 it cancels the job, as without the flag");
  flags.Section("");
  flags.Switch("--trace-startup", &values->trace, "Say when each phase of the start ends");
  for (const char* name : {"--monitor-interval", "--start-method"}) {
    flags.Ignored(name, &values->ignored);
  }
  commands->push_back({flags.app(), [values] { return RunJob(*values); }, &values->command,
                       /*reads_pet=*/true});
}

}  // namespace meshrun::client
