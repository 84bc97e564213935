#include "parallel/manager/launcher_variables.h"

#include <optional>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "core/slurm.h"
#include "fmt/format.h"
#include "parallel/manager/variable_reader.h"

namespace meshrun {
namespace {

constexpr int kDefaultPort = 12355;

absl::StatusOr<LaunchEnvironment> finish(LaunchEnvironment environment, VariableReader& reader,
                                         const char* rank_name, const char* size_name) {
  const LaunchEnvironment& e = environment;
  if (e.rank >= e.world_size) {
    reader.fail(fmt::format("{}={} does not fit {}={}: ranks are 0 to {}", rank_name, e.rank,
                            size_name, e.world_size, e.world_size - 1));
  }
  if (e.local_world_size && *e.local_world_size > e.world_size) {
    reader.fail(fmt::format("the local world size {} is larger than {}={}", *e.local_world_size,
                            size_name, e.world_size));
  }
  if (e.local_rank && *e.local_rank >= e.local_world_size.value_or(e.world_size)) {
    reader.fail(fmt::format("the local rank {} does not fit the local world size {}", *e.local_rank,
                            e.local_world_size.value_or(e.world_size)));
  }
  if (absl::Status status = reader.status(); !status.ok()) return status;
  environment.identity += fmt::format(", world size {}", e.world_size);
  return environment;
}

// The identity of a job whose launcher does not number its jobs.
std::string unnumbered_identity(const EnvironmentLookup& lookup,
                                const LaunchEnvironment& environment, const std::string& process) {
  return job_identity(
      lookup, fmt::format("{} {}:{}{}{}", to_string(environment.method), environment.master_addr,
                          environment.master_port, process.empty() ? "" : ", ", process));
}

// `numbered` is the identity by the launcher's number of the job, from which the port follows too.
void identify(LaunchEnvironment& environment, VariableReader& reader,
              const std::optional<std::string>& numbered, const std::string& process) {
  environment.master_port = numbered ? PortOfJob(*numbered) : kDefaultPort;
  reader.port("MASTER_PORT", environment.master_port);
  environment.identity =
      numbered ? *numbered : unnumbered_identity(reader.lookup(), environment, process);
}

// MPI launchers tell the ranks nothing of rank 0's host, and ranks on one host need no more.
// `local_world_size`: how many ranks are surely here.
std::string address_within_mpi(VariableReader& reader, int local_world_size, int world_size) {
  const std::optional<std::string> address = reader.text("MASTER_ADDR");
  if (!address && local_world_size < world_size) reader.missing("MASTER_ADDR");
  return address.value_or("localhost");
}

absl::StatusOr<LaunchEnvironment> read_env(const EnvironmentLookup& lookup,
                                           const std::string& process) {
  VariableReader reader(
      lookup, LaunchMethod::kEnv,
      "set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT together (meshrun run and torchrun do), "
      "or none of them for a single process");
  LaunchEnvironment environment{.method = LaunchMethod::kEnv};
  environment.rank = reader.required_integer("RANK");
  environment.world_size = reader.required_integer("WORLD_SIZE", 1);
  environment.master_addr = reader.required_text("MASTER_ADDR");
  reader.required_text("MASTER_PORT");
  reader.port("MASTER_PORT", environment.master_port);
  environment.local_rank = read_local_rank(reader, environment.method);
  environment.local_world_size = reader.integer("LOCAL_WORLD_SIZE", 1);
  environment.node_rank = reader.integer("GROUP_RANK");
  if (!environment.node_rank) environment.node_rank = reader.integer("NODE_RANK");

  const auto run = reader.text("TORCHELASTIC_RUN_ID");
  environment.identity = run ? job_identity(lookup, fmt::format("torchrun {}", *run))
                             : unnumbered_identity(lookup, environment, process);
  if (reader.text("TORCHELASTIC_USE_AGENT_STORE").value_or("") == "True") {
    environment.store_is_hosted = true;
    environment.store_prefix =
        fmt::format("attempt_{}/", reader.text("TORCHELASTIC_RESTART_COUNT").value_or("0"));
  }
  return finish(std::move(environment), reader, "RANK", "WORLD_SIZE");
}

std::string slurm_address(VariableReader& reader) {
  if (const auto address = reader.text("MASTER_ADDR")) return *address;
  if (reader.text("SLURM_STEP_NUM_NODES").value_or("") == "1") return "127.0.0.1";
  // srun started from a login node names that node as the launch node, and rank 0 does not run
  // there.
  for (const char* name :
       {"SLURM_STEP_NODELIST", "SLURM_LAUNCH_NODE_IPADDR", "SLURM_JOB_NODELIST"}) {
    const std::optional<std::string> value = reader.text(name);
    if (!value) continue;
    if (std::string_view(name) == "SLURM_LAUNCH_NODE_IPADDR") return *value;
    absl::StatusOr<std::string> host = FirstHost(*value);
    if (host.ok()) return *host;
    reader.fail(fmt::format("{}: {}", name, std::string(host.status().message())));
    return "";
  }
  reader.missing("SLURM_LAUNCH_NODE_IPADDR");
  return "";
}

absl::StatusOr<LaunchEnvironment> read_slurm(const EnvironmentLookup& lookup,
                                             const std::string& process) {
  VariableReader reader(lookup, LaunchMethod::kSlurm,
                        "start the program with srun, or force another method with "
                        "MESHRUN_DISTRIBUTED_INITIALIZATION_METHOD (ENV, OPENMPI, MPICH, SINGLE)");
  LaunchEnvironment environment{.method = LaunchMethod::kSlurm};
  environment.rank = reader.required_integer("SLURM_PROCID");
  const bool has_tasks = !reader.text("SLURM_NPROCS") && reader.text("SLURM_NTASKS");
  const char* size_name = has_tasks ? "SLURM_NTASKS" : "SLURM_NPROCS";
  environment.world_size = reader.required_integer(size_name, 1);
  // sbatch sets the variables of task 0 for its script; srun sets those of a step.
  if (environment.world_size > 1 && reader.text("ENVIRONMENT") == "BATCH" &&
      !reader.text("SLURM_STEP_ID") && !reader.text("SLURM_STEP_NUM_TASKS")) {
    reader.fail(
        fmt::format("{}={}, and this process was started by a batch script without srun, so the "
                    "other ranks would never come: write srun before the program, or set "
                    "MESHRUN_DISTRIBUTED_INITIALIZATION_METHOD=SINGLE for a single process",
                    size_name, environment.world_size));
  }
  environment.local_rank = read_local_rank(reader, environment.method);
  environment.node_rank = reader.integer("SLURM_NODEID");
  environment.master_addr = slurm_address(reader);

  std::optional<std::string> numbered;
  if (const std::optional<std::string> job = reader.text("SLURM_JOB_ID")) {
    numbered =
        fmt::format("Slurm job {} step {}", *job, reader.text("SLURM_STEP_ID").value_or("batch"));
  }
  identify(environment, reader, numbered, process);
  return finish(std::move(environment), reader, "SLURM_PROCID", size_name);
}

absl::StatusOr<LaunchEnvironment> read_openmpi(const EnvironmentLookup& lookup,
                                               const std::string& process) {
  VariableReader reader(lookup, LaunchMethod::kOpenMpi,
                        "start the program with mpirun, across hosts as "
                        "\"mpirun -x MASTER_ADDR=<host of rank 0> ...\"");
  LaunchEnvironment environment{.method = LaunchMethod::kOpenMpi};
  environment.rank = reader.required_integer("OMPI_COMM_WORLD_RANK");
  environment.world_size = reader.required_integer("OMPI_COMM_WORLD_SIZE", 1);
  environment.local_rank = read_local_rank(reader, environment.method);
  environment.local_world_size = reader.integer("OMPI_COMM_WORLD_LOCAL_SIZE", 1);
  environment.master_addr =
      address_within_mpi(reader, environment.local_world_size.value_or(environment.world_size),
                         environment.world_size);

  std::optional<std::string> job = reader.text("PMIX_NAMESPACE");
  if (!job) job = reader.text("OMPI_MCA_ess_base_jobid");
  if (job) job = fmt::format("Open MPI job {}", *job);
  identify(environment, reader, job, process);
  return finish(std::move(environment), reader, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
}

// Hydra (MPICH, Intel MPI) sets PMI_* and MPI_LOCAL*; Cray's PALS sets PALS_*, and PMI_* through
// its PMI library or the launcher.
absl::StatusOr<LaunchEnvironment> read_mpich(const EnvironmentLookup& lookup,
                                             const std::string& process) {
  VariableReader reader(
      lookup, LaunchMethod::kMpich,
      "start the program with mpiexec, across hosts as "
      "\"mpiexec -genv MASTER_ADDR <host of rank 0> ...\", or set RANK, WORLD_SIZE, "
      "MASTER_ADDR and MASTER_PORT");
  LaunchEnvironment environment{.method = LaunchMethod::kMpich};
  const char* rank_name =
      !reader.text("PMI_RANK") && reader.text("PALS_RANKID") ? "PALS_RANKID" : "PMI_RANK";
  if (reader.text("PMIX_RANK") && !reader.text(rank_name) && !reader.text("PMI_SIZE")) {
    reader.fail(
        "PMIX_RANK is set, by a launcher with PMIx alone such as prun, which tells the world's "
        "size in no variable: set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or start the "
        "program with mpirun, srun or meshrun run");
  }
  environment.rank = reader.required_integer(rank_name);
  environment.world_size = reader.required_integer("PMI_SIZE", 1);
  environment.local_rank = read_local_rank(reader, environment.method);
  environment.local_world_size =
      reader.first_integer({"MPI_LOCALNRANKS", "PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE"}, 1);
  environment.node_rank = reader.integer("PALS_NODEID");
  environment.master_addr =
      address_within_mpi(reader, environment.local_world_size.value_or(1), environment.world_size);

  std::optional<std::string> job = reader.text("PALS_APID");
  if (job) job = fmt::format("PALS job {}", *job);
  identify(environment, reader, job, process);
  return finish(std::move(environment), reader, rank_name, "PMI_SIZE");
}

absl::StatusOr<LaunchEnvironment> read_coordinator(const EnvironmentLookup& lookup) {
  if (!lookup("MESHRUN_AGENT")) {
    return absl::InvalidArgumentError(
        "MESHRUN_AGENT is not set, though a COORDINATOR launch was asked for: start the program "
        "with meshrun run or meshrun submit");
  }
  return LaunchEnvironment{.method = LaunchMethod::kCoordinator};
}

}  // namespace

absl::StatusOr<LaunchEnvironment> read_launcher_variables(const EnvironmentLookup& lookup,
                                                          LaunchMethod method,
                                                          const std::string& process) {
  switch (method) {
    case LaunchMethod::kCoordinator:
      return read_coordinator(lookup);
    case LaunchMethod::kEnv:
      return read_env(lookup, process);
    case LaunchMethod::kSlurm:
      return read_slurm(lookup, process);
    case LaunchMethod::kOpenMpi:
      return read_openmpi(lookup, process);
    case LaunchMethod::kMpich:
      return read_mpich(lookup, process);
    case LaunchMethod::kSingle:
      break;
  }
  return LaunchEnvironment{
      .local_rank = 0, .local_world_size = 1, .node_rank = 0, .identity = "single process"};
}

std::optional<int> read_local_rank(VariableReader& reader, LaunchMethod method) {
  switch (method) {
    case LaunchMethod::kEnv:
      return reader.integer("LOCAL_RANK");
    case LaunchMethod::kSlurm:
      return reader.integer("SLURM_LOCALID");
    case LaunchMethod::kOpenMpi:
      return reader.integer("OMPI_COMM_WORLD_LOCAL_RANK");
    case LaunchMethod::kMpich:
      return reader.first_integer({"MPI_LOCALRANKID", "PALS_LOCAL_RANKID", "PMI_LOCAL_RANK"});
    case LaunchMethod::kCoordinator:
    case LaunchMethod::kSingle:
      break;
  }
  return std::nullopt;
}

}  // namespace meshrun
