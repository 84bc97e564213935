#include "coordinator/state_machine/checkpoint_commits.h"

#include <fmt/format.h>

#include <algorithm>

namespace meshrun::coordinator {
namespace {

absl::Status Check(const Job& job, const v1::CheckpointCommit& commit, bool is_new) {
  if (commit.name().empty() || commit.name().size() > CheckpointCommits::kMaxNameBytes) {
    return absl::InvalidArgumentError(
        fmt::format("the name of a checkpoint has 1 to {} bytes, this one has {}",
                    CheckpointCommits::kMaxNameBytes, commit.name().size()));
  }
  if (commit.step() < 0) {
    return absl::InvalidArgumentError(
        fmt::format("step {}: a checkpoint is of step 0 or a later one", commit.step()));
  }
  if (job.view.state() == v1::JOB_STATE_RENDEZVOUS) {
    return absl::FailedPreconditionError(
        fmt::format("generation {} of job {} has not started", job.view.generation(), job.id()));
  }
  if (is_new && job.view.checkpoints_size() >= CheckpointCommits::kMaxNames) {
    return absl::ResourceExhaustedError(
        fmt::format("job {} has checkpoints of {} names already: write to fewer directories",
                    job.id(), CheckpointCommits::kMaxNames));
  }
  return absl::OkStatus();
}

}  // namespace

void CheckpointCommits::Commit(uint64_t call_id, const v1::CommitCheckpointRequest& request) {
  Job* job = store_.Admit(call_id, request.fence());
  if (job == nullptr) return;
  const v1::CheckpointCommit& commit = request.commit();
  auto& known = *job->view.mutable_checkpoints();
  auto it = std::find_if(known.begin(), known.end(),
                         [&](const auto& other) { return other.name() == commit.name(); });
  if (absl::Status status = Check(*job, commit, it == known.end()); !status.ok()) {
    context_.Reply(call_id, status);
    return;
  }
  if (it != known.end() && it->generation() == job->view.generation() &&
      it->step() == commit.step() && it->digest() == commit.digest()) {
    // Said again after a reconnect.
    context_.Reply(call_id, v1::CommitCheckpointResponse());
    return;
  }
  const bool expected = it == known.end()
                            ? !request.has_expected_step()
                            : request.has_expected_step() && request.expected_step() == it->step();
  if (!expected) {
    const auto step = [](bool is_set, int64_t number) {
      return is_set ? fmt::format("step {}", number) : std::string("none");
    };
    context_.Reply(call_id,
                   absl::FailedPreconditionError(fmt::format(
                       "the newest checkpoint of '{}' is {}, not {} as the writer of step {} knows",
                       commit.name(), step(it != known.end(), it == known.end() ? 0 : it->step()),
                       step(request.has_expected_step(), request.expected_step()), commit.step())));
    return;
  }
  v1::CheckpointCommit& newest = it == known.end() ? *known.Add() : *it;
  newest = commit;
  newest.set_generation(job->view.generation());
  jobs_.Changed(*job);
  job->record.set_may_grow(true);
  context_.placement_due = context_.placement_due || jobs_.elastic().contains(job->id());
  context_.Reply(call_id, v1::CommitCheckpointResponse());
}

void CheckpointCommits::Get(uint64_t call_id, const v1::GetCheckpointRequest& request) {
  const Job* job = store_.Admit(call_id, request.fence());
  if (job == nullptr) return;
  for (const v1::CheckpointCommit& commit : job->view.checkpoints()) {
    if (commit.name() != request.name()) continue;
    v1::GetCheckpointResponse response;
    *response.mutable_commit() = commit;
    context_.Reply(call_id, std::move(response));
    return;
  }
  context_.Reply(call_id, absl::NotFoundError(fmt::format("job {} has committed no checkpoint '{}'",
                                                          job->id(), request.name())));
}

}  // namespace meshrun::coordinator
