// Generations whose work is finished: one of their ranks has passed the last barrier, which all of
// them have entered. What ends afterwards ends without a restart.
#include <fmt/format.h>

#include <csignal>
#include <utility>

#include "coordinator/state_machine/generations.h"
#include "core/rank_exit.h"

namespace meshrun::coordinator {
namespace {

constexpr char kFinished[] = "after all ranks had finished their work";

// The generation has failed, or is to be stopped for a failure, before any rank had finished.
absl::Status FailedBefore(const Job& job) {
  return absl::FailedPreconditionError(fmt::format(
      "generation {} of job {} failed before a rank had said that all ranks have finished: {}",
      job.view.generation(), job.id(), job.view.failure().message()));
}

absl::Status Check(const Job& job, const v1::ReportFinishedRequest& request) {
  const int rank = request.rank();
  if (rank < 0 || rank >= job.view.ranks_size()) {
    return absl::InvalidArgumentError(fmt::format("generation {} of job {} has {} ranks, and no {}",
                                                  job.view.generation(), job.id(),
                                                  job.view.ranks_size(), rank));
  }
  const v1::RankStatus& status = job.view.ranks(rank);
  const std::string& host = request.fence().node_id();
  if (!host.empty() && host != status.assignment().node_id()) {
    return absl::InvalidArgumentError(fmt::format("rank {} of job {} runs on {}, not on node id {}",
                                                  rank, job.id(), status.node_name(), host));
  }
  if (job.view.state() == v1::JOB_STATE_RENDEZVOUS) {
    return absl::FailedPreconditionError(
        fmt::format("generation {} of job {} has not started", job.view.generation(), job.id()));
  }
  if (job.failed() && !job.finished()) return FailedBefore(job);
  return absl::OkStatus();
}

// A fault of the program raises these signals, or the program itself does (abort). The others come
// from outside.
bool IsOwnCrash(int signal) {
  switch (signal) {
    case SIGABRT:
    case SIGBUS:
    case SIGFPE:
    case SIGILL:
    case SIGSEGV:
    case SIGSYS:
    case SIGTRAP:
      return true;
    default:
      return false;
  }
}

}  // namespace

void Generations::OnReportFinished(uint64_t call_id, const v1::ReportFinishedRequest& request) {
  Job* const job = store_.Admit(call_id, request.fence(), request.rank());
  if (job == nullptr) return;
  if (absl::Status status = Check(*job, request); !status.ok()) {
    context_.Reply(call_id, std::move(status));
    return;
  }
  v1::RankStatus& rank = *job->view.mutable_ranks(request.rank());
  if (!rank.finished()) {
    rank.set_finished(true);
    const auto place = job->member_by_node.find(rank.assignment().node_id());
    if (place == job->member_by_node.end()) {
      jobs_.Changed(*job);
    } else {
      jobs_.Changed(*job, job->members[place->second]);
    }
  }
  if (!job->finished()) {
    job->record.set_finished_generation(job->view.generation());
    context_.Record("RanksFinished", job->id(), rank.assignment().node_id(),
                    fmt::format("all ranks of generation {} have done their part, as rank {} on {} "
                                "says: the job is not started again",
                                job->view.generation(), request.rank(), rank.node_name()));
    if (job->survivors_wait()) {
      // Asked to stand still: they had come to their end, and cannot be asked to go on.
      jobs_.SetPhase(*job, job->asked_to_quiesce() ? JobPhase::kFinishing : JobPhase::kRunning, "");
      jobs_.ClearDeadline(*job);
    }
  }
  context_.Reply(call_id, v1::ReportFinishedResponse());
}

void Generations::OnGetFinished(uint64_t call_id, const v1::GetFinishedRequest& request) {
  const Job* const job = store_.Admit(call_id, request.fence());
  if (job == nullptr) return;
  if (job->failed() && !job->finished()) {
    context_.Reply(call_id, FailedBefore(*job));
    return;
  }
  v1::GetFinishedResponse response;
  response.set_finished(job->finished());
  context_.Reply(call_id, std::move(response));
}

void Generations::TakeExitAfterFinish(Job& job, const Node& node, const v1::RankExit& exit) {
  // Ranks that are told to end, end.
  if (ExitedCleanly(exit) || job.view.state() == v1::JOB_STATE_QUIESCING) return;
  const std::string text = RankEndSentence(exit, node.record.name());
  const bool is_ended_from_outside = exit.signal() != 0 && !IsOwnCrash(exit.signal());
  if (is_ended_from_outside || exit.teardown()) {
    NoteEndAfterFinish(job, node, text);
    return;
  }
  // The program itself says that it has failed, or has crashed.
  Fail(job, exit.signal() != 0 ? v1::FAILURE_CAUSE_RANK_SIGNALED : v1::FAILURE_CAUSE_RANK_EXITED,
       fmt::format("{}, {}", text, kFinished), &node, &exit);
}

void Generations::NoteEndAfterFinish(const Job& job, const Node& node, const std::string& what) {
  context_.Record("EndedAfterFinish", job.id(), node.id(),
                  fmt::format("{}, {}: the job is not started again", what, kFinished));
}

std::string Generations::EndsAfterFinish(const Job& job) const {
  if (!job.finished()) return "";
  for (const v1::RankStatus& rank : job.view.ranks()) {
    const int number = rank.assignment().rank();
    if (rank.state() == v1::RANK_STATE_LOST) {
      return fmt::format("rank {} was {}, {}", number, rank.end(), kFinished);
    }
    if (rank.state() == v1::RANK_STATE_EXITED && !ExitedCleanly(rank.exit())) {
      return fmt::format("{}, {}", RankEndSentence(rank.exit(), rank.node_name()), kFinished);
    }
  }
  return "";
}

}  // namespace meshrun::coordinator
