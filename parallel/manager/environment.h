// Which launcher started this process, and what its environment says. No LibTorch, no
// communication; except this_process(), all functions read only their arguments.
//
//   COORDINATOR  needs MESHRUN_AGENT; the daemon tells the rest
//   ENV          needs RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT;
//                reads LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK or NODE_RANK
//   SLURM        needs SLURM_PROCID, SLURM_NPROCS or SLURM_NTASKS, and an address;
//                reads SLURM_LOCALID, SLURM_NODEID, MASTER_ADDR, MASTER_PORT
//   OPENMPI      needs OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE; MASTER_ADDR across hosts;
//                reads OMPI_COMM_WORLD_LOCAL_RANK, OMPI_COMM_WORLD_LOCAL_SIZE, MASTER_PORT
//   MPICH        of MPICH, Intel MPI and Cray's PALS. Needs PMI_RANK or PALS_RANKID, and PMI_SIZE;
//                MASTER_ADDR across hosts, or if the launcher does not say how many ranks are here;
//                reads MPI_LOCALRANKID, PALS_LOCAL_RANKID or PMI_LOCAL_RANK, MPI_LOCALNRANKS,
//                PALS_LOCAL_SIZE or PMI_LOCAL_SIZE, PALS_NODEID, PALS_APID, MASTER_PORT
//   SINGLE       needs nothing
//
// The first method with its variable set is taken: MESHRUN_AGENT; RANK or WORLD_SIZE; SLURM_PROCID;
// OMPI_COMM_WORLD_RANK; PMI_RANK, PMI_SIZE or PALS_RANKID. If none is set, the remains of a launch
// decide: OMPI_COMM_WORLD_SIZE; LOCAL_RANK or LOCAL_WORLD_SIZE; PMIX_RANK, MPI_LOCALRANKID or
// PALS_LOCAL_RANKID. srun sets PMI_RANK and PMI_SIZE too (--mpi=pmi2), to its own numbers. If these
// or Open MPI's are of another size than the step (SLURM_STEP_NUM_TASKS; a batch script has one
// task), and not of size 1, mpirun or mpiexec runs inside the step, whose numbers are those of its
// helpers: then SLURM is not taken. MESHRUN_DISTRIBUTED_INITIALIZATION_METHOD, then
// PHYSICSNEMO_DISTRIBUTED_INITIALIZATION_METHOD, forces a method. SLURM's address is MASTER_ADDR,
// else this host if the step has one node, else the first node of SLURM_STEP_NODELIST, else
// SLURM_LAUNCH_NODE_IPADDR, else the first node of SLURM_JOB_NODELIST. A batch script (ENVIRONMENT
// is BATCH) has the variables of rank 0 and no step: without srun there are no other ranks, which
// is an error.
//
// MODEL_PARALLEL_SIZE, under every method: initialize() makes the group "model_parallel" of so many
// consecutive ranks. It divides the world size and is the same on all ranks.
//
// If SLURM, OPENMPI or PALS gives no MASTER_PORT, it is derived from the job's id, so that two jobs
// on a host do not meet. MPICH and Intel MPI number no jobs: there the port is 12355.
//
// Ranks meet only with ranks of the same identity: the launcher's number of the job (meshrun's,
// torchrun's, Slurm's, Open MPI's, PALS's) and the world size. If the launcher numbers nothing, the
// identity is the address, the port, the user, the program's path and the working directory. Two
// jobs that are equal in all of these, or ranks of one job that differ in one, need a
// MESHRUN_JOB_ID: any text, the same on all ranks of a job.
//
// Errors: INVALID_ARGUMENT. The text names the variable that is missing or malformed and what to
// do; since it depends on the launcher's settings alone, every rank reports it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace meshrun {

// The group that MODEL_PARALLEL_SIZE makes.
inline constexpr char kModelParallel[] = "model_parallel";

enum class LaunchMethod { kSingle, kCoordinator, kEnv, kSlurm, kOpenMpi, kMpich };

