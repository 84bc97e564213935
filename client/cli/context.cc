#include "client/cli/context.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "client/coordinator_address.h"
#include "client/daemon_process.h"
#include "core/certificates/certificate.h"
#include "core/clock.h"
#include "core/exit_codes.h"
#include "core/os/process.h"
#include "core/os/process_stat.h"
#include "core/rpc/leader_choice.h"
#include "core/rpc/security_flags.h"
#include "core/status.h"
#include "core/text.h"
#include "core/utf8.h"

namespace meshrun::client {
namespace {

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool LocaleIsUtf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const std::string value = Variable(name);
    if (value.empty()) continue;
    return value.find("UTF-8") != std::string::npos || value.find("utf8") != std::string::npos ||
           value.find("UTF8") != std::string::npos;
  }
  return false;
}

// errno of the first failed write to standard output; 0: none.
int& OutputError() {
  static int error = 0;
  return error;
}

}  // namespace

void AddCoordinatorFlags(FlagSet& flags, CoordinatorFlags* values) {
  flags.Section("Coordinator");
  flags.Text(
      "--coordinator", &values->address, "ADDRESS",
      "unix:PATH, or HOST:PORT with TLS, several with commas; else $MESHRUN_COORDINATOR, the "
      "dev cluster, this user's socket");
  flags.Text("--timeout", &values->timeout, "TIME", "How long to wait for an answer (default 5s)");
  rpc::AddSecurityFlags(*flags.app(), &values->security);
  for (const char* name : {"--tls-cert", "--tls-key", "--tls-ca"}) {
    flags.app()->get_option(name)->type_name("FILE")->group("Coordinator");
  }
  flags.app()->get_option("--insecure-loopback")->group("Coordinator");
}

