#include "client/job_fields.h"

#include <fmt/format.h>

#include <limits>

#include "client/command_line.h"
#include "client/field_kinds.h"
#include "client/job_spec.h"
#include "core/env_entries.h"
#include "core/job_spec.h"
#include "core/labels.h"
#include "core/status.h"
#include "core/text.h"
#include "core/yaml/file_value.h"

namespace meshrun::client {
namespace {

absl::Status SetNodes(std::string_view text, v1::JobSpec* spec) {
  MESHRUN_ASSIGN_OR_RETURN(const NodeRange range, ParseNodeRange(text));
  spec->set_min_nodes(range.min);
  spec->set_max_nodes(range.max);
  return absl::OkStatus();
}

absl::Status SetMemory(std::string_view text, v1::JobSpec* spec) {
  MESHRUN_ASSIGN_OR_RETURN(const uint64_t bytes, ParseBytes(text));
  spec->set_memory_bytes(bytes);
  return absl::OkStatus();
}

absl::Status SetLogBytes(std::string_view text, v1::JobSpec* spec) {
  MESHRUN_ASSIGN_OR_RETURN(const uint64_t bytes, ParseBytes(text));
  spec->set_log_bytes(bytes);
  return absl::OkStatus();
}

absl::Status SetName(std::string_view text, v1::JobSpec* spec) {
  MESHRUN_RETURN_IF_ERROR(CheckJobName(text));
  spec->set_name(std::string(text));
  return absl::OkStatus();
}

// "auto" in a file is a rank per GPU: where the file is read says nothing of the nodes.
FieldSetter ProcsPerNode() {
  return {.from_flag = [](std::string_view flag, const std::string& text, const JobContext& context,
                          v1::JobSpec* spec) -> absl::Status {
            const auto procs = ParseProcsPerNode(text, context.has_gpu);
            if (!procs.ok()) return Annotate(procs.status(), flag);
            *spec->mutable_procs_per_node() = *procs;
            return absl::OkStatus();
          },
          .from_file = [](const FileValue& value, v1::JobSpec* spec) -> absl::Status {
            MESHRUN_ASSIGN_OR_RETURN(const std::string text,
                                     value.Text("write a number, gpu or cpu"));
            const auto procs = ParseProcsPerNode(text, true);
            if (!procs.ok()) return value.Wrong(procs.status());
            *spec->mutable_procs_per_node() = *procs;
            return absl::OkStatus();
          }};
}

absl::Status MeshFromFile(const FileValue& value, v1::JobSpec* spec) {
  static constexpr char kWrite[] = "write for example mesh: {dp: -1, spatial: 2}";
  std::string text;
  if (value.node.IsMap()) {
    for (const auto& axis : value.node) {
      if (!axis.first.IsScalar() || !axis.second.IsScalar()) {
        return value.WrongAt(axis.second, kWrite);
      }
      text += fmt::format("{}{}={}", text.empty() ? "" : ",", axis.first.Scalar(),
                          axis.second.Scalar());
    }
  } else if (value.node.IsScalar()) {
    text = value.node.Scalar();
  }
  if (text.empty()) return value.Wrong(kWrite);
  const absl::Status status = SetMesh(text, spec);
  return status.ok() ? status : value.Wrong(status);
}

absl::Status EnvFromFile(const FileValue& value, v1::JobSpec* spec) {
  if (!value.node.IsMap()) return value.Wrong("write a map, for example env: {OMP_NUM_THREADS: 2}");
  for (const auto& entry : value.node) {
    if (!entry.first.IsScalar() || !(entry.second.IsScalar() || entry.second.IsNull())) {
      return value.WrongAt(entry.first, "each variable has one text as its value");
    }
    SetEnv(*spec->mutable_env(), entry.first.Scalar(),
           entry.second.IsNull() ? "" : entry.second.Scalar());
  }
  return absl::OkStatus();
}

// The command on the command line follows the flags, and is not one of them.
absl::Status CommandFromFile(const FileValue& value, v1::JobSpec* spec) {
  static constexpr char kWrite[] =
      "write the program and its arguments, as text or as a list: [./train, --steps, 100]";
  if (value.node.IsScalar()) {
    const auto parts = SplitCommandLine(value.node.Scalar());
    if (!parts.ok()) return value.Wrong(parts.status());
    for (const std::string& part : *parts) spec->add_command(part);
  } else if (value.node.IsSequence()) {
    for (const YAML::Node& part : value.node) {
      if (!part.IsScalar()) return value.WrongAt(part, kWrite);
      spec->add_command(part.Scalar());
    }
  }
  return spec->command().empty() ? value.Wrong(kWrite) : absl::OkStatus();
}

// A job that a flag names does not get the arguments that a file has for another one.
FieldSetter ShippedJob() {
  FieldSetter set = TextField(&v1::JobSpec::mutable_shipped_job,
                              "write the name of a shipped job, for example geoid");
  set.from_flag = [](std::string_view, const std::string& text, const JobContext&,
                     v1::JobSpec* spec) -> absl::Status {
    spec->set_shipped_job(text);
    spec->clear_command();
    return absl::OkStatus();
  };
  return set;
}

constexpr char kHowLarge[] = "How large";
constexpr char kNeeds[] = "What each rank needs";
constexpr char kWhenAndWhere[] = "When and where it runs";
constexpr char kWhatRuns[] = "What runs";
constexpr char kWhenThingsGoWrong[] = "When things go wrong";

std::vector<JobField> MakeJobFields() {
  return {
      {.flag = "--nodes,--nnodes",
       .keys = {"nodes"},
       .section = kHowLarge,
       .value = "N|MIN:MAX",
       .help = "Number of hosts, or at least and at most (default 1)",
       .set = WordField(&SetNodes, "write for example nodes: 2 or nodes: \"1:4\""),
       .in_spec = "max_nodes"},
      {.keys = {"min_nodes"}, .set = NumberField(&v1::JobSpec::set_min_nodes, 1, "1")},
      {.keys = {"max_nodes"}, .set = NumberField(&v1::JobSpec::set_max_nodes, 1, "4")},
      {.flag = "--procs-per-node,--nproc-per-node,--nproc",
       .keys = {"procs_per_node"},
       .section = kHowLarge,
       .value = "N|gpu|cpu",
       .help = "Ranks on each host; gpu: one per GPU, cpu: one per core (default 1)",
       .set = ProcsPerNode()},
      {.flag = "--mesh",
       .keys = {"mesh"},
       .section = kHowLarge,
       .value = "AXIS=SIZE,...",
       .help = "Name the axes of the ranks; -1: what is left",
       .set = {.from_flag = WordField(&SetMesh, "").from_flag, .from_file = &MeshFromFile}},
      {.flag = "--gpus-per-proc",
       .keys = {"gpus_per_proc"},
       .section = kNeeds,
       .value = "N",
       .help = "GPUs of a rank (default: 1 where there are some)",
       .set = NumberField(&v1::JobSpec::set_gpus_per_proc, 0, "1")},
      {.flag = "--cpus-per-proc",
       .keys = {"cpus_per_proc"},
       .section = kNeeds,
       .value = "N",
       .help = "CPU slots of a rank (default 1); counted, and its threads; --numa-binding pins it "
               "to cores",
       .set = NumberField(&v1::JobSpec::set_cpus_per_proc, 1, "1")},
      {.flag = "--numa-binding",
       .keys = {"numa_binding"},
       .section = kNeeds,
       .value = "MODE",
       .help = "As torchrun's: a rank runs on the cores near its GPU: all of its NUMA node (node) "
               "or socket (socket), a part that no other rank has (exclusive), or one cache's "
               "(core-complex)",
       .set = WordField(&SetNumaBinding, "write node, socket, exclusive or core-complex")},
      {.flag = "--memory",
       .keys = {"memory", "memory_bytes"},
       .section = kNeeds,
       .value = "SIZE",
       .help = "Memory of a rank, for example 4G; 'meshrun run' counts it and does not enforce it, "
               "workers with --limits memory do",
       .set = WordField(&SetMemory, "write for example memory: 4G"),
       .in_spec = "memory_bytes"},
      {.flag = "--env",
       .keys = {"env"},
       .section = kNeeds,
       .value = "NAME[=VALUE]",
       .help = "Set a variable; without a value: pass yours on; repeatable",
       .set = {.from_flag = &SetVariable, .from_file = &EnvFromFile, .repeats = true}},
      {.flag = "--priority",
       .keys = {"priority"},
       .section = kWhenAndWhere,
       .value = "N",
       .help = "Higher runs first (default 0)",
       .set = NumberField(&v1::JobSpec::set_priority, std::numeric_limits<int32_t>::min(), "5")},
      {.flag = "--constraint",
       .keys = {"constraints"},
       .section = kWhenAndWhere,
       .value = "LABEL",
       .help = "Only on nodes with this label: zone=a, zone!=a, nvlink or !spot; repeatable",
       .set = ListField(&v1::JobSpec::mutable_constraints, &CheckConstraint,
                        "write for example constraints: [zone=a, nvlink]")},
      {.flag = "--exclude",
       .keys = {"exclude_nodes"},
       .section = kWhenAndWhere,
       .value = "NODE",
       .help = "Not on this node; repeatable",
       .set = ListField(&v1::JobSpec::mutable_exclude_nodes, nullptr,
                        "write for example exclude_nodes: [node-a, node-b]")},
      {.flag = "--hold",
       .keys = {"hold"},
       .section = kWhenAndWhere,
       .help = "Wait in the queue until 'meshrun release'",
       .set = SwitchField(&v1::JobSpec::set_hold)},
      {.flag = "--after",
       .keys = {"after"},
       .section = kWhenAndWhere,
       .value = "KIND:JOB",
       .help = "Wait for this job: ok: until it has succeeded, failed: or any: until it has ended; "
               "repeatable",
       .set = ListField(&v1::JobSpec::mutable_after, nullptr,
                        "write for example after: [ok:prepare-x1y2z3]")},
      {.flag = "--array",
       .keys = {"array"},
       .section = kWhenAndWhere,
       .value = "INDICES[%N]",
       .help = "A job for each index, in MESHRUN_ARRAY_INDEX: 0-99, 1,5,9 or 0-99:10; %N: so many "
               "at a time",
       .set = WordField(&SetArray, "write for example array: 0-99%10")},
      {.flag = "--private",
       .keys = {"private"},
       .section = kWhenAndWhere,
       .help = "Show its arguments and its output to you and to operators alone",
       .set = SwitchField(&v1::JobSpec::set_private_)},
      {.flag = "--account",
       .keys = {"account"},
       .section = kWhenAndWhere,
       .value = "NAME",
       .help = "What it is counted for (default: your account in the policy)",
       .set = TextField(&v1::JobSpec::mutable_account, "write the name of an account")},
      {.flag = "--partition",
       .keys = {"partition"},
       .section = kWhenAndWhere,
       .value = "NAME",
       .help = "Nodes that it may use, by their name in the policy (default: the policy's)",
       .set = TextField(&v1::JobSpec::mutable_partition, "write the name of a partition")},
      {.keys = {"command"}, .set = {.from_file = &CommandFromFile}},
      {.keys = {"args"}, .set = {.from_file = &CommandFromFile}},
      {.flag = "--job",
       .keys = {"job", "shipped_job"},
       .section = kWhatRuns,
       .value = "NAME",
       .help = "A job that ships with meshrun; the command is its arguments",
       .set = ShippedJob()},
      {.flag = "--name",
       .keys = {"name"},
       .section = kWhatRuns,
       .value = "NAME",
       .help = "Name of the job (default: from the command)",
       .set = WordField(&SetName, "write for example name: geoid")},
      {.flag = "--working-dir",
       .keys = {"working_dir"},
       .section = kWhatRuns,
       .value = "DIR",
       .help = "Directory of the ranks (default: this one)",
       .set = TextField(&v1::JobSpec::mutable_working_dir, "write a directory")},
      {.flag = "--tensorboard",
       .keys = {"tensorboard"},
       .section = kWhatRuns,
       .value = "DIR",
       .help = "Write what ranks report there, as files that TensorBoard reads: DIR/JOB/rankN",
       .set = TextField(&v1::JobSpec::mutable_tensorboard, "write a directory")},
      {.flag = "--log-limit",
       .keys = {"log_limit", "log_bytes"},
       .section = kNeeds,
       .value = "SIZE",
       .help = "Keep so much of each rank's stdout, and of its stderr, where the host would keep "
               "more",
       .set = WordField(&SetLogBytes, "write for example log_limit: 100M"),
       .in_spec = "log_bytes"},
      {.flag = "--max-restarts",
       .keys = {"max_restarts"},
       .section = kWhenThingsGoWrong,
       .value = "N",
       .help = "Restarts after failures without progress between them (default 0)",
       .set = NumberField(&v1::JobSpec::set_max_restarts, 0, "3")},
      {.flag = "--recovery",
       .keys = {"recovery"},
       .section = kWhenThingsGoWrong,
       .value = "auto|respawn",
       .help = "After a failure: ranks that live go on in process where they can (auto, the "
               "default), or all are started anew",
       .set = WordField(&SetRecovery, "write auto or respawn")},
      {.flag = "--replace",
       .keys = {"replace"},
       .section = kWhenThingsGoWrong,
       .value = "at-once",
       .help = "Start ranks in a lost node's place before its fence time: nothing that its own "
               "ranks still write does harm",
       .set = WordField(&SetReplace, "write at-once")},
      {.flag = "--grow",
       .keys = {"grow"},
       .section = kWhenThingsGoWrong,
       .value = "checkpoint|at-once|never",
       .help = "When nodes come for which --nodes leaves room (default checkpoint: after the next "
               "one)",
       .set = WordField(&SetGrowth, "write checkpoint, at-once or never")},
      {.flag = "--virtual-local-rank",
       .keys = {"virtual_local_rank"},
       .section = kNeeds,
       .help = "As torchrun's: each rank sees its own GPUs alone, and its LOCAL_RANK is 0",
       .set = SwitchField(&v1::JobSpec::set_virtual_local_rank)},
      {.flag = "--kill-grace",
       .keys = {"kill_grace"},
       .section = kWhenThingsGoWrong,
       .value = "TIME",
       .help =
           fmt::format("From SIGTERM to SIGKILL (default {})", FormatDuration(kDefaultKillGrace)),
       .set = DurationField(&v1::JobSpec::mutable_kill_grace)},
      {.flag = "--hang-timeout",
       .keys = {"hang_timeout"},
       .section = kWhenThingsGoWrong,
       .value = "TIME",
       .help = "Without a further step for so long the job hangs: its state is dumped, and it is "
               "restarted; from the first step on that a rank reports (meshrun.report); 0: never "
               "(default: learned from its steps, at least 2m)",
       .set = DurationField(&v1::JobSpec::mutable_hang_timeout)},
      {.flag = "--queue-timeout",
       .keys = {"queue_timeout"},
       .section = kWhenThingsGoWrong,
       .value = "TIME",
       .help = "Give up when it has not started by then",
       .set = DurationField(&v1::JobSpec::mutable_queue_timeout)},
      {.flag = "--time-limit",
       .keys = {"time_limit"},
       .section = kWhenThingsGoWrong,
       .value = "TIME",
       .help = "Stop it, with its grace, when its ranks have run so long",
       .set =
           DurationField(&v1::JobSpec::mutable_time_limit,
                         "write a time above 0, for example 1h30m, or leave it out to run without "
                         "limit")},
  };
}

}  // namespace

const std::vector<JobField>& JobFields() {
  static const auto* const fields = new std::vector<JobField>(MakeJobFields());
  return *fields;
}

}  // namespace meshrun::client
