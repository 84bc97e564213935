// meshrun doctor: what is installed and how this host is set up, with what to do about it.
#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include "client/cli/context.h"
#include "client/coordinator_address.h"
#include "client/dev_cluster.h"
#include "client/job_spec.h"
#include "client/local_cluster.h"
#include "client/render/checks.h"
#include "client/render/cluster_report.h"
#include "client/render/report.h"
#include "core/certificates/certificate.h"
#include "core/certificates/expiry.h"
#include "core/exit_codes.h"
#include "core/os/cores.h"
#include "core/os/files.h"
#include "core/os/process.h"
#include "core/os/shared_memory.h"
#include "core/proto_time.h"
#include "core/rpc/roles.h"
#include "core/text.h"
#include "core/version.h"

namespace meshrun::client {
namespace {

namespace fs = std::filesystem;

struct DoctorFlags {
  CoordinatorFlags coordinator;
  std::string output;
};

void CheckPrograms(Checks* checks) {
  checks->push_back({Level::kOk, "meshrun", fmt::format("{} at {}", kVersion, os::SelfPath()), ""});
  std::string worker;
  for (const char* program : {"meshrun-coordinator", "meshrun-worker"}) {
    const auto path = os::FindOwnProgram(program);
    checks->push_back(
        {path.ok() ? Level::kOk : Level::kFail, program, path.ok() ? *path : "not installed",
         path.ok() ? ""
                   : "install it beside meshrun, or build //coordinator:meshrun-coordinator "
                     "//worker:meshrun-worker"});
    if (path.ok()) worker = *path;
  }
  const std::vector<std::string> jobs =
      worker.empty() ? std::vector<std::string>() : ShippedJobs(worker);
  checks->push_back(
      {jobs.empty() ? Level::kWarn : Level::kOk, "shipped jobs",
       jobs.empty() ? "none" : fmt::format("{}", fmt::join(jobs, ", ")),
       jobs.empty() ? "build them (they need LibTorch): bazel build //jobs/geoid; own programs run "
                      "without them"
                    : ""});
}

void CheckCertificates(const DoctorFlags& flags, Checks* checks) {
  const rpc::TlsFiles& tls = flags.coordinator.security.tls;
  for (const std::string& file : {tls.cert, tls.ca}) {
    if (file.empty()) continue;
    const auto pem = os::ReadFile(file);
    const auto certificate = pem.ok() ? certificates::ReadCertificate(*pem) : pem.status();
    if (!certificate.ok()) {
      checks->push_back({Level::kFail, file, std::string(certificate.status().message()),
                         "'meshrun ca issue' makes certificates"});
      continue;
    }
    const certificates::Expiry stage = certificates::ExpiryAt(WallNow(), certificate->validity());
    const bool far = stage == certificates::Expiry::kFar;
    const bool over = stage == certificates::Expiry::kOver;
    const std::string roles =
        certificate->authority
            ? "authority"
            : rpc::RoleNames(rpc::MakeIdentity(certificate->common_name, certificate->uris).roles);
    checks->push_back({far    ? Level::kOk
                       : over ? Level::kFail
                              : Level::kWarn,
                       file,
                       fmt::format("'{}', {}, {}", certificate->common_name, roles,
                                   certificates::DescribeEnd(WallNow(), certificate->not_after)),
                       far                      ? ""
                       : certificate->authority ? "make another authority, and certificates of it"
                                                : "renew it: meshrun ca renew DIR"});
  }
}

void CheckCoordinator(const DoctorFlags& flags, Checks* checks) {
  const auto resolved = FindCoordinator(flags.coordinator.address);
  if (!resolved.ok()) {
    checks->push_back(
        {Level::kWarn, "coordinator", "there is none", std::string(resolved.status().message())});
    return;
  }
  const CoordinatorAddress& where = *resolved;
  const std::string what = fmt::format("coordinator {}", where.address);
  const auto client = ConnectTo(flags.coordinator);
  const auto before = WallNow();
  const auto cluster = client.ok() ? (*client)->DescribeCluster(1) : client.status();
  const auto after = WallNow();
  const bool named = where.source != kDefaultSource;
  if (!cluster.ok()) {
    checks->push_back({named ? Level::kFail : Level::kWarn, what,
                       named ? fmt::format("does not answer ({})", where.source) : "there is none",
                       named ? std::string(cluster.status().message())
                             : "'meshrun run' needs none; 'meshrun dev up' starts one"});
    return;
  }
  const bool same = cluster->version() == kVersion;
  checks->push_back(
      {same ? Level::kOk : Level::kWarn, what,
       fmt::format("version {}, term {}, {} of {} healthy ({})", cluster->version(),
                   cluster->term(), cluster->nodes_healthy(), Count(cluster->nodes_total(), "node"),
                   where.source),
       same ? "" : fmt::format("this command is {}: install the same version on both", kVersion)});
  if (!cluster->read_only_reason().empty()) {
    checks->push_back({Level::kFail, "its state", cluster->read_only_reason(),
                       "make room on its disk and restart it"});
  }
  if (cluster->has_now()) {
    const auto theirs = FromProto(cluster->now());
    const auto middle = before + (after - before) / 2;
    const auto difference = theirs > middle ? theirs - middle : middle - theirs;
    const bool near = difference < std::chrono::seconds(2);
    checks->push_back(
        {near ? Level::kOk : Level::kWarn, "clock",
         fmt::format("{} from the coordinator's", FormatDuration(difference)),
         near ? ""
              : "times shown will be wrong (no decision rests on them): run NTP on both hosts"});
  }
  const auto nodes = (*client)->ListNodes().value_or(std::vector<v1::Node>());
  for (const v1::Node& node : nodes) {
    if (node.state() != v1::NODE_STATE_HEALTHY) {
      checks->push_back(
          {Level::kWarn, "node " + node.name(),
           fmt::format("{}{}{}", StateName(node.state()), node.problems().empty() ? "" : ": ",
                       fmt::join(node.problems(), "; ")),
           node.problems().empty() ? "see its daemon's log" : "mend it there"});
    } else if (node.version() != kVersion) {
      checks->push_back({Level::kWarn, "node " + node.name(), "version " + node.version(),
                         fmt::format("install {} there too", kVersion)});
    }
    if (CertificateIsEnding(node, WallNow())) {
      const auto end = FromProto(node.certificate_ends_at());
      checks->push_back({Level::kWarn, "node " + node.name(),
                         "its certificate " + certificates::DescribeEnd(WallNow(), end),
                         "renew it: meshrun ca renew DIR, and copy tls.crt to the host"});
    }
  }
  for (Check& check : LimitChecks(nodes)) checks->push_back(std::move(check));
}

// What NVML says, without linking it.
void CheckGpu(Checks* checks) {
  const bool device = ::access("/dev/nvidia0", F_OK) == 0;
  void* library = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    checks->push_back({device ? Level::kFail : Level::kOk, "gpu",
                       device ? "/dev/nvidia0, but no NVML" : "none",
                       device ? "install the driver's libnvidia-ml.so.1" : ""});
    return;
  }
  const auto init = reinterpret_cast<int (*)()>(::dlsym(library, "nvmlInit_v2"));
  const auto count_devices =
      reinterpret_cast<int (*)(unsigned*)>(::dlsym(library, "nvmlDeviceGetCount_v2"));
  const auto driver_version =
      reinterpret_cast<int (*)(char*, unsigned)>(::dlsym(library, "nvmlSystemGetDriverVersion"));
  unsigned count = 0;
  char driver[96] = "?";
  if (init == nullptr || count_devices == nullptr || init() != 0 || count_devices(&count) != 0) {
    checks->push_back({device ? Level::kFail : Level::kOk, "gpu",
                       device ? "NVML does not start" : "none",
                       device ? "see 'nvidia-smi': driver and library may differ in version" : ""});
    return;
  }
  if (driver_version != nullptr) driver_version(driver, sizeof(driver));
  checks->push_back(
      {Level::kOk, "gpu", fmt::format("{}, driver {}", Count(count, "GPU"), driver), ""});
}

uint64_t MemInfo(const std::string& name) {
  const auto text = os::ReadFile("/proc/meminfo");
  const size_t at = text.ok() ? text->find(name + ":") : std::string::npos;
  return at == std::string::npos
             ? 0
             : std::strtoull(text->c_str() + at + name.size() + 1, nullptr, 10) * 1024;
}

uint64_t FreeBytes(const std::string& path) {
  struct statvfs info;
  return ::statvfs(path.c_str(), &info) == 0 ? uint64_t{info.f_bavail} * info.f_frsize : 0;
}

void CheckHost(Checks* checks) {
  const uint32_t cores = os::WholeCores();
  checks->push_back(
      {Level::kOk, "cpu",
       fmt::format("{}, offered as {}", Count(cores, "core"), Count(DefaultSlots(cores), "slot")),
       ""});

  const uint64_t available = MemInfo("MemAvailable");
  const bool enough = available >= (uint64_t{1} << 30);
  checks->push_back(
      {enough ? Level::kOk : Level::kWarn, "memory",
       fmt::format("{} of {} available", FormatBytes(available), FormatBytes(MemInfo("MemTotal"))),
       enough ? "" : "a LibTorch rank needs about 300 MiB before it holds any data"});

  const os::SharedMemoryRoom shm = os::FindSharedMemoryRoom().value_or(os::SharedMemoryRoom());
  const bool shm_enough = shm.ranks() >= DefaultSlots(cores);
  checks->push_back(
      {shm_enough ? Level::kOk : Level::kWarn, os::kSharedMemoryPath,
       fmt::format("{} of {} free, room for {}", FormatBytes(shm.free_bytes),
                   FormatBytes(shm.total_bytes), Count(shm.ranks(), "rank")),
       shm_enough ? ""
                  : fmt::format("ranks of one host exchange messages there, and each takes {}: "
                                "mount it larger (--shm-size in a container), or set "
                                "UCX_TLS=tcp,self",
                                FormatBytes(os::kSharedMemoryPerRank))});

  const char* tmpdir = std::getenv("TMPDIR");
  const std::string tmp = tmpdir != nullptr && tmpdir[0] != 0 ? tmpdir : "/tmp";
  const uint64_t tmp_free = FreeBytes(tmp);
  const bool tmp_ok = ::access(tmp.c_str(), W_OK) == 0 && tmp_free >= (uint64_t{64} << 20);
  checks->push_back(
      {tmp_ok ? Level::kOk : Level::kFail, tmp, FormatBytes(tmp_free) + " free",
       tmp_ok ? "" : "'meshrun run' keeps sockets and logs there: make room, or set TMPDIR"});

  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  const bool files_ok = files.rlim_cur >= 1024;
  checks->push_back(
      {files_ok ? Level::kOk : Level::kWarn, "open files",
       files.rlim_cur == RLIM_INFINITY ? "unlimited" : fmt::format("{}", files.rlim_cur),
       files_ok ? "" : "ulimit -n 4096"});
  rlimit processes{};
  ::getrlimit(RLIMIT_NPROC, &processes);
  const bool processes_ok = processes.rlim_cur == RLIM_INFINITY || processes.rlim_cur >= 1024;
  checks->push_back(
      {processes_ok ? Level::kOk : Level::kWarn, "processes",
       processes.rlim_cur == RLIM_INFINITY ? "unlimited" : fmt::format("{}", processes.rlim_cur),
       processes_ok ? "" : "every rank has tens of threads: ulimit -u 4096"});

  // MASTER_PORT comes from 20000-29999, which must not be handed out to anybody's connections.
  const auto range = os::ReadFile("/proc/sys/net/ipv4/ip_local_port_range");
  int low = 0;
  int high = 0;
  if (range.ok()) std::istringstream(*range) >> low >> high;
  const bool apart = low > 29999 || high < 20000;
  checks->push_back({apart ? Level::kOk : Level::kWarn, "ports",
                     fmt::format("connections use {}-{}", low, high),
                     apart ? ""
                           : "that overlaps with the ranks' 20000-29999: start workers with "
                             "--port-range outside it"});

  std::vector<std::string> leftovers;
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}) {
    if (std::getenv(name) != nullptr) leftovers.push_back(name);
  }
  if (!leftovers.empty()) {
    checks->push_back({Level::kWarn, "environment",
                       fmt::format("{} set", fmt::join(leftovers, ", ")),
                       "programs started by hand will take this shell for a rank: unset them"});
  }
}

