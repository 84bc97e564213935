#include "client/cli/job_flags.h"

#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <filesystem>

#include "client/job_spec.h"
#include "core/job_spec.h"
#include "core/labels.h"
#include "core/os/process.h"
#include "core/proto_time.h"
#include "core/status.h"
#include "core/text.h"

namespace meshrun::client {
namespace {

template <typename Int>
absl::StatusOr<Int> ParseNumber(std::string_view flag, const std::string& text, Int min) {
  Int value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < min) {
    return absl::InvalidArgumentError(fmt::format("{} {}: write a whole number{}", flag, text,
                                                  min < 0 ? "" : fmt::format(" from {} up", min)));
  }
  return value;
}

absl::Status SetVariable(const std::string& text, const JobContext& context, v1::JobSpec* spec) {
  const size_t equals = text.find('=');
  const std::string name = text.substr(0, equals);
  if (name.empty()) {
    return absl::InvalidArgumentError(
        fmt::format("--env {}: write NAME=VALUE, or NAME to pass yours on", text));
  }
  if (equals != std::string::npos) {
    (*spec->mutable_env())[name] = text.substr(equals + 1);
    return absl::OkStatus();
  }
  const auto value = context.variable(name);
  if (!value) {
    return absl::InvalidArgumentError(
        fmt::format("--env {}: {} is not set here: write --env {}=VALUE, or export it first", name,
                    name, name));
  }
  (*spec->mutable_env())[name] = *value;
  return absl::OkStatus();
}

absl::Status SetCommand(const JobFlags& flags, const std::vector<std::string>& command,
                        const JobContext& context, v1::JobSpec* spec) {
  if (flags.module && command.empty()) {
    return absl::InvalidArgumentError(
        "-m needs a module: meshrun run -m package.train --its-flags");
  }
  if (command.empty()) return absl::OkStatus();
  const std::string python = context.variable("PYTHON_EXEC").value_or("python3");
  spec->clear_command();
  if (spec->shipped_job().empty()) {
    if (flags.module) {
      for (const std::string& word : {python, std::string("-u"), std::string("-m")})
        spec->add_command(word);
    } else if (!flags.no_python && NeedsPython(command[0], context.find_program(command[0]).ok())) {
      for (const std::string& word : {python, std::string("-u")}) spec->add_command(word);
    }
  }
  for (const std::string& word : command) spec->add_command(word);
  return absl::OkStatus();
}

}  // namespace

