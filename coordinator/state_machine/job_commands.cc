// Commands of clients that begin and end jobs: submit, cancel. Those that change the place of a job
// in the queue are in queue_commands.cc.
#include <fmt/format.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/state_machine/state_machine.h"
#include "core/job_spec.h"
#include "core/signal_name.h"

namespace meshrun::coordinator {
namespace {

// Each job of an array has its own specification, in memory and on disk.
constexpr size_t kMostArrayBytes = 16u << 20;
// Each job waits by itself.
constexpr int kMostWaits = 10'000;

absl::Status CheckArray(const v1::JobSpec& spec) {
  if (!spec.has_array()) return absl::OkStatus();
  if (spec.after_size() * spec.array().indices_size() > kMostWaits) {
    return absl::InvalidArgumentError(fmt::format(
        "after: {} jobs would wait for {} each, and {} such waits are the most: wait for "
        "one job that waits for these",
        spec.array().indices_size(), spec.after_size(), kMostWaits));
  }
  const size_t bytes = spec.ByteSizeLong() * static_cast<size_t>(spec.array().indices_size());
  if (bytes <= kMostArrayBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("array: its {} jobs would have {} of arguments and environment in all, and {} is "
                  "the most: write what they share into a file",
                  spec.array().indices_size(), FormatBytes(bytes), FormatBytes(kMostArrayBytes)));
}

}  // namespace

void StateMachine::Submit(uint64_t call_id, const v1::SubmitJobRequest& request) {
  Context& context = parts_->context;
  v1::SubmitJobResponse response;
  if (Job* known =
          request.request_id().empty() ? nullptr : parts_->jobs.FindRequest(request.request_id());
      known != nullptr) {
    if (known->view.submitter() != context.user) {
      context.Reply(call_id, absl::AlreadyExistsError(fmt::format(
                                 "request id '{}' is of another user's job: draw another",
                                 request.request_id())));
      return;
    }
    *response.mutable_job() = parts_->jobs.View(*known, /*with_ranks=*/false);
    response.set_array_jobs(parts_->jobs.OfArray(known->view.array_id()).size());
    parts_->audit.IsRepeated();
    context.Reply(call_id, std::move(response));
    return;
  }
  v1::JobSpec spec = request.spec();
  if (absl::Status status = NormalizeJobSpec(spec); !status.ok()) {
    context.Reply(call_id, status);
    return;
  }
  absl::Status allowed = parts_->dependencies.Check(&spec);
  if (allowed.ok()) allowed = ApplyPolicy(context.policy, context.user, &spec);
  if (allowed.ok()) {
    allowed = parts_->jobs.quotas().CheckSubmit(
        ScopesOf(context.policy, context.user, spec.account(), spec.partition()),
        spec.has_array() ? static_cast<uint32_t>(spec.array().indices_size()) : 1);
  }
  if (allowed.ok()) allowed = CheckArray(spec);
  if (allowed.ok()) allowed = parts_->jobs.CheckRoom(spec);
  if (!allowed.ok()) {
    context.Reply(call_id, std::move(allowed));
    return;
  }
  const std::vector<const v1::Node*> present = parts_->nodes.Present(/*healthy_only=*/false);
  if (!spec.shipped_job().empty() && !present.empty()) {
    std::set<std::string> offered;
    for (const v1::Node* node : present) {
      offered.insert(node->shipped_jobs().begin(), node->shipped_jobs().end());
    }
    if (!offered.contains(spec.shipped_job())) {
      std::string names;
      for (const std::string& name : offered) names += (names.empty() ? "" : ", ") + name;
      context.Reply(call_id, absl::NotFoundError(fmt::format(
                                 "no worker offers the shipped job '{}'; {}", spec.shipped_job(),
                                 names.empty() ? "none offers any" : "offered are: " + names)));
      return;
    }
  }
  if (request.must_fit()) {
    const PlacementResult ever = Place({spec, present, {}, /*ignore_usage=*/true});
    if (!ever.placement.has_value()) {
      context.Reply(call_id,
                    absl::FailedPreconditionError("the job could never run here: " + ever.reason));
      return;
    }
  }
  const Job& job = parts_->jobs.Add(std::move(spec), request.request_id());
  parts_->dependencies.OnSubmitted(job);
  for (const Job* const other : parts_->jobs.OfArray(job.view.array_id())) {
    if (other != &job) parts_->dependencies.OnSubmitted(*other);
  }
  parts_->submitted.emplace_back(call_id, job.id());
}

void StateMachine::SetPolicy(const v1::Policy& policy) {
  Context& context = parts_->context;
  context.policy = policy;
  context.Record(
      "PolicyChanged", "", "",
      fmt::format("{} users, {} accounts and {} partitions have limits of their own",
                  policy.users_size(), policy.accounts_size(), policy.partitions_size()));
  parts_->jobs.OnPolicy();
  context.placement_due = true;
}

void StateMachine::AnswerSubmitted() {
  for (const auto& [call_id, job_id] : std::exchange(parts_->submitted, {})) {
    const Job* const job = parts_->jobs.Find(job_id);
    if (job == nullptr) continue;
    v1::SubmitJobResponse response;
    *response.mutable_job() = parts_->jobs.View(*job, /*with_ranks=*/false);
    response.set_array_jobs(parts_->jobs.OfArray(job->view.array_id()).size());
    if (job->queued()) {
      PlacementRequest alone{job->view.spec(), parts_->nodes.Present(/*healthy_only=*/false)};
      alone.ignore_usage = true;
      PlacementResult ever = Place(alone);
      if (!alone.nodes.empty() && !ever.placement.has_value()) {
        response.set_too_big(std::move(ever.reason));
      } else if (ever.placement.has_value()) {
        std::optional<QuotaRefusal> refused;
        (void)PlaceWithin(
            alone, [](const PlacementRequest& each) { return Place(each); },
            [&, scopes = parts_->jobs.ScopesOf(*job)](uint64_t ranks, uint64_t gpus) {
              return RefusalAlone(scopes, ranks, gpus);
            },
            &refused);
        if (refused.has_value()) response.set_too_big(std::move(refused->text));
      }
    }
    parts_->context.Reply(call_id, std::move(response));
  }
}

void StateMachine::Cancel(uint64_t call_id, const v1::CancelJobRequest& request) {
  Context& context = parts_->context;
  const auto named = parts_->jobs.Named(request.job_id());
  if (!named.ok()) {
    context.Reply(call_id, named.status());
    return;
  }
  if (request.first_signal() < 0 || request.first_signal() > kHighestSignal) {
    context.Reply(call_id, absl::InvalidArgumentError(fmt::format(
                               "first_signal: {} is not the number of a signal: write 1 to {}",
                               request.first_signal(), kHighestSignal)));
    return;
  }
  const bool changes = std::any_of(named->begin(), named->end(), [&](const Job* job) {
    return !job->ended() &&
           (!job->record.cancel_requested() || (request.now() && !job->record.cancel_now()));
  });
  if (!changes) parts_->audit.IsRepeated();
  for (Job* const job : *named) {
    parts_->generations.Cancel(*job, request.now(), request.reason(), request.first_signal());
  }
  v1::CancelJobResponse response;
  *response.mutable_job() = parts_->jobs.View(*named->front(), /*with_ranks=*/false);
  context.Reply(call_id, std::move(response));
}

}  // namespace meshrun::coordinator