namespace {

absl::StatusOr<Options> OptionsOf(const CoordinatorFlags& flags) {
  Options options;
  if (flags.timeout.empty()) return options;
  const auto timeout = ParseDuration(flags.timeout);
  if (!timeout.ok()) return Annotate(timeout.status(), "--timeout");
  if (timeout->count() == 0) {
    return absl::InvalidArgumentError(
        fmt::format("--timeout {}: write a time above 0, for example 5s", flags.timeout));
  }
  options.timeout = options.connect_timeout = *timeout;
  return options;
}

// Ids of the coordinator's jobs that begin so; none where it does not answer at once.
std::vector<std::string> JobsThatBegin(const CoordinatorFlags& flags, const std::string& start) {
  CoordinatorFlags quick = flags;
  if (quick.timeout.empty()) quick.timeout = "1s";
  const auto client = ConnectTo(quick);
  if (!client.ok()) return {};
  if (const auto one = (*client)->Get(start); one.ok()) return {one->job().job_id()};
  std::vector<std::string> ids;
  const auto jobs = (*client)->List();
  for (const v1::Job& job : jobs.value_or(std::vector<v1::Job>())) {
    if (job.job_id().starts_with(start)) ids.push_back(job.job_id());
  }
  return ids;
}

// Null: the job is not one of these runs'.
absl::StatusOr<const RegisteredRun*> RunOf(const std::vector<RegisteredRun>& runs,
                                           const CoordinatorFlags& flags, const std::string& job) {
  return FindRun(runs, job,
                 [&flags](const std::string& start) { return JobsThatBegin(flags, start); });
}

// To the coordinator, for a job that is none of the runs'. Without a coordinator the job is what is
// wrong.
absl::StatusOr<std::unique_ptr<Client>> ConnectBesides(const std::vector<RegisteredRun>& runs,
                                                       const CoordinatorFlags& flags,
                                                       const std::string& job) {
  auto client = ConnectTo(flags);
  if (client.ok() || runs.empty() || job.empty() || !absl::IsUnavailable(client.status())) {
    return client;
  }
  std::vector<std::string> ids;
  for (const RegisteredRun& run : runs) ids.push_back(run.job_id);
  return absl::NotFoundError(fmt::format("'{}' is no job of a 'meshrun run' on this host ({}); {}",
                                         job, fmt::join(ids, ", "),
                                         std::string(client.status().message())));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> ConnectTo(const CoordinatorFlags& flags) {
  MESHRUN_ASSIGN_OR_RETURN(Options options, OptionsOf(flags));
  MESHRUN_ASSIGN_OR_RETURN(const CoordinatorAddress where, FindCoordinator(flags.address));
  options.address = where.address;
  options.security = flags.security;
  if (const rpc::TlsFiles& tls = flags.security.tls; !tls.empty()) {
    MESHRUN_RETURN_IF_ERROR(certificates::CheckPair(tls.cert, tls.key));
  }
  auto client = Client::Connect(options);
  if (client.ok()) {
    for (const std::string& address : rpc::SplitAddresses((*client)->address())) {
      const std::string warning = rpc::InsecureWarning(address, flags.security);
      if (!warning.empty()) Say(warning);
    }
  }
  return client;
}

std::vector<RegisteredRun> RunsHere(const CoordinatorFlags& flags) {
  if (!flags.address.empty() || !Variable("MESHRUN_COORDINATOR").empty()) return {};
  const auto directory = RunRegistration::DefaultDirectory();
  return directory.ok() ? RegisteredRuns(*directory) : std::vector<RegisteredRun>();
}

absl::StatusOr<std::unique_ptr<Client>> ConnectTo(const CoordinatorFlags& flags,
                                                  const RegisteredRun& run) {
  MESHRUN_ASSIGN_OR_RETURN(Options options, OptionsOf(flags));
  options.address = run.address;
  options.security.tls = run.tls;
  return Client::Connect(options);
}

absl::StatusOr<std::unique_ptr<Client>> ConnectTo(const CoordinatorFlags& flags,
                                                  const std::string& job) {
  MESHRUN_ASSIGN_OR_RETURN(Connection connection, Connect(flags, job));
  return std::move(connection.client);
}

absl::StatusOr<Connection> Connect(const CoordinatorFlags& flags, const std::string& job) {
  const std::vector<RegisteredRun> runs = RunsHere(flags);
  MESHRUN_ASSIGN_OR_RETURN(const RegisteredRun* const run, RunOf(runs, flags, job));
  Connection out;
  out.security = flags.security;
  if (run != nullptr) out.security.tls = run->tls;
  MESHRUN_ASSIGN_OR_RETURN(
      out.client, run != nullptr ? ConnectTo(flags, *run) : ConnectBesides(runs, flags, job));
  return out;
}

absl::StatusOr<Client*> Connections::To(const std::string& job) {
  MESHRUN_ASSIGN_OR_RETURN(const RegisteredRun* const run, RunOf(runs_, flags_, job));
  std::unique_ptr<Client>& client = clients_[run != nullptr ? run->address : ""];
  if (client == nullptr) {
    MESHRUN_ASSIGN_OR_RETURN(
        client, run != nullptr ? ConnectTo(flags_, *run) : ConnectBesides(runs_, flags_, job));
  }
  return client.get();
}

absl::StatusOr<std::vector<int>> ParseRanksFlag(const std::string& text) {
  if (text.empty()) return std::vector<int>();
  auto ranks = ParseRanks(text);
  return ranks.ok() ? std::move(ranks) : Annotate(ranks.status(), "--ranks");
}

void AddOutputFlag(FlagSet& flags, std::string* output) {
  *output = "table";
  flags.Choice("-o,--output", output, {"table", "json"}, "How to print it (default table)");
}

Style StyleOf(int fd) {
  Style style;
  style.terminal = ::isatty(fd) == 1 && Variable("TERM") != "dumb";
  style.colour = style.terminal && Variable("NO_COLOR").empty();
  style.utf8 = style.terminal && LocaleIsUtf8();
  winsize size{};
  if (style.terminal && ::ioctl(fd, TIOCGWINSZ, &size) == 0) {
    if (size.ws_col > 0) style.width = size.ws_col;
    if (size.ws_row > 0) style.height = size.ws_row;
  }
  return style;
}

std::chrono::nanoseconds WallNow() { return Clock::Real().WallNow(); }

int ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitOk;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kUnimplemented:
      return kExitUsage;
    case absl::StatusCode::kDeadlineExceeded:
      return kExitDeadline;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kResourceExhausted:
      return kExitTryAgain;
    default:
      return kExitJobFailed;
  }
}

void Print(std::string_view text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (!written && OutputError() == 0) OutputError() = errno;
}

int FlushOutput() {
  if (std::fflush(stdout) != 0 && OutputError() == 0) OutputError() = errno;
  return OutputError();
}

std::string Sentence(std::string_view text) {
  std::string out;
  while (true) {
    const size_t end = text.find(kLogLine);
    out += EscapeControls(text.substr(0, end));
    if (end == std::string_view::npos) return out;
    out += kLogLine;
    text.remove_prefix(end + kLogLine.size());
  }
}

void Say(std::string_view text) {
  // What refuses an address, or warns of it, names itself.
  constexpr std::string_view kName = "meshrun: ";
  if (text.starts_with(kName)) text.remove_prefix(kName.size());
  FlushOutput();
  // fmt::print would throw where it cannot be written.
  std::fputs(fmt::format("meshrun: {}\n", Sentence(text)).c_str(), stderr);
}

int Fail(const absl::Status& status) {
  Say(std::string_view(status.message().data(), status.message().size()));
  return ExitCodeOf(status);
}

void Trace(const char* phase) {
  static const bool enabled = !Variable("MESHRUN_TRACE").empty();
  if (!enabled) return;
  // The kernel's own note of when this process began, in ticks of 10 ms since boot.
  static const double start = [] {
    const auto stat = os::ReadProcessStat(::getpid());
    return static_cast<double>(stat ? stat->start_ticks : 0) /
           static_cast<double>(::sysconf(_SC_CLK_TCK));
  }();
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  const double ms =
      (static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9 - start) * 1e3;
  fmt::print(stderr, "trace {:8.1f} ms  {}\n", ms, phase);
}

}  // namespace meshrun::client
