#include "parallel/manager/environment.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <set>
#include <string_view>
#include <system_error>
#include <vector>

#include "absl/status/status.h"
#include "core/fingerprint.h"
#include "fmt/format.h"
#include "parallel/manager/launcher_variables.h"
#include "parallel/manager/variable_reader.h"

namespace meshrun {
namespace {

constexpr char kForceVariable[] = "MESHRUN_DISTRIBUTED_INITIALIZATION_METHOD";
constexpr char kPhysicsNemoForceVariable[] = "PHYSICSNEMO_DISTRIBUTED_INITIALIZATION_METHOD";

std::vector<std::string> split_at_commas(const std::string& text) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == ',') {
      parts.emplace_back();
    } else if (c != ' ') {
      parts.back() += c;
    }
  }
  return parts;
}

// Whether mpirun or mpiexec has started the ranks within a Slurm step: their number is not that of
// the step's tasks. A batch script is a step of one task, whatever SLURM_NTASKS says of the job.
// Never by rank, since all ranks must choose alike. A size of 1 shows nothing: srun exports what an
// outer launcher of one process has left.
bool contradicts_slurm(const EnvironmentLookup& lookup, const char* rank, const char* size) {
  const std::optional<std::string> its_size = lookup(size);
  if (!lookup(rank) || !its_size || *its_size == "1") return false;
  return *its_size != lookup("SLURM_STEP_NUM_TASKS").value_or("1");
}

absl::StatusOr<LaunchMethod> choose_method(const EnvironmentLookup& lookup,
                                           const std::optional<std::string>& forced) {
  std::string source = "initialize()'s method";
  std::optional<std::string> name = forced;
  for (const char* variable : {kForceVariable, kPhysicsNemoForceVariable}) {
    if (name) break;
    name = lookup(variable);
    source = variable;
  }
  if (name) {
    for (const LaunchMethod method :
         {LaunchMethod::kCoordinator, LaunchMethod::kEnv, LaunchMethod::kSlurm,
          LaunchMethod::kOpenMpi, LaunchMethod::kMpich, LaunchMethod::kSingle}) {
      if (*name == to_string(method)) return method;
    }
    return absl::InvalidArgumentError(
        fmt::format("{}=\"{}\" is not an initialization method: use COORDINATOR, ENV, SLURM, "
                    "OPENMPI, MPICH or SINGLE",
                    source, *name));
  }
  if (lookup("MESHRUN_AGENT")) return LaunchMethod::kCoordinator;
  if (lookup("RANK") || lookup("WORLD_SIZE")) return LaunchMethod::kEnv;
  if (lookup("SLURM_PROCID") &&
      !contradicts_slurm(lookup, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE") &&
      !contradicts_slurm(lookup, "PMI_RANK", "PMI_SIZE")) {
    return LaunchMethod::kSlurm;
  }
  if (lookup("OMPI_COMM_WORLD_RANK") || lookup("OMPI_COMM_WORLD_SIZE")) {
    return LaunchMethod::kOpenMpi;
  }
  if (lookup("PMI_RANK") || lookup("PMI_SIZE") || lookup("PALS_RANKID")) {
    return LaunchMethod::kMpich;
  }
  // Last: wrappers set LOCAL_RANK for programs that srun or mpirun started.
  if (lookup("LOCAL_RANK") || lookup("LOCAL_WORLD_SIZE")) return LaunchMethod::kEnv;
  if (lookup("PMIX_RANK") || lookup("MPI_LOCALRANKID") || lookup("PALS_LOCAL_RANKID")) {
    return LaunchMethod::kMpich;
  }
  return LaunchMethod::kSingle;
}

absl::StatusOr<std::optional<std::chrono::milliseconds>> read_seconds(
    const EnvironmentLookup& lookup, const char* name, double minimum, bool or_zero) {
  const std::optional<std::string> text = lookup(name);
  if (!text) return std::optional<std::chrono::milliseconds>();
  char* end = nullptr;
  const double seconds = std::strtod(text->c_str(), &end);
  // Gloo and NCCL count milliseconds in an int.
  constexpr double kMaximum = std::numeric_limits<int32_t>::max() / 1000;
  const bool is_zero = or_zero && seconds == 0;
  if (end == text->c_str() || *end != '\0' || !std::isfinite(seconds) ||
      (!is_zero && (seconds < minimum || seconds > kMaximum))) {
    return absl::InvalidArgumentError(
        fmt::format("{}=\"{}\" is not a number of seconds between {:g} and {:.0f}{}", name, *text,
                    minimum, kMaximum, or_zero ? ", nor 0" : ""));
  }
  return std::optional(std::chrono::milliseconds(std::llround(seconds * 1000)));
}

}  // namespace

const char* to_string(LaunchMethod method) {
  switch (method) {
    case LaunchMethod::kCoordinator:
      return "COORDINATOR";
    case LaunchMethod::kEnv:
      return "ENV";
    case LaunchMethod::kSlurm:
      return "SLURM";
    case LaunchMethod::kOpenMpi:
      return "OPENMPI";
    case LaunchMethod::kMpich:
      return "MPICH";
    case LaunchMethod::kSingle:
      break;
  }
  return "SINGLE";
}

