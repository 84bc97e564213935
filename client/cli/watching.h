// What the two that show a job as it runs have in common: follow.h and show_logs.h.
#pragma once

#include <sys/signalfd.h>

#include <algorithm>
#include <chrono>

#include "client/cli/signal_handling.h"
#include "client/render/report.h"
#include "core/clock.h"
#include "core/os/fd.h"
#include "meshrun/v1/job.pb.h"

namespace meshrun::client {

inline constexpr std::chrono::milliseconds kRedraw(100);
// Lines wait for their equals.
inline constexpr std::chrono::milliseconds kRelease(50);

inline std::chrono::nanoseconds SteadyNow() { return Clock::Real().SteadyNow(); }

// Readable when one of the handled signals has come; they must be blocked.
inline os::UniqueFd SignalFd(const SignalHandling& handling) {
  const sigset_t set = handling.Set();
  return os::UniqueFd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
}

// True once the ranks of the current generation have been started: there is output to read.
inline bool HasRun(const v1::Job& job) {
  return job.generation() > 0 &&
         (job.state() == v1::JOB_STATE_RUNNING || job.state() == v1::JOB_STATE_QUIESCING ||
          (HasEnded(job.state()) && job.has_started_at()));
}

// How long to wait for the last output after the job has ended, and how long where a node is lost
// with its files.
inline constexpr std::chrono::seconds kDrain(10);
inline constexpr std::chrono::seconds kDrainWithoutNode(1);

inline std::chrono::nanoseconds DrainTime(const v1::Job& job) {
  const bool lost =
      std::any_of(job.ranks().begin(), job.ranks().end(),
                  [](const v1::RankStatus& rank) { return rank.state() == v1::RANK_STATE_LOST; });
  return lost ? kDrainWithoutNode : kDrain;
}

}  // namespace meshrun::client
