// How a generation is prepared and started, on the loop: a Preparation writes its files on another
// thread, its supervisor looks for the ranks' program, and the coordinator gets an answer in any
// case.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/log.h"
#include "core/os/files.h"
#include "core/os/user.h"
#include "core/proto_time.h"
#include "core/rank_exit.h"
#include "core/status.h"
#include "core/text.h"
#include "core/utf8.h"
#include "worker/generations/generations.h"
#include "worker/inventory/core_topology.h"
#include "worker/launch/launch_plan.h"
#include "worker/launch/numa_binding.h"
#include "worker/pictures/picture_paths.h"

namespace meshrun::worker {
namespace {

constexpr int kTokenLength = 26;

std::string AgentSocketPath(const StateDir& state_dir, const std::string& job_id) {
  return state_dir.JobDirectory(job_id) + "/agent.sock";
}

// For a process that is replaced before it has come to its work.
constexpr std::chrono::seconds kReplacedGrace(5);

bool LivesOn(const v1::RankAssignment& rank, const v1::Fence& fence) {
  return NameOf(rank, fence.generation()).generation < fence.generation();
}

// Processes that run, and that the generation has no rank for.
std::vector<ProcessName> LeftOut(const RankProcesses& processes, const v1::Fence& fence,
                                 const v1::Prepare& prepare) {
  std::vector<ProcessName> running = processes.Running();
  for (const v1::RankAssignment& rank : prepare.ranks())
    std::erase(running, NameOf(rank, fence.generation()));
  return running;
}

}  // namespace

void Generations::Prepare(const v1::Fence& fence, const v1::Prepare& prepare) {
  const Key key = {fence.job_id(), fence.generation()};
  if (Entry* const known = Find(key)) {
    // Said again after a reconnect. What is being written is answered afterwards.
    const Generation& generation = *known->generation;
    if (known->saving == 0 && (generation.prepared() || generation.ended())) AnswerPrepare(key);
    return;
  }
  // Said again after a reconnect: the answer is on its way.
  if (preparing_.contains(key)) return;
  if (!refusal_.empty()) {
    RefusePrepare(fence, absl::UnavailableError(refusal_));
    return;
  }
  if (const uint64_t highest = HighestOf(key.first); highest > key.second) {
    RefusePrepare(fence, absl::FailedPreconditionError(fmt::format(
                             "generation {} of job {} is older than generation {}, which {} knows",
                             key.second, key.first, highest, host_.facts.node_name)));
    return;
  }
  const bool keeps = std::any_of(prepare.ranks().begin(), prepare.ranks().end(),
                                 [&](const auto& rank) { return LivesOn(rank, fence); });
  if (const auto older = LiveProcesses(key.first); older && !keeps) {
    // Two generations never run side by side on a host.
    deferred_[key.first] = {fence, prepare};
    StopProcesses(*older, Find(KeysOf(*older).back())->generation->kill_grace(),
                  fmt::format("generation {} follows", key.second));
    return;
  }
  deferred_.erase(key.first);
  const absl::Status begun = keeps ? Continue(fence, prepare) : Create(fence, prepare);
  // What the job asks for cannot be had here: nobody is to try it again.
  if (!begun.ok()) RefusePrepare(fence, begun, absl::IsInvalidArgument(begun));
}

void Generations::PrepareDeferred(const std::string& job_id) {
  const auto waits = deferred_.find(job_id);
  if (waits == deferred_.end()) return;
  const Deferred deferred = std::move(waits->second);
  deferred_.erase(waits);
  Prepare(deferred.fence, deferred.prepare);
}

absl::StatusOr<v1::GenerationRecord> Generations::NewRecord(const v1::Fence& fence,
                                                            const v1::Prepare& prepare,
                                                            const std::string& token) {
  if (prepare.ranks().empty() || fence.job_id().empty() ||
      fence.job_id().find('/') != std::string::npos) {
    return absl::InvalidArgumentError(
        "the coordinator's Prepare names no job, or no ranks for this host");
  }
  v1::GenerationRecord record;
  *record.mutable_fence() = fence;
  *record.mutable_prepare() = prepare;
  record.set_token(token);
  MESHRUN_ASSIGN_OR_RETURN(const uint16_t port, host_.ports.Take());
  record.set_master_port(port);
  return record;
}

absl::StatusOr<std::vector<os::CoreSet>> Generations::PlanCores(const v1::Prepare& prepare) const {
  const v1::NumaBinding binding = prepare.spec().numa_binding();
  if (binding == v1::NUMA_BINDING_UNSPECIFIED) return std::vector<os::CoreSet>();
  return BindRanks(binding, ReadCoreTopology(os::OwnCores()), host_.gpus,
                   {prepare.ranks().begin(), prepare.ranks().end()});
}

v1::SupervisorLaunch Generations::PlanLaunch(const v1::GenerationRecord& record,
                                             const GenerationPaths& paths,
                                             std::vector<os::CoreSet> cores_of_ranks) {
  const v1::JobSpec& spec = record.prepare().spec();
  HostFacts facts = host_.facts;
  facts.agent_address = "unix:" + AgentSocketPath(host_.state_dir, record.fence().job_id());
  facts.cores_of_ranks = std::move(cores_of_ranks);
  // Empty: the submitter's home.
  const std::string working_dir =
      paths.ranks.empty() ? WorkingDirectory(spec, host_.environment) : spec.working_dir();
  // Another user's directory has no programs for the ranks.
  const bool of_submitter = !paths.ranks.empty() || record.prepare().submitter() == os::UserName();
  const Environment environment =
      of_submitter ? WithVirtualEnv(host_.environment, spec) : host_.environment;
  const v1::ProgramSearch search = SearchFor(spec, host_.jobs_dir, working_dir, environment);
  v1::SupervisorLaunch launch =
      MakeLaunch(record, search.command(), working_dir, environment, facts, paths, lease_);
  *launch.mutable_search() = search;
  *launch.mutable_search()->mutable_deadline() = ToProtoDuration(host_.file_timeout);
  *launch.mutable_ping() = handler_.ping();
  return launch;
}

std::string Generations::RanksDirectory(const std::string& job_id) const {
  return host_.state_dir.open_to_ranks() ? host_.state_dir.JobDirectory(job_id) : "";
}

absl::Status Generations::Create(const v1::Fence& fence, const v1::Prepare& prepare) {
  const Key key = {fence.job_id(), fence.generation()};
  MESHRUN_ASSIGN_OR_RETURN(std::vector<os::CoreSet> cores, PlanCores(prepare));
  MESHRUN_ASSIGN_OR_RETURN(const v1::GenerationRecord record,
                           NewRecord(fence, prepare, host_.ids.Suffix(kTokenLength)));
  Preparation::Plan plan;
  plan.program = host_.supervisor;
  plan.record.set_job_id(key.first);
  plan.record.set_token(record.token());
  *plan.record.add_generations() = record;
  plan.paths = {host_.state_dir.GenerationDirectory(key.first, key.second),
                host_.state_dir.LogDirectory(key.first, key.second), RanksDirectory(key.first)};
  host_.logs_in_use.Hold(plan.paths.logs);
  if (!agent_sockets_.contains(key.first)) {
    plan.agent_socket = AgentSocketPath(host_.state_dir, key.first);
  }
  plan.launch = PlanLaunch(record, plan.paths, std::move(cores));
  plan.cgroups = host_.cgroups;
  plan.node_id = host_.state_dir.node_id();
  plan.limits = LimitsFor(prepare, host_.limits, /*beside=*/0);

  const auto preparation = std::make_shared<Preparation>(std::move(plan));
  const auto deadline = host_.loop.After(host_.file_timeout, [this, key, preparation] {
    GiveUp(key);
    RefusePrepare(preparation->generation().fence(), Silent(preparation->Doing()));
  });
  preparing_[key] = {preparation, deadline};
  host_.files.Run(
      key.first, [preparation] { preparation->Run(); },
      [this, key, preparation] { OnFilesWritten(key, preparation); });
  return absl::OkStatus();
}

void Generations::OnFilesWritten(const Key& key, const std::shared_ptr<Preparation>& preparation) {
  const Preparation::Plan& plan = preparation->plan();
  const v1::GenerationRecord& record = preparation->generation();
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
    auto processes =
        RankProcesses::Create(host_.loop, host_.files, *preparation, ProcessesHandler());
    HoldLogs(*processes, key.second);
    entries_[key].generation = std::make_unique<Generation>(record, std::move(processes));
    return;
  }
  host_.ports.GiveBack(static_cast<uint16_t>(record.master_port()));
  if (!wanted && !preparing_.contains(key) && !entries_.contains(key)) {
    RemoveLater(key.first, plan.paths.directory);
    host_.logs_in_use.Release(plan.paths.logs);
  }
  if (preparation->pid > 0) {
    // It was given up while its supervisor started.
    RankProcesses::Create(host_.loop, host_.files, *preparation, {})->Discard();
  }
  CloseAgentSocketIfUnused(key.first);
  if (wanted) {
    host_.logs_in_use.Release(plan.paths.logs);
    RefusePrepare(record.fence(), preparation->status);
  }
}

