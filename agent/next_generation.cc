// What a process says and hears when it lives on from one generation into the next or has finished
// its work, and of the job's checkpoint right.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "agent/daemon_agent.h"
#include "agent/deadlines.h"
#include "core/rpc/channel.h"
#include "core/status.h"

namespace meshrun::agent {

absl::Status DaemonAgent::SetInProcess(bool can, Milliseconds timeout) {
  return Register(timeout, can);
}

absl::StatusOr<AgentEnvironment> DaemonAgent::AwaitPlace(Milliseconds timeout) {
  auto request = NewRequest<v1::WatchGenerationRequest>();
  std::optional<AgentEnvironment> place;
  std::optional<std::string> stop;
  const auto until = After(timeout);
  absl::Status status = calls_.Run(until, [&](grpc::ClientContext& context, auto remaining) {
    rpc::SetTimeout(context, remaining);
    const auto reader = agent_->WatchGeneration(&context, request);
    v1::WatchGenerationResponse event;
    while (!place && !stop && reader->Read(&event)) {
      if (event.has_new_generation()) {
        place = environment_;
        place->generation = event.new_generation().fence().generation();
        place->rank = event.new_generation().assignment().rank();
      } else if (event.stopping()) {
        stop = event.reason();
      }
    }
    if (place || stop) context.TryCancel();
    const grpc::Status end = reader->Finish();
    return place || stop ? grpc::Status::OK : end;
  });
  if (place) return *std::move(place);
  if (stop) return absl::AbortedError(*stop);
  MESHRUN_RETURN_IF_ERROR(status);
  return absl::AbortedError(fmt::format("generation {} of job {} has ended",
                                        environment_.generation, environment_.job_id));
}

absl::StatusOr<std::unique_ptr<Agent>> DaemonAgent::NextGeneration(Milliseconds timeout) {
  const WaitScope waits(totals_);
  const auto until = After(timeout);
  MESHRUN_ASSIGN_OR_RETURN(const AgentEnvironment place, AwaitPlace(timeout));
  const auto left =
      std::chrono::duration_cast<Milliseconds>(until - std::chrono::steady_clock::now());
  auto next = Connect(place, std::max(left, Milliseconds(1000)), /*in_process=*/true, totals_);
  if (next.ok()) {
    // What has not ended in this world by now never does.
    const MutexLock lock(mu_);
    EndCollectives();
  }
  // That one is over, too: the next call finds the one that follows.
  if (absl::IsFailedPrecondition(next.status())) {
    return absl::DeadlineExceededError(std::string(next.status().message()));
  }
  return next;
}

absl::Status DaemonAgent::ReportFinished(Milliseconds timeout) {
  auto request = NewRequest<v1::ReportFinishedRequest>();
  v1::ReportFinishedResponse response;
  return calls_.Run(After(timeout), [&](grpc::ClientContext& context, auto) {
    return store_->ReportFinished(&context, request, &response);
  });
}

absl::StatusOr<bool> DaemonAgent::HasFinished(Milliseconds timeout) {
  auto request = NewRequest<v1::GetFinishedRequest>();
  v1::GetFinishedResponse response;
  MESHRUN_RETURN_IF_ERROR(calls_.Run(After(timeout), [&](grpc::ClientContext& context, auto) {
    return store_->GetFinished(&context, request, &response);
  }));
  return response.finished();
}

absl::Status DaemonAgent::ReportQuiesced(int64_t step, Milliseconds timeout) {
  auto request = NewRequest<v1::ReportQuiescedRequest>();
  request.set_step(step);
  v1::ReportQuiescedResponse response;
  return calls_.Run(After(timeout), [&](grpc::ClientContext& context, auto) {
    return agent_->ReportQuiesced(&context, request, &response);
  });
}

absl::Status DaemonAgent::CommitCheckpoint(std::string_view name, int64_t step,
                                           std::string_view digest, std::string_view temporary,
                                           std::optional<int64_t> expected) {
  auto request = NewRequest<v1::CommitCheckpointRequest>();
  request.mutable_commit()->set_name(std::string(name));
  request.mutable_commit()->set_step(step);
  request.mutable_commit()->set_digest(std::string(digest));
  request.mutable_commit()->set_temporary(std::string(temporary));
  if (expected) request.set_expected_step(*expected);
  v1::CommitCheckpointResponse response;
  return calls_.Run(After(kCallTimeout), [&](grpc::ClientContext& context, auto) {
    return store_->CommitCheckpoint(&context, request, &response);
  });
}

absl::StatusOr<std::optional<Checkpoint>> DaemonAgent::CommittedCheckpoint(std::string_view name) {
  auto request = NewRequest<v1::GetCheckpointRequest>();
  request.set_name(std::string(name));
  v1::GetCheckpointResponse response;
  const absl::Status status = calls_.Run(After(kCallTimeout), [&](grpc::ClientContext& c, auto) {
    return store_->GetCheckpoint(&c, request, &response);
  });
  if (absl::IsNotFound(status)) return std::nullopt;
  MESHRUN_RETURN_IF_ERROR(status);
  const v1::CheckpointCommit& commit = response.commit();
  return Checkpoint{commit.step(), commit.digest(), commit.temporary(), commit.generation()};
}

}  // namespace meshrun::agent
