#include "client/cli/signal_handling.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>

#include "core/os/process.h"
#include "core/signal_name.h"
#include "core/status.h"

namespace meshrun::client {
namespace {

constexpr int kOfTheUser[] = {SIGUSR1, SIGUSR2};

bool Contains(const auto& signals, int signal) {
  return std::find(std::begin(signals), std::end(signals), signal) != std::end(signals);
}

bool IsOfTheUser(int signal) { return Contains(kOfTheUser, signal); }

absl::Status CheckCanEnd(std::string_view names, int signal) {
  if (Contains(SignalHandling().ending, signal) || IsOfTheUser(signal)) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format(
      "--signals-to-handle {}: {} {}: SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are "
      "taken",
      names, SignalName(signal),
      signal == SIGKILL || signal == SIGSTOP ? "cannot be handled by any program"
                                             : "does not end a job here"));
}

}  // namespace

bool SignalHandling::Ends(int signal) const { return Contains(ending, signal); }

bool SignalHandling::Forwards(int signal) const { return Contains(forwarded, signal); }

bool SignalHandling::Leaves(int signal) const { return Contains(leaving, signal); }

SignalHandling SignalHandling::WithoutLeaving() const {
  SignalHandling out = *this;
  for (const int signal : leaving) {
    if (signal != LeaveSignal() && !Ends(signal)) out.ending.push_back(signal);
  }
  out.leaving = {LeaveSignal()};
  return out;
}

sigset_t SignalHandling::Set() const {
  sigset_t set;
  sigemptyset(&set);
  const auto add = [&set](int signal) {
    if (!os::IsIgnored(signal)) sigaddset(&set, signal);
  };
  std::for_each(ending.begin(), ending.end(), add);
  std::for_each(forwarded.begin(), forwarded.end(), add);
  std::for_each(leaving.begin(), leaving.end(), add);
  if (pauses) add(SIGTSTP);
  return set;
}

absl::StatusOr<SignalHandling> HandlingOf(std::string_view names) {
  SignalHandling out;
  if (names.empty()) return out;
  out.ending.clear();
  for (std::string_view rest = names; !rest.empty();) {
    const size_t comma = rest.find(',');
    const auto signal = os::ParseSignal(rest.substr(0, comma));
    if (!signal.ok()) return Annotate(signal.status(), "--signals-to-handle");
    MESHRUN_RETURN_IF_ERROR(CheckCanEnd(names, *signal));
    if (!out.Ends(*signal)) out.ending.push_back(*signal);
    rest.remove_prefix(comma == std::string_view::npos ? rest.size() : comma + 1);
  }
  return out;
}

// A real-time signal: no program uses it for anything by default.
int LeaveSignal() { return SIGRTMIN + 2; }

absl::StatusOr<SignalHandling> HandlingOfRun(std::string_view names, bool leaves) {
  MESHRUN_ASSIGN_OR_RETURN(SignalHandling out, HandlingOf(names));
  for (const int signal : kOfTheUser) {
    if (!out.Ends(signal)) out.forwarded.push_back(signal);
  }
  out.leaving = {LeaveSignal()};
  if (leaves) {
    std::erase(out.ending, SIGTERM);
    out.leaving.push_back(SIGTERM);
  }
  out.pauses = true;
  return out;
}

int FirstSignalOfRanks(int signal) { return signal == SIGINT || IsOfTheUser(signal) ? signal : 0; }

void StopThisProcess() { ::kill(::getpid(), SIGSTOP); }

}  // namespace meshrun::client
