#include "parallel/manager/environment.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <initializer_list>
#include <limits>
#include <system_error>
#include <vector>

#include "absl/status/status.h"
#include "core/fingerprint.h"
#include "fmt/format.h"

namespace meshrun {
namespace {

constexpr char kForceVariable[] = "MESHRUN_DISTRIBUTED_INITIALIZATION_METHOD";
constexpr char kPhysicsNemoForceVariable[] = "PHYSICSNEMO_DISTRIBUTED_INITIALIZATION_METHOD";
constexpr int kDefaultPort = 12355;

// Reads variables and remembers the first thing that was wrong, so that a method's reading stays a
// plain list.
class Reader {
 public:
  Reader(const EnvironmentLookup& lookup, LaunchMethod method, std::string advice)
      : lookup_(lookup), method_(method), advice_(std::move(advice)) {}

  std::optional<std::string> text(const std::string& name) const { return lookup_(name); }

  std::string required_text(const std::string& name) {
    std::optional<std::string> value = lookup_(name);
    if (!value) missing(name);
    return value.value_or("");
  }

  std::optional<int> integer(const std::string& name, int minimum = 0) {
    const std::optional<std::string> value = lookup_(name);
    if (!value) return std::nullopt;
    int parsed = 0;
    const char* end = value->data() + value->size();
    const auto [stop, error] = std::from_chars(value->data(), end, parsed);
    if (error != std::errc() || stop != end || parsed < minimum) {
      fail(fmt::format("{}=\"{}\" is not an integer of at least {}", name, *value, minimum));
      return std::nullopt;
    }
    return parsed;
  }

  // The first of them that is set.
  std::optional<int> first_integer(std::initializer_list<const char*> names, int minimum = 0) {
    for (const char* name : names) {
      if (lookup_(name)) return integer(name, minimum);
    }
    return std::nullopt;
  }

  int required_integer(const std::string& name, int minimum = 0) {
    if (!lookup_(name)) missing(name);
    return integer(name, minimum).value_or(minimum);
  }

  void port(const std::string& name, int& port) {
    const std::optional<std::string> value = lookup_(name);
    if (!value) return;
    absl::StatusOr<int> parsed = parse_port(name, *value);
    if (parsed.ok()) {
      port = *parsed;
    } else {
      fail(std::string(parsed.status().message()));
    }
  }

  void missing(const std::string& name) {
    fail(fmt::format("{} is not set, though {} launch was found or asked for: {}", name,
                     method_ == LaunchMethod::kEnv || method_ == LaunchMethod::kOpenMpi ||
                             method_ == LaunchMethod::kMpich
                         ? fmt::format("an {}", to_string(method_))
                         : fmt::format("a {}", to_string(method_)),
                     advice_));
  }

  void fail(std::string message) {
    if (error_.empty()) error_ = std::move(message);
  }

  absl::Status status() const {
    return error_.empty() ? absl::OkStatus() : absl::InvalidArgumentError(error_);
  }

