// How a generation is prepared: its files are written off the loop, its supervisor looks for the
// ranks' program, and the coordinator gets an answer in any case.
#include <fmt/format.h>

#include "core/log.h"
#include "core/os/files.h"
#include "core/proto_time.h"
#include "core/status.h"
#include "core/text.h"
#include "worker/generations/generations.h"
#include "worker/launch/launch_plan.h"

namespace meshrun::worker {
namespace {

constexpr int kTokenLength = 26;

std::string AgentSocketPath(const StateDir& state_dir, const std::string& job_id) {
  return state_dir.JobDirectory(job_id) + "/agent.sock";
}

}  // namespace

void Generations::Prepare(const v1::Fence& fence, const v1::Prepare& prepare) {
  const Key key = {fence.job_id(), fence.generation()};
  if (Entry* const known = Find(key)) {
    // Said again after a reconnect.
    if (known->generation->prepared() || known->generation->ended()) AnswerPrepare(key);
    return;
  }
  // Said again after a reconnect: the answer is on its way.
  if (preparing_.contains(key)) return;
  auto plan = Plan(fence, prepare);
  if (!plan.ok()) {
    RefusePrepare(fence, plan.status(), /*bad_command=*/false);
    return;
  }
  const std::shared_ptr<Preparation> preparation = *std::move(plan);
  const auto deadline = host_.loop.After(host_.file_timeout, [this, key, preparation] {
    GiveUp(key);
    RefusePrepare(preparation->plan().record.fence(),
                  absl::DeadlineExceededError(
                      fmt::format("{} has not answered for {}: its file system hangs",
                                  preparation->Doing(), FormatDuration(host_.file_timeout))),
                  /*bad_command=*/false);
  });
  preparing_[key] = {preparation, deadline};
  host_.files.Run(
      fence.job_id(), [preparation] { preparation->Run(); },
      [this, key, preparation] { OnFilesWritten(key, preparation); });
}

absl::StatusOr<std::shared_ptr<Preparation>> Generations::Plan(const v1::Fence& fence,
                                                               const v1::Prepare& prepare) {
  if (!refusal_.empty()) return absl::UnavailableError(refusal_);
  if (prepare.ranks().empty() || fence.job_id().empty() ||
      fence.job_id().find('/') != std::string::npos) {
    return absl::InvalidArgumentError(
        "the coordinator's Prepare names no job, or no ranks for this host");
  }
  MESHRUN_ASSIGN_OR_RETURN(const uint16_t port, host_.ports.Take());

  Preparation::Plan plan;
  plan.program = host_.supervisor;
  *plan.record.mutable_fence() = fence;
  *plan.record.mutable_prepare() = prepare;
  plan.record.set_master_port(port);
  plan.record.set_token(host_.ids.Suffix(kTokenLength));
  plan.paths = {host_.state_dir.GenerationDirectory(fence.job_id(), fence.generation()),
                host_.state_dir.LogDirectory(fence.job_id(), fence.generation())};
  host_.logs_in_use.Hold(plan.paths.logs);
  const std::string agent_socket = AgentSocketPath(host_.state_dir, fence.job_id());
  if (!agent_sockets_.contains(fence.job_id())) plan.agent_socket = agent_socket;
  HostFacts facts = host_.facts;
  facts.agent_address = "unix:" + agent_socket;
  const std::string working_dir = WorkingDirectory(prepare.spec(), host_.environment);
  const v1::ProgramSearch search =
      SearchFor(prepare.spec(), host_.jobs_dir, working_dir, host_.environment);
  plan.launch = MakeLaunch(plan.record, search.command(), working_dir, host_.environment, facts,
                           plan.paths, lease_);
  *plan.launch.mutable_search() = search;
  *plan.launch.mutable_search()->mutable_deadline() = ToProtoDuration(host_.file_timeout);
  return std::make_shared<Preparation>(std::move(plan));
}

void Generations::OnFilesWritten(const Key& key, const std::shared_ptr<Preparation>& preparation) {
  const Preparation::Plan& plan = preparation->plan();
  const auto current = preparing_.find(key);
  const bool wanted = current != preparing_.end() && current->second.preparation == preparation;
  if (wanted) {
    host_.loop.Cancel(current->second.deadline);
    preparing_.erase(current);
  }
  if (preparation->agent_listener && (wanted || HasGenerations(key.first))) {
    agent_sockets_[key.first] = std::make_unique<AgentSocket>(
        host_.loop, plan.agent_socket, std::move(preparation->agent_listener),
        handler_.on_agent_connection);
  }
  if (wanted && preparation->status.ok()) {
    entries_[key].generation =
        Generation::Create(host_.loop, host_.files, *preparation, HandlerFor(key));
    return;
  }
  host_.ports.GiveBack(static_cast<uint16_t>(plan.record.master_port()));
  if (!wanted && !preparing_.contains(key) && !entries_.contains(key)) {
    RemoveLater(key.first, plan.paths.directory);
    host_.logs_in_use.Release(plan.paths.logs);
  }
  if (preparation->pid > 0) {
    // It was given up while its supervisor started.
    Generation::Create(host_.loop, host_.files, *preparation, {})->Discard();
  }
  CloseAgentSocketIfUnused(key.first);
  if (wanted) {
    host_.logs_in_use.Release(plan.paths.logs);
    RefusePrepare(plan.record.fence(), preparation->status, /*bad_command=*/false);
  }
}

void Generations::GiveUp(const Key& key) {
  const auto preparing = preparing_.find(key);
  if (preparing == preparing_.end()) return;
  preparing->second.preparation->GiveUp();
  host_.loop.Cancel(preparing->second.deadline);
  preparing_.erase(preparing);
}

void Generations::OnUnprepared(const Key& key, const v1::ProgramFound& why) {
  Entry& entry = *Find(key);
  RefusePrepare(entry.generation->fence(), absl::NotFoundError(why.error()), why.bad_command());
  // Its supervisor ends at once, unless a file system holds the search.
  entry.generation->Discard();
  host_.ports.GiveBack(static_cast<uint16_t>(entry.generation->record().master_port()));
  host_.logs_in_use.Release(host_.state_dir.LogDirectory(key.first, key.second));
  // Not from within the generation's own call.
  host_.loop.Post([this, key] { Drop(key); });
  if (on_adopted_) host_.loop.Post([this] { FinishAdoption(); });
}

absl::Status Generations::OpenAgentSocket(const std::string& job_id) {
  std::unique_ptr<AgentSocket>& socket = agent_sockets_[job_id];
  if (socket != nullptr) return absl::OkStatus();
  auto opened = AgentSocket::Listen(host_.loop, AgentSocketPath(host_.state_dir, job_id),
                                    handler_.on_agent_connection);
  if (!opened.ok()) {
    agent_sockets_.erase(job_id);
    return opened.status();
  }
  socket = *std::move(opened);
  return absl::OkStatus();
}

bool Generations::HasGenerations(const std::string& job_id) const {
  const auto entry = entries_.lower_bound({job_id, 0});
  if (entry != entries_.end() && entry->first.first == job_id) return true;
  const auto preparing = preparing_.lower_bound({job_id, 0});
  return preparing != preparing_.end() && preparing->first.first == job_id;
}

void Generations::CloseAgentSocketIfUnused(const std::string& job_id) {
  if (HasGenerations(job_id)) return;
  agent_sockets_.erase(job_id);
  RemoveLater(job_id, host_.state_dir.JobDirectory(job_id));
}

void Generations::RemoveLater(const std::string& job_id, const std::string& directory) {
  host_.files.Run(job_id, [directory] {
    if (const absl::Status removed = os::RemoveTree(directory); !removed.ok()) {
      log::Warning("cannot remove a directory of a generation", {{"error", removed}});
    }
  });
}

void Generations::AnswerPrepare(const Key& key) {
  Entry& entry = *Find(key);
  entry.announced = true;
  const v1::Fence& fence = entry.generation->fence();
  if (!refusal_.empty()) {
    RefusePrepare(fence, absl::UnavailableError(refusal_), /*bad_command=*/false);
    return;
  }
  if (entry.generation->ended()) {
    RefusePrepare(
        fence,
        absl::FailedPreconditionError(fmt::format("generation {} of job {} has ended on {}",
                                                  key.second, key.first, host_.facts.node_name)),
        /*bad_command=*/false);
    return;
  }
  v1::OpenSessionRequest message;
  message.mutable_prepare_result()->set_ok(true);
  message.mutable_prepare_result()->set_master_port(entry.generation->record().master_port());
  Send(key, std::move(message));
}

void Generations::RefusePrepare(const v1::Fence& fence, const absl::Status& status,
                                bool bad_command) {
  log::Warning("cannot prepare a generation",
               {{"job", fence.job_id()}, {"generation", fence.generation()}, {"error", status}});
  v1::OpenSessionRequest message;
  message.mutable_prepare_result()->set_error(std::string(status.message()));
  message.mutable_prepare_result()->set_bad_command(bad_command);
  message.mutable_prepare_result()->set_draining(!refusal_.empty());
  Send({fence.job_id(), fence.generation()}, std::move(message));
}

void Generations::Refuse(const std::string& reason) {
  refusal_ = reason;
  while (!preparing_.empty()) {
    const Key key = preparing_.begin()->first;
    const v1::Fence fence = preparing_.begin()->second.preparation->plan().record.fence();
    GiveUp(key);
    RefusePrepare(fence, absl::UnavailableError(refusal_), /*bad_command=*/false);
  }
}

}  // namespace meshrun::worker