void AddJobFlags(FlagSet& flags, JobFlags* f) {
  flags.Section("How large");
  flags.Text("--nodes,--nnodes", &f->nodes, "N|MIN:MAX",
             "Number of hosts, or at least and at most (default 1)");
  flags.Text("--procs-per-node,--nproc-per-node,--nproc", &f->procs_per_node, "N|gpu|cpu",
             "Ranks on each host; gpu: one per GPU, cpu: one per core (default 1)");
  flags.Text("--mesh", &f->mesh, "AXIS=SIZE,...", "Name the axes of the ranks; -1: what is left");
  flags.Section("What each rank needs");
  flags.Text("--gpus-per-proc", &f->gpus_per_proc, "N",
             "GPUs of a rank (default: 1 where there are some)");
  flags.Text("--cpus-per-proc", &f->cpus_per_proc, "N", "CPU slots of a rank (default 1)");
  flags.Text("--memory", &f->memory, "SIZE", "Memory of a rank, for example 4G");
  flags.Texts("--env", &f->env, "NAME[=VALUE]",
              "Set a variable; without a value: pass yours on; repeatable");
  flags.Section("When and where it runs");
  flags.Text("--priority", &f->priority, "N", "Higher runs first (default 0)");
  flags.Texts("--constraint", &f->constraints, "LABEL",
              "Only on nodes with this label: zone=a, zone!=a, nvlink or !spot; repeatable");
  flags.Texts("--exclude", &f->exclude_nodes, "NODE", "Not on this node; repeatable");
  flags.Switch("--hold", &f->hold, "Wait in the queue until 'meshrun release'");
  flags.Section("What runs");
  flags.Text("--job", &f->shipped_job, "NAME",
             "A job that ships with meshrun; the command is its arguments");
  flags.Text("--name", &f->name, "NAME", "Name of the job (default: from the command)");
  flags.Text("--working-dir", &f->working_dir, "DIR", "Directory of the ranks (default: this one)");
  flags.Switch("-m,--module", &f->module, "The command is a Python module: python3 -m");
  flags.Switch("--no-python", &f->no_python, "Never run a .py by python3");
  flags.Section("When things go wrong");
  flags.Text("--max-restarts", &f->max_restarts, "N",
             "Restarts after failures without progress between them (default 0)");
  flags.Text(
      "--recovery", &f->recovery, "auto|respawn",
      "After a failure: ranks that live go on in process where they can (auto, the default), "
      "or all are started anew");
  flags.Text("--replace", &f->replace, "at-once",
             "Start ranks in a lost node's place before its fence time: nothing that its own ranks "
             "still write does harm");
  flags.Text(
      "--grow", &f->grow, "checkpoint|at-once|never",
      "When nodes come for which --nodes leaves room (default checkpoint: after the next one)");
  flags.Text(
      "--kill-grace", &f->kill_grace, "TIME",
      fmt::format("From SIGTERM to SIGKILL (default {})", FormatDuration(kDefaultKillGrace)));
  flags.Text("--hang-timeout", &f->hang_timeout, "TIME",
             "Without a further step for so long the job hangs: its state is dumped, and it is "
             "restarted; 0: never (default: learned from its steps, at least 2m)");
  flags.Text("--queue-timeout", &f->queue_timeout, "TIME",
             "Give up when it has not started by then");
  flags.Text("--time-limit", &f->time_limit, "TIME",
             "Stop it, with its grace, when its ranks have run so long");
  flags.Section("");
  flags.Switch("--standalone", &f->standalone, "As torchrun's; has no effect");
  flags.Section("Flags");
}