 private:
  const EnvironmentLookup& lookup_;
  const LaunchMethod method_;
  const std::string advice_;
  std::string error_;
};

absl::StatusOr<LaunchEnvironment> finish(LaunchEnvironment environment, Reader& reader,
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

absl::StatusOr<LaunchEnvironment> read_env(const EnvironmentLookup& lookup,
                                           const std::string& process) {
  Reader reader(
      lookup, LaunchMethod::kEnv,
      "set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT together (meshrun run and torchrun do), "
      "or none of them for a single process");
  LaunchEnvironment environment{.method = LaunchMethod::kEnv};
  environment.rank = reader.required_integer("RANK");
  environment.world_size = reader.required_integer("WORLD_SIZE", 1);
  environment.master_addr = reader.required_text("MASTER_ADDR");
  reader.required_text("MASTER_PORT");
  reader.port("MASTER_PORT", environment.master_port);
  environment.local_rank = reader.integer("LOCAL_RANK");
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

std::string slurm_address(Reader& reader) {
  if (const auto address = reader.text("MASTER_ADDR")) return *address;
  if (reader.text("SLURM_STEP_NUM_NODES").value_or("") == "1") return "127.0.0.1";
  // srun started from a login node names that node as the launch node, and rank 0 does not run
  // there.
  for (const char* name :
       {"SLURM_STEP_NODELIST", "SLURM_LAUNCH_NODE_IPADDR", "SLURM_JOB_NODELIST"}) {
    const std::optional<std::string> value = reader.text(name);
    if (!value) continue;
    if (std::string_view(name) == "SLURM_LAUNCH_NODE_IPADDR") return *value;
    absl::StatusOr<std::string> host = first_host(*value);
    if (host.ok()) return *host;
    reader.fail(fmt::format("{}: {}", name, std::string(host.status().message())));
    return "";
  }
  reader.missing("SLURM_LAUNCH_NODE_IPADDR");
  return "";
}

absl::StatusOr<LaunchEnvironment> read_slurm(const EnvironmentLookup& lookup,
                                             const std::string& process) {
  Reader reader(lookup, LaunchMethod::kSlurm,
                "start the program with srun, or force another method with "
                "MESHRUN_DISTRIBUTED_INITIALIZATION_METHOD (ENV, OPENMPI, MPICH, SINGLE)");
  LaunchEnvironment environment{.method = LaunchMethod::kSlurm};
  environment.rank = reader.required_integer("SLURM_PROCID");
  const bool has_tasks = !reader.text("SLURM_NPROCS") && reader.text("SLURM_NTASKS");
  const char* size_name = has_tasks ? "SLURM_NTASKS" : "SLURM_NPROCS";
  environment.world_size = reader.required_integer(size_name, 1);
  environment.local_rank = reader.integer("SLURM_LOCALID");
  environment.node_rank = reader.integer("SLURM_NODEID");
  environment.master_addr = slurm_address(reader);

  const std::optional<std::string> job = reader.text("SLURM_JOB_ID");
  environment.master_port = kDefaultPort;
  if (job) {
    const std::string step = reader.text("SLURM_STEP_ID").value_or("batch");
    environment.identity = fmt::format("Slurm job {} step {}", *job, step);
    environment.master_port = port_for(environment.identity);
  }
  reader.port("MASTER_PORT", environment.master_port);
  if (!job) environment.identity = unnumbered_identity(lookup, environment, process);
  return finish(std::move(environment), reader, "SLURM_PROCID", size_name);
}

absl::StatusOr<LaunchEnvironment> read_openmpi(const EnvironmentLookup& lookup,
                                               const std::string& process) {
  Reader reader(lookup, LaunchMethod::kOpenMpi,
                "start the program with mpirun, across hosts as "
                "\"mpirun -x MASTER_ADDR=<host of rank 0> ...\"");
  LaunchEnvironment environment{.method = LaunchMethod::kOpenMpi};
  environment.rank = reader.required_integer("OMPI_COMM_WORLD_RANK");
  environment.world_size = reader.required_integer("OMPI_COMM_WORLD_SIZE", 1);
  environment.local_rank = reader.integer("OMPI_COMM_WORLD_LOCAL_RANK");
  environment.local_world_size = reader.integer("OMPI_COMM_WORLD_LOCAL_SIZE", 1);

  const std::optional<std::string> address = reader.text("MASTER_ADDR");
  if (!address &&
      environment.local_world_size.value_or(environment.world_size) < environment.world_size) {
    reader.missing("MASTER_ADDR");
  }
  environment.master_addr = address.value_or("localhost");

  std::optional<std::string> job = reader.text("PMIX_NAMESPACE");
  if (!job) job = reader.text("OMPI_MCA_ess_base_jobid");
  environment.master_port = kDefaultPort;
  if (job) {
    environment.identity = fmt::format("Open MPI job {}", *job);
    environment.master_port = port_for(environment.identity);
  }
  reader.port("MASTER_PORT", environment.master_port);
  if (!job) environment.identity = unnumbered_identity(lookup, environment, process);
  return finish(std::move(environment), reader, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
}

// Hydra (MPICH, Intel MPI) sets PMI_* and MPI_LOCAL*; Cray's PALS sets PALS_*, and PMI_* through
// its PMI library or the launcher.
absl::StatusOr<LaunchEnvironment> read_mpich(const EnvironmentLookup& lookup,
                                             const std::string& process) {
  Reader reader(lookup, LaunchMethod::kMpich,
                "start the program with mpiexec, across hosts as "
                "\"mpiexec -genv MASTER_ADDR <host of rank 0> ...\", or set RANK, WORLD_SIZE, "
                "MASTER_ADDR and MASTER_PORT");
  LaunchEnvironment environment{.method = LaunchMethod::kMpich};
  const char* rank_name =
      !reader.text("PMI_RANK") && reader.text("PALS_RANKID") ? "PALS_RANKID" : "PMI_RANK";
  if (reader.text("PMIX_RANK") && !reader.text(rank_name) && !reader.text("PMI_SIZE")) {
    reader.fail(
        "PMIX_RANK is set, by a launcher with PMIx alone such as prun, which tells the world's "
        "size "
        "in no variable: set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or start the program "
        "with mpirun, srun or meshrun run");
  }
  environment.rank = reader.required_integer(rank_name);
  environment.world_size = reader.required_integer("PMI_SIZE", 1);
  environment.local_rank =
      reader.first_integer({"MPI_LOCALRANKID", "PALS_LOCAL_RANKID", "PMI_LOCAL_RANK"});
  environment.local_world_size =
      reader.first_integer({"MPI_LOCALNRANKS", "PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE"}, 1);
  environment.node_rank = reader.integer("PALS_NODEID");

  const std::optional<std::string> address = reader.text("MASTER_ADDR");
  if (!address && environment.local_world_size.value_or(1) < environment.world_size) {
    reader.missing("MASTER_ADDR");
  }
  environment.master_addr = address.value_or("localhost");

  const std::optional<std::string> job = reader.text("PALS_APID");
  environment.master_port = kDefaultPort;
  if (job) {
    environment.identity = fmt::format("PALS job {}", *job);
    environment.master_port = port_for(environment.identity);
  }
  reader.port("MASTER_PORT", environment.master_port);
  if (!job) environment.identity = unnumbered_identity(lookup, environment, process);
  return finish(std::move(environment), reader, rank_name, "PMI_SIZE");
}

absl::StatusOr<LaunchEnvironment> read_coordinator(const EnvironmentLookup& lookup) {
  if (!lookup("MESHRUN_AGENT")) {
    return absl::InvalidArgumentError(
        "MESHRUN_AGENT is not set, though a COORDINATOR launch was asked for: start the program "
        "with meshrun run or "
        "meshrun submit");
  }
  return LaunchEnvironment{.method = LaunchMethod::kCoordinator};
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
  std::string source = "InitializeOptions::method";
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

absl::StatusOr<LaunchEnvironment> read(const EnvironmentLookup& lookup, LaunchMethod method,
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
  absl::StatusOr<LaunchEnvironment> environment = read(lookup, *method, process);
  if (!environment.ok()) return environment.status();
  const auto timeout = read_timeout(lookup);
  if (!timeout.ok()) return timeout.status();
  environment->timeout = *timeout;
  const auto deadlock_after = read_deadlock_after(lookup);
  if (!deadlock_after.ok()) return deadlock_after.status();
  environment->deadlock_after = *deadlock_after;
  Reader reader(lookup, *method, "");
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

absl::StatusOr<std::string> first_host(const std::string& hostlist) {
  const size_t end = hostlist.find_first_of(",[");
  std::string host = hostlist.substr(0, end);
  size_t at = end;
  // "rack[1-2]n[03-07]" has several brackets; each gives its first number.
  while (at < hostlist.size() && hostlist[at] == '[') {
    const size_t close = hostlist.find(']', at);
    const size_t stop = hostlist.find_first_of("-,]", at);
    if (close == std::string::npos || stop == at + 1) {
      return absl::InvalidArgumentError(fmt::format("\"{}\" is not a Slurm hostlist", hostlist));
    }
    host += hostlist.substr(at + 1, stop - at - 1);
    at = hostlist.find_first_of(",[", close + 1);
    host += hostlist.substr(close + 1, at == std::string::npos ? at : at - close - 1);
  }
  if (host.empty())
    return absl::InvalidArgumentError(fmt::format("\"{}\" names no host", hostlist));
  return host;
}

int port_for(std::string_view identity) {
  return 10000 + static_cast<int>(Fingerprint(identity) % 10000);
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