absl::StatusOr<std::shared_ptr<RankProcesses>> Generations::FindContinuing(
    const v1::Fence& fence, const v1::Prepare& prepare) const {
  const std::shared_ptr<RankProcesses> processes = LiveProcesses(fence.job_id());
  for (const v1::RankAssignment& rank : prepare.ranks()) {
    if (!LivesOn(rank, fence)) continue;
    const ProcessName name = NameOf(rank, fence.generation());
    const std::string who =
        fmt::format("the process of rank {}, started as rank {} of generation {},", rank.rank(),
                    name.rank, name.generation);
    if (processes && processes->Runs(name)) continue;
    if (const v1::RankExit* const exit = processes ? processes->FindExit(name) : nullptr) {
      return absl::FailedPreconditionError(
          fmt::format("{} {} on {}", who, DescribeEnd(*exit), host_.facts.node_name));
    }
    return absl::NotFoundError(fmt::format("{} does not run on {}", who, host_.facts.node_name));
  }
  return processes;
}

absl::Status Generations::Continue(const v1::Fence& fence, const v1::Prepare& prepare) {
  const Key key = {fence.job_id(), fence.generation()};
  MESHRUN_ASSIGN_OR_RETURN(const std::shared_ptr<RankProcesses> processes,
                           FindContinuing(fence, prepare));
  if (const auto left_out = LeftOut(*processes, fence, prepare); !left_out.empty()) {
    // Nor do two processes of one rank.
    deferred_[key.first] = {fence, prepare};
    auto grace = std::chrono::nanoseconds(kReplacedGrace);
    for (const Key& each : KeysOf(*processes)) {
      Generation& generation = *Find(each)->generation;
      generation.TellLeftOut(left_out, key.second);
      grace = std::min(grace, generation.kill_grace());
    }
    processes->StopAlone(left_out, grace);
    return absl::OkStatus();
  }
  // A lower generation that was prepared and has not started never will.
  for (const Key& lower : KeysOf(*processes)) {
    if (!Find(lower)->generation->started()) Drop(lower);
  }
  MESHRUN_ASSIGN_OR_RETURN(std::vector<os::CoreSet> cores, PlanCores(prepare));
  MESHRUN_ASSIGN_OR_RETURN(v1::GenerationRecord record,
                           NewRecord(fence, prepare, processes->record().token()));
  const GenerationPaths paths = {processes->directory(),
                                 host_.state_dir.LogDirectory(key.first, key.second),
                                 RanksDirectory(key.first)};
  *record.mutable_launches() =
      std::move(*PlanLaunch(record, paths, std::move(cores)).mutable_ranks());
  if (!record.launches().empty()) HoldLogs(*processes, key.second);
  // Until the last of those that are left out has gone.
  const auto beside =
      static_cast<uint64_t>(std::max<int64_t>(static_cast<int64_t>(processes->Running().size()) +
                                                  record.launches_size() - prepare.ranks_size(),
                                              0));
  processes->SetLimits(
      Both(processes->record().cgroup().limits(), LimitsFor(prepare, host_.limits, beside)));
  Entry& entry = entries_[key];
  entry.generation = std::make_unique<Generation>(record, processes);
  const auto saving = std::make_shared<EventLoop::TimerId>(0);
  *saving = host_.loop.After(host_.file_timeout, [this, key, saving, processes] {
    OnSaved(key, *saving, Silent(processes->directory()));
  });
  entry.saving = *saving;
  processes->Save(
      record, [this, key, saving](const absl::Status& status) { OnSaved(key, *saving, status); },
      record.launches().empty() ? "" : paths.logs);
  return absl::OkStatus();
}