JobContext RealJobContext() {
  JobContext context;
  std::error_code error;
  context.working_dir = std::filesystem::current_path(error).string();
  context.has_gpu = ::access("/dev/nvidia0", F_OK) == 0;
  context.variable = [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
  context.find_program = [directory = context.working_dir](const std::string& program) {
    const char* path = std::getenv("PATH");
    return os::FindCommand(program, directory, path == nullptr ? "/usr/bin:/bin" : path).status();
  };
  return context;
}

absl::Status ApplyJobFlags(const JobFlags& flags, const std::vector<std::string>& command,
                           const JobContext& context, v1::JobSpec* spec) {
  if (!flags.shipped_job.empty()) {
    if (flags.module) return absl::InvalidArgumentError("-m and --job exclude each other");
    spec->set_shipped_job(flags.shipped_job);
    spec->clear_command();
  }
  MESHRUN_RETURN_IF_ERROR(SetCommand(flags, command, context, spec));
  if (!flags.nodes.empty()) {
    const auto range = ParseNodeRange(flags.nodes);
    if (!range.ok()) return Annotate(range.status(), "--nodes");
    spec->set_min_nodes(range->min);
    spec->set_max_nodes(range->max);
  }
  if (!flags.procs_per_node.empty()) {
    const auto procs = ParseProcsPerNode(flags.procs_per_node, context.has_gpu);
    if (!procs.ok()) return Annotate(procs.status(), "--procs-per-node");
    *spec->mutable_procs_per_node() = *procs;
  }
  if (!flags.gpus_per_proc.empty()) {
    MESHRUN_ASSIGN_OR_RETURN(const auto n,
                             ParseNumber<uint32_t>("--gpus-per-proc", flags.gpus_per_proc, 0));
    spec->set_gpus_per_proc(n);
  }
  if (!flags.cpus_per_proc.empty()) {
    MESHRUN_ASSIGN_OR_RETURN(const auto n,
                             ParseNumber<uint32_t>("--cpus-per-proc", flags.cpus_per_proc, 1));
    spec->set_cpus_per_proc(n);
  }
  if (!flags.memory.empty()) {
    const auto bytes = ParseBytes(flags.memory);
    if (!bytes.ok()) return Annotate(bytes.status(), "--memory");
    spec->set_memory_bytes(*bytes);
  }
  if (!flags.mesh.empty()) MESHRUN_RETURN_IF_ERROR(Annotate(SetMesh(flags.mesh, spec), "--mesh"));
  for (const std::string& variable : flags.env) {
    MESHRUN_RETURN_IF_ERROR(SetVariable(variable, context, spec));
  }
  if (!flags.max_restarts.empty()) {
    MESHRUN_ASSIGN_OR_RETURN(const auto n,
                             ParseNumber<uint32_t>("--max-restarts", flags.max_restarts, 0));
    spec->set_max_restarts(n);
  }
  MESHRUN_RETURN_IF_ERROR(Annotate(SetRecovery(flags.recovery, spec), "--recovery"));
  MESHRUN_RETURN_IF_ERROR(Annotate(SetReplace(flags.replace, spec), "--replace"));
  MESHRUN_RETURN_IF_ERROR(Annotate(SetGrowth(flags.grow, spec), "--grow"));
  if (!flags.priority.empty()) {
    MESHRUN_ASSIGN_OR_RETURN(const auto n,
                             ParseNumber<int32_t>("--priority", flags.priority, INT32_MIN));
    spec->set_priority(n);
  }
  if (!flags.kill_grace.empty()) {
    const auto grace = ParseDuration(flags.kill_grace);
    if (!grace.ok()) return Annotate(grace.status(), "--kill-grace");
    *spec->mutable_kill_grace() = ToProtoDuration(*grace);
  }
  if (!flags.hang_timeout.empty()) {
    const auto timeout = ParseDuration(flags.hang_timeout);
    if (!timeout.ok()) return Annotate(timeout.status(), "--hang-timeout");
    *spec->mutable_hang_timeout() = ToProtoDuration(*timeout);
  }
  if (!flags.queue_timeout.empty()) {
    const auto timeout = ParseDuration(flags.queue_timeout);
    if (!timeout.ok()) return Annotate(timeout.status(), "--queue-timeout");
    *spec->mutable_queue_timeout() = ToProtoDuration(*timeout);
  }
  if (!flags.time_limit.empty()) {
    const auto limit = ParseDuration(flags.time_limit);
    if (!limit.ok()) return Annotate(limit.status(), "--time-limit");
    *spec->mutable_time_limit() = ToProtoDuration(*limit);
  }
  for (const std::string& constraint : flags.constraints) {
    MESHRUN_RETURN_IF_ERROR(Annotate(CheckConstraint(constraint), "--constraint"));
    spec->add_constraints(constraint);
  }
  for (const std::string& node : flags.exclude_nodes) spec->add_exclude_nodes(node);
  if (flags.hold) spec->set_hold(true);
  if (!flags.working_dir.empty()) {
    spec->set_working_dir(std::filesystem::path(flags.working_dir).is_absolute()
                              ? flags.working_dir
                              : (std::filesystem::path(context.working_dir) / flags.working_dir)
                                    .lexically_normal()
                                    .string());
  } else if (spec->working_dir().empty()) {
    spec->set_working_dir(context.working_dir);
  }
  if (!flags.name.empty()) {
    MESHRUN_RETURN_IF_ERROR(Annotate(CheckJobName(flags.name), "--name"));
    spec->set_name(flags.name);
  } else if (spec->name().empty()) {
    // The program that the user named, not the interpreter put before it.
    spec->set_name(JobNameFromCommand(!spec->shipped_job().empty() ? spec->shipped_job()
                                      : !command.empty()           ? command[0]
                                      : spec->command().empty()    ? ""
                                                                   : spec->command(0)));
  }
  return NormalizeJobSpec(*spec);
}

void AddIgnoredTorchrunFlags(FlagSet& flags, std::vector<std::string>* used) {
  for (const char* name : {"--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--rdzv-conf",
                           "--master-addr", "--master-port", "--node-rank", "--local-addr",
                           "--role", "--monitor-interval", "--start-method"}) {
    flags.Ignored(name, used);
  }
}

}  // namespace meshrun::client