int Run(const DoctorFlags& flags) {
  Checks checks;
  CheckPrograms(&checks);
  CheckCertificates(flags, &checks);
  CheckCoordinator(flags, &checks);
  CheckGpu(&checks);
  CheckHost(&checks);
  const bool failed = std::any_of(checks.begin(), checks.end(),
                                  [](const Check& c) { return c.level == Level::kFail; });
  if (flags.output == "json") {
    nlohmann::json out = {{"ok", !failed}, {"checks", nlohmann::json::array()}};
    for (const Check& c : checks) {
      out["checks"].push_back({{"level", LevelName(c.level)},
                               {"what", c.what},
                               {"found", c.found},
                               {"advice", c.advice}});
    }
    fmt::print("{}\n", out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
    return failed ? kExitJobFailed : kExitOk;
  }
  fmt::print("{}", CheckList(checks, StyleOf(1)));
  return failed ? kExitJobFailed : kExitOk;
}

}  // namespace

void AddDoctor(FlagSet& root, Commands* commands) {
  auto values = std::make_shared<DoctorFlags>();
  FlagSet flags = root.Command("doctor",
                               "Checks this host and the coordinator, and says what to do\n\n"
                               "Programs, shipped jobs, coordinator, versions, clocks, GPUs, "
                               "memory, limits and ports. Exit code 1\n"
                               "where something fails.");
  flags.Examples(
      "  meshrun doctor\n"
      "  meshrun doctor -o json | jq '.checks[] | select(.level != \"ok\")'");
  flags.ListUnder("Set up");
  AddOutputFlag(flags, &values->output);
  AddCoordinatorFlags(flags, &values->coordinator);
  commands->push_back({flags.app(), [values] { return Run(*values); }});
}

}  // namespace meshrun::client
