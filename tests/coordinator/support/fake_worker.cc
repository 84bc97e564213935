#include "tests/coordinator/support/fake_worker.h"

#include <csignal>

#include "core/proto_time.h"

namespace meshrun::coordinator::testing {

v1::OpenSessionRequest FakeWorker::Hello() const {
  v1::OpenSessionRequest message;
  message.mutable_fence()->set_term(term_);
  message.mutable_fence()->set_incarnation(incarnation_);
  v1::Hello& hello = *message.mutable_hello();
  hello.set_node_id(node_id());
  hello.set_name(options_.name);
  hello.set_machine_id(machine_id);
  hello.set_cluster_id(cluster_id);
  hello.mutable_health()->mutable_problems()->Add(problems.begin(), problems.end());
  hello.mutable_addresses()->Add(options_.addresses.begin(), options_.addresses.end());
  hello.set_version("test");
  hello.set_draining(draining);
  if (options_.fence_after.count() > 0) {
    *hello.mutable_fence_after() = ToProtoDuration(options_.fence_after);
  }
  hello.mutable_resources()->set_slots(options_.slots);
  hello.mutable_resources()->set_cores(options_.slots);
  hello.mutable_resources()->set_memory_bytes(options_.memory_bytes);
  for (uint32_t i = 0; i < options_.gpus; ++i) {
    hello.mutable_resources()->add_gpus()->set_index(i);
  }
  for (const std::string& job : options_.shipped_jobs) hello.add_shipped_jobs(job);
  hello.mutable_labels()->insert(options_.labels.begin(), options_.labels.end());
  for (const auto& [key, generation] : generations_) {
    v1::RunningGeneration& running = *hello.add_running();
    running.set_job_id(key.first);
    running.set_generation(key.second);
    for (const int rank : generation.running) running.add_running_ranks(rank);
    for (const v1::RankExit& exit : generation.exits) *running.add_exits() = exit;
    running.set_ended(generation.ended);
    running.set_started(generation.started);
    running.mutable_steps()->insert(steps.begin(), steps.end());
  }
  return message;
}

void FakeWorker::Reboot(bool ranks_survive) {
  ++incarnation_;
  term_ = 0;
  draining = false;
  if (!ranks_survive) generations_.clear();
}

v1::OpenSessionRequest FakeWorker::Message(const Key& key) const {
  v1::OpenSessionRequest message;
  message.mutable_fence()->set_term(term_);
  message.mutable_fence()->set_incarnation(incarnation_);
  message.mutable_fence()->set_job_id(key.first);
  message.mutable_fence()->set_generation(key.second);
  return message;
}

v1::OpenSessionRequest FakeWorker::Heartbeat() {
  v1::OpenSessionRequest message = Message({});
  message.mutable_heartbeat()->set_sequence(++sequence_);
  message.mutable_heartbeat()->set_draining(draining);
  return message;
}

v1::OpenSessionRequest FakeWorker::HealthReport() const {
  v1::OpenSessionRequest message = Message({});
  message.mutable_host_health()->mutable_problems()->Add(problems.begin(), problems.end());
  return message;
}

FakeWorker::Requests FakeWorker::End(const Key& key, Generation& generation, int rank, int code,
                                     int signal, bool teardown) {
  Requests out;
  generation.running.erase(rank);
  v1::RankExit exit;
  exit.set_rank(rank);
  exit.set_exit_code(code);
  exit.set_signal(signal);
  exit.set_teardown(teardown);
  exit.set_process_generation(generation.ranks.at(rank).first);
  exit.set_process_rank(generation.ranks.at(rank).second);
  exit.add_last_lines("last line of rank " + std::to_string(rank));
  generation.exits.push_back(exit);
  *out.emplace_back(Message(key)).mutable_rank_exit() = exit;
  if (generation.running.empty()) {
    generation.ended = true;
    out.emplace_back(Message(key)).mutable_generation_ended();
  }
  return out;
}

FakeWorker::Requests FakeWorker::OnMessage(const v1::OpenSessionResponse& message) {
  Requests out;
  if (message.has_welcome()) term_ = message.fence().term();
  if (message.welcome().roll_call() && tells_details) {
    for (const auto& [key, generation] : generations_) {
      if (generation.started && !generation.ended)
        *out.emplace_back(Message(key)).mutable_generation_details() = generation.details;
    }
  }
  if (message.has_heartbeat_reply()) return out;
  received.push_back(message);
  if (deaf) return out;
  const Key key{message.fence().job_id(), message.fence().generation()};
  if (message.has_prepare()) {
    Requests answer = Prepare(key, message.prepare());
    if (const auto made = generations_.find(key); made != generations_.end())
      *made->second.details.mutable_prepare() = message.prepare();
    return answer;
  }
  if (message.has_start()) {
    if (const auto made = generations_.find(key); made != generations_.end())
      *made->second.details.mutable_start() = message.start();
    return Start(key);
  }
  if (message.has_stop()) return Stop(key, message.stop());
  if (message.has_quiesce() && quiesces) return StandStill(key.first);
  if (message.has_forget() && forgets) {
    bool alive = false;
    for (auto it = generations_.begin(); it != generations_.end();) {
      const bool meant = it->first.first == key.first && it->first.second <= key.second;
      alive |= meant && !it->second.ended;
      it = meant ? generations_.erase(it) : std::next(it);
    }
    // It had not said that they had ended.
    if (alive) out.emplace_back(Message(key)).mutable_generation_ended();
  }
  return out;
}

int FakeWorker::RunningRank(const std::string& job_id,
                            const std::pair<uint64_t, int>& process) const {
  for (const auto& [key, generation] : generations_) {
    if (key.first != job_id) continue;
    for (const int rank : generation.running) {
      if (generation.ranks.at(rank) == process) return rank;
    }
  }
  return -1;
}

FakeWorker::Requests FakeWorker::Prepare(const Key& key, const v1::Prepare& prepare) {
  Requests out;
  v1::PrepareResult& result = *out.emplace_back(Message(key)).mutable_prepare_result();
  if (draining) {
    result.set_error("is stopping");
    result.set_draining(true);
    return out;
  }
  if (!prepare_error.empty()) {
    result.set_error(prepare_error);
    result.set_bad_command(bad_command);
    return out;
  }
  Generation next;
  for (const v1::RankAssignment& rank : prepare.ranks()) {
    const std::pair<uint64_t, int> process{rank.process_generation(), rank.process_rank()};
    if (process.first != key.second && RunningRank(key.first, process) < 0) {
      result.set_error("a process that was to live on has ended");
      return out;
    }
    next.ranks[rank.rank()] = process;
  }
  result.set_ok(true);
  result.set_master_port(20'000 + static_cast<uint32_t>(generations_.size()));
  generations_.try_emplace(key, std::move(next));
  return out;
}

FakeWorker::Requests FakeWorker::Start(const Key& key) {
  Requests out;
  const auto it = generations_.find(key);
  if (it == generations_.end() || it->second.started || it->second.ended) return out;
  Generation& generation = it->second;
  generation.started = true;
  v1::RanksJoined joined;
  auto& pids = *out.emplace_back(Message(key)).mutable_ranks_started()->mutable_pids();
  for (const auto& [rank, process] : generation.ranks) {
    const bool kept = process.first != key.second;
    if (kept && RunningRank(key.first, process) < 0) continue;
    if (!kept) pids[rank] = 1000 + rank;
    if (kept ? joins : new_ones_join) joined.add_ranks(rank);
    generation.running.insert(rank);
  }
  if (in_process) *joined.mutable_in_process() = joined.ranks();
  // Earlier generations live on in this one.
  for (auto old = generations_.begin(); old != it;) {
    const bool meant = old->first.first == key.first && !old->second.ended;
    old = meant ? generations_.erase(old) : std::next(old);
  }
  *out.emplace_back(Message(key)).mutable_ranks_joined() = joined;
  return out;
}

FakeWorker::Requests FakeWorker::Stop(const Key& key, const v1::Stop& stop) {
  Requests out;
  if (stubborn) return out;
  const int signal = stop.grace().seconds() > 0 ? SIGTERM : SIGKILL;
  bool said_so = false;
  for (auto& [own, generation] : generations_) {
    if (own.first != key.first || own.second > key.second || generation.ended) continue;
    const std::set<int> running = generation.running;
    for (const int rank : running) {
      for (auto& request : End(own, generation, rank, 0, signal, /*teardown=*/true)) {
        said_so |= request.has_generation_ended() && own == key;
        out.push_back(std::move(request));
      }
    }
    generation.ended = true;
  }
  // Also of a generation that is not here.
  if (!said_so) out.emplace_back(Message(key)).mutable_generation_ended();
  return out;
}

FakeWorker::Requests FakeWorker::Exit(const std::string& job_id, int rank, int code, int signal) {
  for (auto& [key, generation] : generations_) {
    if (key.first == job_id && generation.running.contains(rank)) {
      return End(key, generation, rank, code, signal, /*teardown=*/false);
    }
  }
  return {};
}

FakeWorker::Requests FakeWorker::ExitAll(const std::string& job_id, int code) {
  Requests out;
  for (const int rank : Running(job_id)) {
    for (auto& request : Exit(job_id, rank, code)) out.push_back(std::move(request));
  }
  return out;
}

FakeWorker::Requests FakeWorker::StandStill(const std::string& job_id) {
  Requests out;
  for (const auto& [key, generation] : generations_) {
    if (key.first != job_id || generation.running.empty()) continue;
    auto& steps = *out.emplace_back(Message(key)).mutable_ranks_quiesced()->mutable_steps();
    for (const int rank : generation.running) steps[rank] = 10;
  }
  return out;
}

FakeWorker::Requests FakeWorker::StopRanks(const std::string& job_id, int code) {
  Requests out;
  for (auto& [key, generation] : generations_) {
    if (key.first != job_id) continue;
    const std::set<int> running = generation.running;
    for (const int rank : running) {
      for (auto& request : End(key, generation, rank, code, /*signal=*/0, /*teardown=*/true)) {
        out.push_back(std::move(request));
      }
    }
  }
  return out;
}

FakeWorker::Requests FakeWorker::GiveUp(const std::string& job_id) {
  Requests out;
  for (auto& [key, generation] : generations_) {
    if (key.first != job_id || generation.ended || !generation.running.empty()) continue;
    generation.ended = true;
    out.emplace_back(Message(key)).mutable_generation_ended();
  }
  return out;
}

v1::OpenSessionRequest FakeWorker::Goodbye() const {
  v1::OpenSessionRequest message = Message({});
  message.mutable_goodbye();
  return message;
}

std::set<int> FakeWorker::Running(const std::string& job_id) const {
  std::set<int> out;
  for (const auto& [key, generation] : generations_) {
    if (key.first == job_id) out.insert(generation.running.begin(), generation.running.end());
  }
  return out;
}

bool FakeWorker::Carries(const std::string& job_id) const {
  for (const auto& [key, generation] : generations_) {
    if (key.first == job_id && !generation.ended) return true;
  }
  return false;
}

}  // namespace meshrun::coordinator::testing
