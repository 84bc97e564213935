#include "client/cli/job_flags.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <filesystem>

#include "client/job_spec.h"
#include "core/env_entries.h"
#include "core/job_spec.h"
#include "core/labels.h"
#include "core/os/process.h"
#include "core/proto_time.h"
#include "core/signal_name.h"
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

absl::Status SetVariable(std::string_view flag, const std::string& text, const JobContext& context,
                         v1::JobSpec* spec) {
  const size_t equals = text.find('=');
  const std::string name = text.substr(0, equals);
  if (name.empty()) {
    return absl::InvalidArgumentError(
        fmt::format("{} {}: write NAME=VALUE, or NAME to pass yours on", flag, text));
  }
  if (IsSetForRanks(name)) {
    return absl::InvalidArgumentError(
        fmt::format("{} {}: {} is set by meshrun for each rank: leave it out, or take another name",
                    flag, text, name));
  }
  if (equals != std::string::npos) {
    SetEnv(*spec->mutable_env(), name, text.substr(equals + 1));
    return absl::OkStatus();
  }
  const auto value = context.variable(name);
  if (!value) {
    return absl::InvalidArgumentError(
        fmt::format("{} {}: {} is not set here: write {} {}=VALUE, or export it first", flag, name,
                    name, flag, name));
  }
  SetEnv(*spec->mutable_env(), name, *value);
  return absl::OkStatus();
}

// --export as Slurm has it: ALL, NONE, or names with or without values; ALL may stand among them.
absl::Status SetExported(const std::string& text, const JobContext& context, v1::JobSpec* spec) {
  if (text.empty() || text == "NONE") return absl::OkStatus();
  std::string_view rest = text;
  for (bool more = true; more;) {
    const size_t comma = rest.find(',');
    more = comma != std::string_view::npos;
    const std::string word(rest.substr(0, comma));
    rest.remove_prefix(more ? comma + 1 : rest.size());
    if (word.empty()) {
      return absl::InvalidArgumentError(fmt::format(
          "--export {}: a name is empty: write ALL, NONE, or names with one comma between", text));
    }
    if (word == "NONE") {
      return absl::InvalidArgumentError(fmt::format("--export {}: NONE stands alone", text));
    }
    if (word != "ALL") {
      MESHRUN_RETURN_IF_ERROR(SetVariable("--export", word, context, spec));
      continue;
    }
    for (const auto& [name, value] : context.variables) {
      // Those of the submitter's own job, shell and launcher say nothing of this job.
      const bool own = IsSetForRanks(name) || name.starts_with("MESHRUN_") ||
                       name.starts_with("PET_") || name == "_" || name == "PWD" ||
                       name == "OLDPWD" || name == "SHLVL";
      if (!own) SetEnv(*spec->mutable_env(), name, value);
    }
  }
  return absl::OkStatus();
}

// torchrun's flags that a coordinator has another answer for.
absl::Status CheckTorchrunFlags(const JobFlags& flags) {
  if (!flags.event_log_handler.empty() && flags.event_log_handler != "null") {
    return absl::InvalidArgumentError(
        fmt::format("--event-log-handler {}: events are kept by the coordinator, and 'meshrun "
                    "events' shows them; only null is taken",
                    flags.event_log_handler));
  }
  std::string_view rest = flags.handled_signals;
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    const auto signal = os::ParseSignal(rest.substr(0, comma));
    if (!signal.ok()) return Annotate(signal.status(), "--signals-to-handle");
    rest.remove_prefix(comma == std::string_view::npos ? rest.size() : comma + 1);
    if (*signal == SIGTERM || *signal == SIGINT || *signal == SIGHUP || *signal == SIGQUIT)
      continue;
    return absl::InvalidArgumentError(fmt::format(
        "--signals-to-handle {}: {} does not end a job here: 'meshrun run' passes SIGUSR1 and "
        "SIGUSR2 on to the ranks, and 'meshrun signal' sends any; SIGTERM, SIGINT, SIGHUP and "
        "SIGQUIT are taken",
        flags.handled_signals, SignalName(*signal)));
  }
  return absl::OkStatus();
}

absl::Status SetCommand(const JobFlags& flags, const std::vector<std::string>& command,
                        const JobContext& context, v1::JobSpec* spec) {
  if (flags.module && command.empty()) {
    return absl::InvalidArgumentError(
        "-m needs a module: meshrun run -m package.train --its-flags");
  }
  if (flags.run_path && (flags.module || flags.no_python)) {
    return absl::InvalidArgumentError("--run-path, -m and --no-python exclude each other");
  }
  const std::vector<std::string> words =
      command.empty() ? std::vector<std::string>(spec->command().begin(), spec->command().end())
                      : command;
  if (words.empty()) return absl::OkStatus();
  const std::string python = context.variable("PYTHON_EXEC").value_or("python3");
  spec->clear_command();
  if (spec->shipped_job().empty()) {
    if (flags.module) {
      for (const std::string& word : {python, std::string("-u"), std::string("-m")})
        spec->add_command(word);
    } else if (flags.run_path ||
               (!flags.no_python && NeedsPython(words[0], context.find_program(words[0]).ok()))) {
      for (const std::string& word : {python, std::string("-u")}) spec->add_command(word);
    }
  }
  for (const std::string& word : words) spec->add_command(word);
  return absl::OkStatus();
}