void Generations::OnSaved(const Key& key, EventLoop::TimerId saving, const absl::Status& status) {
  Entry* const entry = Find(key);
  if (entry == nullptr || entry->saving != saving) return;
  host_.loop.Cancel(std::exchange(entry->saving, 0));
  if (status.ok()) {
    AnswerPrepare(key);
    return;
  }
  const v1::Fence fence = entry->generation->fence();
  Drop(key);
  RefusePrepare(fence, status);
}

void Generations::GiveUp(const Key& key) {
  const auto waits = deferred_.find(key.first);
  if (waits != deferred_.end() && waits->second.fence.generation() == key.second) {
    deferred_.erase(waits);
  }
  const auto preparing = preparing_.find(key);
  if (preparing == preparing_.end()) return;
  preparing->second.preparation->GiveUp();
  host_.loop.Cancel(preparing->second.deadline);
  preparing_.erase(preparing);
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
  const auto preparing = preparing_.lower_bound({job_id, 0});
  return HighestOf(job_id) != 0 ||
         (preparing != preparing_.end() && preparing->first.first == job_id);
}

void Generations::CloseAgentSocketIfUnused(const std::string& job_id) {
  if (HasGenerations(job_id)) return;
  agent_sockets_.erase(job_id);
  if (host_.state_dir.open_to_ranks()) {
    host_.files.Run(job_id, [directory = host_.state_dir.JobDirectory(job_id),
                             logs = fmt::format("{}/{}", host_.state_dir.LogRoot(), job_id)] {
      KeepPictures(directory, logs);
    });
  }
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
    RefusePrepare(fence, absl::UnavailableError(refusal_));
    return;
  }
  if (entry.generation->ended()) {
    RefusePrepare(fence, absl::FailedPreconditionError(
                             fmt::format("generation {} of job {} has ended on {}", key.second,
                                         key.first, host_.facts.node_name)));
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
  message.mutable_prepare_result()->set_error(EscapeBytes(std::string(status.message())));
  message.mutable_prepare_result()->set_bad_command(bad_command);
  message.mutable_prepare_result()->set_draining(!refusal_.empty());
  Send({fence.job_id(), fence.generation()}, std::move(message));
}

