#include "client/cli/job_flags.h"

#include <fmt/format.h>

#include <chrono>
#include <filesystem>

#include "client/cli/arguments.h"
#include "client/job_fields.h"
#include "client/job_spec.h"
#include "core/env_entries.h"
#include "core/job_spec.h"
#include "core/proto_time.h"
#include "core/status.h"

namespace meshrun::client {
namespace {

constexpr int kLongestShutdownSeconds = 24 * 3600;

// torchrun's flags that a coordinator has another answer for.
absl::Status CheckTorchrunFlags(const JobFlags& flags) {
  if (!flags.event_log_handler.empty() && flags.event_log_handler != "null") {
    return absl::InvalidArgumentError(
        fmt::format("--event-log-handler {}: events are kept by the coordinator, and 'meshrun "
                    "events' shows them; only null is taken",
                    flags.event_log_handler));
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
absl::Status CompleteWorkingDir(const JobContext& context, v1::JobSpec* spec) {
  namespace fs = std::filesystem;
  const fs::path wanted = spec->working_dir();
  if (wanted.is_absolute()) return absl::OkStatus();
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

absl::Status SetShutdownTimeout(const JobFlags& flags, v1::JobSpec* spec) {
  if (flags.shutdown_timeout.empty() || flags.Given("--kill-grace")) return absl::OkStatus();
  MESHRUN_ASSIGN_OR_RETURN(
      const int seconds,
      ParseWithin("--shutdown-timeout", flags.shutdown_timeout, 0, kLongestShutdownSeconds));
  *spec->mutable_kill_grace() = ToProtoDuration(std::chrono::seconds(seconds));
  return absl::OkStatus();
}

absl::Status SetFields(const JobFlags& flags, const JobContext& context, v1::JobSpec* spec) {
  for (const JobField& field : JobFields()) {
    const std::string name = field.FlagName();
    const auto given = flags.fields.find(name);
    if (name.empty() || given == flags.fields.end()) continue;
    for (const std::string& text : given->second) {
      MESHRUN_RETURN_IF_ERROR(field.set.from_flag(name, text, context, spec));
    }
  }
  return absl::OkStatus();
}

// Errors of a whole JobSpec begin with the field. Whoever gave that by a flag is told of the flag.
absl::Status NameTheFlag(const absl::Status& status, const JobFlags& flags) {
  const std::string text(status.message());
  for (const JobField& field : JobFields()) {
    const std::string name = field.FlagName();
    // A value that is one of several has been checked by itself.
    if (name.empty() || field.value.empty() || field.set.repeats || !flags.Given(name)) continue;
    const std::string& in_spec = field.in_spec.empty() ? field.keys.front() : field.in_spec;
    if (text.starts_with(in_spec + ": ")) {
      return absl::Status(status.code(),
                          fmt::format("{} {}{}", name, flags.fields.find(name)->second.front(),
                                      text.substr(in_spec.size())));
    }
  }
  return status;
}

}  // namespace

bool JobFlags::Given(std::string_view flag) const {
  const auto found = fields.find(flag);
  return found != fields.end() && !found->second.empty();
}

void AddJobFlags(FlagSet& flags, JobFlags* f) {
  for (const JobField& field : JobFields()) {
    if (field.flag.empty()) continue;
    flags.Section(field.section);
    std::vector<std::string>* const values = &f->fields[field.FlagName()];
    if (field.value.empty()) {
      flags.Switch(field.flag, values, field.help);
    } else if (field.set.repeats) {
      flags.Texts(field.flag, values, field.value, field.help);
    } else {
      flags.Text(field.flag, values, field.value, field.help);
    }
  }
  flags.Section("What runs");
  flags.Switch("-m,--module", &f->module, "The command is a Python module: python3 -m");
  flags.Switch("--no-python", &f->no_python, "Never run a .py by python3");
  flags.Switch("--run-path", &f->run_path, "The command is a Python script, whatever its name");
  flags.Text("--role", &f->role, "NAME", "ROLE_NAME of the ranks (default: default)");
  flags.Section("");
  flags.Switch("--standalone", &f->standalone, "As torchrun's; has no effect");
  flags.Text("--event-log-handler", &f->event_log_handler, "NAME", "As torchrun's; only null");
  flags.Text("--signals-to-handle", &f->handled_signals, "SIGNALS",
             "As torchrun's: these alone end the job (default: SIGTERM,SIGINT,SIGHUP,SIGQUIT)");
  flags.Text("--shutdown-timeout", &f->shutdown_timeout, "SECONDS", "As torchrun's: --kill-grace");
  flags.Refused("--logs-specs", "--log-dir, --tee and --redirects say where output goes");
  for (const char* name : {"--duplicate-stdout-filters", "--duplicate-stderr-filters"}) {
    flags.Refused(name, "keep the output with --log-dir, and search its files");
  }
  flags.Refused("--print-completion", "'meshrun completion bash' prints it");
  flags.Section("Flags");
}

absl::Status ApplyJobFlags(const JobFlags& flags, const std::vector<std::string>& command,
                           const JobContext& context, v1::JobSpec* spec) {
  if (flags.module && flags.Given("--job")) {
    return absl::InvalidArgumentError("-m and --job exclude each other");
  }
  MESHRUN_RETURN_IF_ERROR(CheckTorchrunFlags(flags));
  // Job file, then --export, then --env.
  MESHRUN_RETURN_IF_ERROR(SetExported(flags.exported, context, spec));
  if (!flags.role.empty()) SetEnv(*spec->mutable_env(), "ROLE_NAME", flags.role);
  MESHRUN_RETURN_IF_ERROR(SetFields(flags, context, spec));
  MESHRUN_RETURN_IF_ERROR(SetShutdownTimeout(flags, spec));
  const std::string program = !command.empty()          ? command[0]
                              : spec->command().empty() ? std::string()
                                                        : spec->command(0);
  MESHRUN_RETURN_IF_ERROR(SetCommand(flags, command, context, spec));
  MESHRUN_RETURN_IF_ERROR(CompleteWorkingDir(context, spec));
  if (spec->name().empty()) {
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
