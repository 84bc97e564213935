// What meshrun's programs return to the shell: the one list, explained in docs/errors.md.
#pragma once

namespace meshrun {

enum ExitCode : int {
  kExitOk = 0,
  kExitJobFailed = 1,
  // The call is wrong: it fails again unless it is changed.
  kExitUsage = 2,
  // EX_IOERR: all is well, except that output was lost.
  kExitOutputLost = 74,
  // EX_TEMPFAIL: the same call may work later (coordinator away, queue timeout).
  kExitTryAgain = 75,
  kExitDoNotRequeue = 93,
  kExitDeadline = 124,
  // As a shell: a rank's program that is there and cannot be started, and one that is not there.
  kExitNotExecutable = 126,
  kExitNotFound = 127,
  // + signal number.
  kExitSignalBase = 128,
};

}  // namespace meshrun