absl::Status Generations::Silent(const std::string& what) const {
  return absl::DeadlineExceededError(
      fmt::format("{} has not answered for {}: its file system hangs", what,
                  FormatDuration(host_.file_timeout)));
}

void Generations::Refuse(const std::string& reason) {
  refusal_ = reason;
  for (const auto& [job_id, deferred] : std::exchange(deferred_, {})) {
    RefusePrepare(deferred.fence, absl::UnavailableError(refusal_));
  }
  while (!preparing_.empty()) {
    const Key key = preparing_.begin()->first;
    const v1::Fence fence = preparing_.begin()->second.preparation->generation().fence();
    GiveUp(key);
    RefusePrepare(fence, absl::UnavailableError(refusal_));
  }
}

void Generations::Start(const Key& key, const v1::Start& start) {
  Generation& generation = *Find(key)->generation;
  if (generation.ended()) {
    SendEnded(key);
    return;
  }
  if (generation.started()) return;
  generation.Start(start);
  Supersede(key);
  // Processes that were to live on and have ended since: the coordinator knows it.
  for (const auto& [rank, exit] : generation.Exits()) generation.TakeExit(exit);
}

void Generations::Supersede(const Key& key) {
  Generation& generation = *Find(key)->generation;
  const std::shared_ptr<RankProcesses> processes = generation.processes();
  bool follows = false;
  for (const Key& earlier : KeysOf(*processes)) {
    if (earlier.second >= key.second) continue;
    follows = true;
    Find(earlier)->generation->HandOver(generation, host_.facts.node_name);
    Drop(earlier);
  }
  if (follows) StopLeftOut(*processes);
}

void Generations::StopLeftOut(RankProcesses& processes) {
  const Entry* const current = Current(processes);
  if (current == nullptr) return;
  const Generation& generation = *current->generation;
  processes.StopAlone(LeftOut(processes, generation.fence(), generation.record().prepare()),
                      generation.kill_grace());
}

}  // namespace meshrun::worker