EnvironmentLookup process_environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    if (value == nullptr || *value == '\0') return std::nullopt;
    return value;
  };
}

absl::StatusOr<LaunchEnvironment> detect_environment(const EnvironmentLookup& lookup,
                                                     const std::optional<std::string>& forced,
                                                     const std::string& process) {
  const absl::StatusOr<LaunchMethod> method = choose_method(lookup, forced);
  if (!method.ok()) return method.status();
  absl::StatusOr<LaunchEnvironment> environment = read_launcher_variables(lookup, *method, process);
  if (!environment.ok()) return environment.status();
  const auto timeout = read_timeout(lookup);
  if (!timeout.ok()) return timeout.status();
  environment->timeout = *timeout;
  const auto deadlock_after = read_deadlock_after(lookup);
  if (!deadlock_after.ok()) return deadlock_after.status();
  environment->deadlock_after = *deadlock_after;
  VariableReader reader(lookup, *method, "");
  environment->model_parallel_size = reader.integer("MODEL_PARALLEL_SIZE", 1);
  if (absl::Status status = reader.status(); !status.ok()) return status;
  // Only ranks that have it alike may meet.
  if (const std::optional<int>& size = environment->model_parallel_size) {
    environment->identity += fmt::format(", MODEL_PARALLEL_SIZE={}", *size);
  }
  return environment;
}

absl::Status check_model_parallel_size(std::optional<int> size, int world_size,
                                       std::optional<int64_t> axis) {
  if (size && world_size % *size != 0) {
    return absl::InvalidArgumentError(fmt::format(
        "MODEL_PARALLEL_SIZE={} does not divide the world size {}: start a multiple of {} ranks, "
        "or set another size",
        *size, world_size, *size));
  }
  if (size && axis && *axis != *size) {
    return absl::InvalidArgumentError(fmt::format(
        "MODEL_PARALLEL_SIZE={} contradicts the mesh, whose axis \"model_parallel\" has {} ranks: "
        "unset the variable",
        *size, *axis));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<std::chrono::milliseconds>> read_timeout(
    const EnvironmentLookup& lookup) {
  return read_seconds(lookup, "MESHRUN_TIMEOUT_SECONDS", 0.001, /*or_zero=*/false);
}

absl::StatusOr<std::optional<std::chrono::milliseconds>> read_deadlock_after(
    const EnvironmentLookup& lookup) {
  return read_seconds(lookup, "MESHRUN_DEADLOCK_SECONDS", 3, /*or_zero=*/true);
}

std::string this_process() {
  std::error_code ignored;
  std::string program = std::filesystem::read_symlink("/proc/self/exe", ignored).string();
  // What the kernel appends where the file was replaced since.
  constexpr std::string_view kDeleted = " (deleted)";
  if (program.ends_with(kDeleted)) program.resize(program.size() - kDeleted.size());
  const std::string directory = std::filesystem::current_path(ignored).string();
  return fmt::format("user {}, {}, directory {:016x}", geteuid(), program, Fingerprint(directory));
}

std::string job_identity(const EnvironmentLookup& lookup, const std::string& unnumbered) {
  const std::optional<std::string> job = lookup("MESHRUN_JOB_ID");
  if (!job) return unnumbered;
  return fmt::format("meshrun job {} generation {}", *job,
                     lookup("MESHRUN_GENERATION").value_or("0"));
}

std::optional<int> assigned_gpu(const EnvironmentLookup& lookup) {
  const std::optional<std::string> mine = lookup("MESHRUN_GPUS");
  const std::optional<std::string> visible = lookup("CUDA_VISIBLE_DEVICES");
  if (!mine || !visible) return std::nullopt;
  const std::vector<std::string> all = split_at_commas(*visible);
  const auto found = std::find(all.begin(), all.end(), split_at_commas(*mine).front());
  if (found == all.end()) return std::nullopt;
  return static_cast<int>(found - all.begin());
}

int gpu_index(int local_rank, int gpus, std::optional<int> assigned,
              const std::vector<int>& launched) {
  if (assigned) return *assigned;
  std::set<int> taken;
  for (const int rank : launched) taken.insert(rank % gpus);
  const bool are_apart = !launched.empty() && taken.size() == launched.size();
  return (are_apart ? launched.front() : local_rank) % gpus;
}

int launched_local_rank(const EnvironmentLookup& lookup) {
  const absl::StatusOr<LaunchMethod> method = choose_method(lookup, std::nullopt);
  if (!method.ok()) return -1;
  VariableReader reader(lookup, *method, "");
  return read_local_rank(reader, *method).value_or(-1);
}

absl::StatusOr<int> parse_port(const std::string& name, const std::string& text) {
  int port = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, port);
  if (error != std::errc() || stop != end || port < 1 || port > 65535) {
    return absl::InvalidArgumentError(
        fmt::format("{}=\"{}\" is not a port (1 to 65535)", name, text));
  }
  return port;
}

}  // namespace meshrun
