// What meshrun's programs return to the shell; documented in docs/troubleshooting.md.
#pragma once

namespace meshrun {

enum ExitCode : int {
  kExitOk = 0,
  kExitJobFailed = 1,
  // The call was wrong: trying it again unchanged is no use.
  kExitUsage = 2,
  // EX_TEMPFAIL: the same call may work later (coordinator away, queue timeout).
  kExitTryAgain = 75,
  kExitDoNotRequeue = 93,
  kExitDeadline = 124,
  // + signal number.
  kExitSignalBase = 128,
};

}  // namespace meshrun