// Working directory: flag, else job file, else the current one. A relative path begins at the
// current one.
absl::Status SetWorkingDir(const JobFlags& flags, const JobContext& context, v1::JobSpec* spec) {
  namespace fs = std::filesystem;
  const fs::path wanted = flags.working_dir.empty() ? spec->working_dir() : flags.working_dir;
  if (wanted.is_absolute()) {
    spec->set_working_dir(wanted.string());
    return absl::OkStatus();
  }
  if (context.working_dir.empty()) {
    return absl::InvalidArgumentError(
        "the directory that this command runs in has been deleted: go to another one, or name one "
        "with --working-dir");
  }
  spec->set_working_dir(wanted.empty()
                            ? context.working_dir
                            : (fs::path(context.working_dir) / wanted).lexically_normal().string());
  return absl::OkStatus();
}

// Errors of a whole JobSpec begin with the field. Whoever gave that by a flag is told of the flag.
absl::Status NameTheFlag(const absl::Status& status, const JobFlags& flags) {
  const struct {
    std::string_view field, flag;
    const std::string& value;
  } kFlags[] = {{"max_nodes", "--nodes", flags.nodes},
                {"procs_per_node", "--procs-per-node", flags.procs_per_node},
                {"cpus_per_proc", "--cpus-per-proc", flags.cpus_per_proc},
                {"gpus_per_proc", "--gpus-per-proc", flags.gpus_per_proc},
                {"memory_bytes", "--memory", flags.memory},
                {"kill_grace", "--kill-grace", flags.kill_grace},
                {"hang_timeout", "--hang-timeout", flags.hang_timeout},
                {"queue_timeout", "--queue-timeout", flags.queue_timeout},
                {"time_limit", "--time-limit", flags.time_limit}};
  const std::string text(status.message());
  for (const auto& [field, flag, value] : kFlags) {
    if (!value.empty() && text.starts_with(fmt::format("{}: ", field))) {
      return absl::Status(status.code(),
                          fmt::format("{} {}{}", flag, value, text.substr(field.size())));
    }
  }
  return status;
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
  flags.Switch("--run-path", &f->run_path, "The command is a Python script, whatever its name");
  flags.Text("--role", &f->role, "NAME", "ROLE_NAME of the ranks (default: default)");
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
  flags.Text("--event-log-handler", &f->event_log_handler, "NAME", "As torchrun's; only null");
  flags.Text("--signals-to-handle", &f->handled_signals, "SIGNALS",
             "As torchrun's; those that end a job end it here too");
  flags.Section("Flags");
}

JobContext RealJobContext() {
  JobContext context;
  std::error_code error;
  context.working_dir = std::filesystem::current_path(error).string();
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const size_t equals = text.find('=');
    if (equals == std::string_view::npos || equals == 0) continue;
    context.variables[std::string(text.substr(0, equals))] = text.substr(equals + 1);
  }
  context.has_gpu = ::access("/dev/nvidia0", F_OK) == 0;
  // As they were when the program began: 'meshrun run' takes its secret out of the environment.
  context.variable = [all = context.variables](const std::string& name) {
    const auto found = all.find(name);
    return found == all.end() ? std::nullopt : std::optional<std::string>(found->second);
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
  const std::string program = !command.empty()          ? command[0]
                              : spec->command().empty() ? std::string()
                                                        : spec->command(0);
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
  // Job file, then --export, then --env.
  MESHRUN_RETURN_IF_ERROR(SetExported(flags.exported, context, spec));
  MESHRUN_RETURN_IF_ERROR(CheckTorchrunFlags(flags));
  if (!flags.role.empty()) SetEnv(*spec->mutable_env(), "ROLE_NAME", flags.role);
  for (const std::string& variable : flags.env) {
    MESHRUN_RETURN_IF_ERROR(SetVariable("--env", variable, context, spec));
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
  MESHRUN_RETURN_IF_ERROR(SetWorkingDir(flags, context, spec));
  if (!flags.name.empty()) {
    MESHRUN_RETURN_IF_ERROR(Annotate(CheckJobName(flags.name), "--name"));
    spec->set_name(flags.name);
  } else if (spec->name().empty()) {
    // The program that the user named, not the interpreter put before it.
    spec->set_name(JobNameFromCommand(spec->shipped_job().empty() ? program : spec->shipped_job()));
  }
  return NameTheFlag(NormalizeJobSpec(*spec), flags);
}

void AddIgnoredTorchrunFlags(FlagSet& flags, std::vector<std::string>* used) {
  for (const char* name :
       {"--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--rdzv-conf", "--master-addr",
        "--master-port", "--node-rank", "--local-addr", "--monitor-interval", "--start-method"}) {
    flags.Ignored(name, used);
  }
}

}  // namespace meshrun::client
