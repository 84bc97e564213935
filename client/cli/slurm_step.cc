#include "client/cli/slurm_step.h"

#include <fmt/format.h>

#include "client/render/style.h"
#include "core/parse_integer.h"
#include "core/slurm.h"
#include "core/status.h"

namespace meshrun::client {
namespace {

absl::StatusOr<std::string> Needed(const VariableLookup& variable, const char* name) {
  auto value = variable(name);
  if (value && !value->empty()) return *std::move(value);
  return absl::InvalidArgumentError(fmt::format(
      "{} is not set, though SLURM_STEP_NUM_NODES is, and srun sets both: start this with srun, or "
      "give --node-rank, --master-addr and --rdzv-conf secret_file=FILE",
      name));
}

absl::StatusOr<uint32_t> Number(const VariableLookup& variable, const char* name) {
  MESHRUN_ASSIGN_OR_RETURN(const std::string text, Needed(variable, name));
  const auto number = ParseInteger<uint32_t>(text);
  if (number) return *number;
  return absl::InvalidArgumentError(fmt::format("{}={}: this is not a number", name, text));
}

std::string Nodes(const v1::JobSpec& spec) {
  return spec.min_nodes() == spec.max_nodes()
             ? fmt::format("--nnodes {}", spec.max_nodes())
             : fmt::format("--nnodes {}:{}", spec.min_nodes(), spec.max_nodes());
}

// Differs between all steps that there ever are: a job that Slurm starts again has its number, and
// its steps count from 0 again.
absl::StatusOr<std::string> NameOfStep(const VariableLookup& variable) {
  MESHRUN_ASSIGN_OR_RETURN(const std::string job, Needed(variable, "SLURM_JOB_ID"));
  MESHRUN_ASSIGN_OR_RETURN(const std::string step, Needed(variable, "SLURM_STEP_ID"));
  const std::string name =
      fmt::format("{}-{}.{}-{}", variable("SLURM_CLUSTER_NAME").value_or("slurm"), job, step,
                  variable("SLURM_RESTART_COUNT").value_or("0"));
  if (name.find('/') == std::string::npos) return name;
  return absl::InvalidArgumentError(fmt::format(
      "SLURM_CLUSTER_NAME, SLURM_JOB_ID, SLURM_STEP_ID and SLURM_RESTART_COUNT make {}, which "
      "cannot be the name of a file: start this with srun",
      name));
}

// A job of one host, whose step has other tasks: each of them would start the same job.
absl::Status CheckIsAlone(const VariableLookup& variable) {
  const auto tasks = ParseInteger<uint32_t>(variable("SLURM_STEP_NUM_TASKS").value_or("1"));
  if (!tasks || *tasks < 2) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format(
      "srun started this {} times, and each would run the whole job: write srun --ntasks=1, with "
      "--nproc-per-node for the ranks; or for one job on several nodes --ntasks-per-node=1 and "
      "--nnodes; or, if each task is to have a job of its own, --standalone",
      *tasks));
}

}  // namespace

absl::Status CompleteFromSlurm(const VariableLookup& variable, const v1::JobSpec& spec,
                               RendezvousFlags* flags) {
  // Only processes of a step have it: no batch script and no shell of salloc.
  if (!variable("SLURM_STEP_NUM_NODES")) return absl::OkStatus();
  if (spec.max_nodes() < 2) return CheckIsAlone(variable);
  MESHRUN_ASSIGN_OR_RETURN(const uint32_t nodes, Number(variable, "SLURM_STEP_NUM_NODES"));
  if (nodes < 2) return CheckIsAlone(variable);
  MESHRUN_ASSIGN_OR_RETURN(const std::string step, NameOfStep(variable));
  const bool finds_by_endpoint = !flags->endpoint.empty();
  if (!finds_by_endpoint && flags->node_rank.empty()) {
    if (nodes < spec.min_nodes() || nodes > spec.max_nodes()) {
      return absl::InvalidArgumentError(
          fmt::format("{}: srun started this on {} nodes: write --nnodes $SLURM_NNODES, or give "
                      "srun --nodes",
                      Nodes(spec), nodes));
    }
    MESHRUN_ASSIGN_OR_RETURN(const uint32_t tasks, Number(variable, "SLURM_STEP_NUM_TASKS"));
    if (tasks != nodes) {
      return absl::InvalidArgumentError(fmt::format(
          "srun started this as {} on {} nodes, and 'meshrun run' starts the ranks of a node "
          "itself (--nproc-per-node): write srun --ntasks={} --ntasks-per-node=1",
          Count(tasks, "task"), nodes, nodes));
    }
    MESHRUN_ASSIGN_OR_RETURN(const uint32_t rank, Number(variable, "SLURM_PROCID"));
    flags->node_rank = fmt::format("{}", rank);
  }
  if (!finds_by_endpoint && flags->master_addr.empty()) {
    MESHRUN_ASSIGN_OR_RETURN(const std::string hosts, Needed(variable, "SLURM_STEP_NODELIST"));
    auto first = FirstHost(hosts);
    if (!first.ok()) return Annotate(first.status(), "SLURM_STEP_NODELIST");
    flags->master_addr = *std::move(first);
    if (flags->master_port.empty()) {
      flags->master_port = fmt::format("{}", PortOfJob("meshrun run " + step));
    }
  }
  flags->step_secret_file = fmt::format("{}/.meshrun-{}", spec.working_dir(), step);
  return absl::OkStatus();
}

std::string HowToStart(const VariableLookup& variable, const v1::JobSpec& spec) {
  if (const auto job = variable("SLURM_JOB_ID")) {
    return fmt::format(
        "{}: 'meshrun run' starts this host's ranks, and srun starts it on each node of Slurm job "
        "{}: write srun --nodes={} --ntasks={} --ntasks-per-node=1 meshrun run ...",
        Nodes(spec), *job, spec.min_nodes(), spec.min_nodes());
  }
  return fmt::format(
      "{}: 'meshrun run' starts this host's ranks: call it on each host with --node-rank, "
      "--master-addr and --master-port, or use 'meshrun submit' on a cluster",
      Nodes(spec));
}

}  // namespace meshrun::client