// "SINGLE", "COORDINATOR", "ENV", "SLURM", "OPENMPI", "MPICH".
const char* to_string(LaunchMethod method);

struct LaunchEnvironment {
  LaunchMethod method = LaunchMethod::kSingle;
  int rank = 0;
  int world_size = 1;
  // Absent where the launcher does not say.
  std::optional<int> local_rank;
  std::optional<int> local_world_size;
  std::optional<int> node_rank;
  std::string master_addr;
  int master_port = 0;
  // The launcher hosts the store itself (torchrun): rank 0 connects as a client too.
  bool store_is_hosted = false;
  // What separates this attempt's keys in a store that outlives it.
  std::string store_prefix;
  // Equal on the ranks of one job, different between jobs; a store refuses strangers by it.
  std::string identity;
  // MESHRUN_TIMEOUT_SECONDS.
  std::optional<std::chrono::milliseconds> timeout;
  // MESHRUN_DEADLOCK_SECONDS.
  std::optional<std::chrono::milliseconds> deadlock_after;
  // MODEL_PARALLEL_SIZE.
  std::optional<int> model_parallel_size;
};

using EnvironmentLookup = std::function<std::optional<std::string>(const std::string& name)>;

// Reads this process's environment. An empty variable counts as absent.
EnvironmentLookup process_environment();

// `forced` goes before the variables that force a method. `process` is this_process(); it
// distinguishes jobs without a number.
absl::StatusOr<LaunchEnvironment> detect_environment(
    const EnvironmentLookup& lookup, const std::optional<std::string>& forced = std::nullopt,
    const std::string& process = "");

// User, program and working directory: normally equal on the ranks of a job, on all its hosts. The
// directory is hashed, since everyone who reaches the store can read an identity.
std::string this_process();

// MESHRUN_JOB_ID's job, else `unnumbered`.
std::string job_identity(const EnvironmentLookup& lookup, const std::string& unnumbered);

// MESHRUN_TIMEOUT_SECONDS.
absl::StatusOr<std::optional<std::chrono::milliseconds>> read_timeout(
    const EnvironmentLookup& lookup);

// MESHRUN_DEADLOCK_SECONDS: after how long ranks that wait for each other in vain fail. 0: never.
// At least 3, since such ranks report after 2 s and reports settle for 1 s.
absl::StatusOr<std::optional<std::chrono::milliseconds>> read_deadlock_after(
    const EnvironmentLookup& lookup);

// Why a world of `world_size` has no "model_parallel" group of MODEL_PARALLEL_SIZE=`size`, or a
// mesh with an axis of that name and of `axis` ranks contradicts it. Absent values are not checked.
absl::Status check_model_parallel_size(std::optional<int> size, int world_size,
                                       std::optional<int64_t> axis);

// The index of a rank's GPU among the `gpus` (at least 1) that the process sees: `assigned`, else
// the ranks of a host take them in turn. A launcher that binds a GPU to each rank (srun --gpu-bind,
// --gpus-per-task) shows it to that rank alone, as number 0. `launched`: the launcher's local ranks
// of this world's ranks on this host, this rank's first, or nothing. Worlds of parts of a launch
// take different GPUs by these, as far as no two ranks of one world then share a GPU.
int gpu_index(int local_rank, int gpus, std::optional<int> assigned,
              const std::vector<int>& launched = {});

// This process's number among those that the launcher has started on this host; -1: the environment
// does not say.
int launched_local_rank(const EnvironmentLookup& lookup);

// The place of this rank's first GPU (MESHRUN_GPUS) among those that the process sees
// (CUDA_VISIBLE_DEVICES, which under meshrun lists the job's GPUs on the host). Absent if no daemon
// gave it one, or if CUDA_VISIBLE_DEVICES has been changed since.
std::optional<int> assigned_gpu(const EnvironmentLookup& lookup);

// A decimal port, 1 to 65535; `name` is what messages call it.
absl::StatusOr<int> parse_port(const std::string& name, const std::string& text);

}  // namespace meshrun
