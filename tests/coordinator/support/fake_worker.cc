#include "tests/coordinator/support/fake_worker.h"

#include <csignal>

namespace meshrun::coordinator::testing {

v1::OpenSessionRequest FakeWorker::Hello() const {
  v1::OpenSessionRequest message;
  message.mutable_fence()->set_term(term_);
  message.mutable_fence()->set_incarnation(incarnation_);
  v1::Hello& hello = *message.mutable_hello();
  hello.set_node_id(node_id());
  hello.set_name(options_.name);
  hello.set_address("127.0.0.1");
  hello.set_version("test");
  hello.set_draining(draining);
  hello.mutable_resources()->set_slots(options_.slots);
  hello.mutable_resources()->set_cores(options_.slots);
  hello.mutable_resources()->set_memory_bytes(options_.memory_bytes);
  for (uint32_t i = 0; i < options_.gpus; ++i) {
    hello.mutable_resources()->add_gpus()->set_index(i);
  }
  for (const std::string& job : options_.shipped_jobs) hello.add_shipped_jobs(job);
  for (const auto& [key, generation] : generations_) {
    v1::RunningGeneration& running = *hello.add_running();
    running.set_job_id(key.first);
    running.set_generation(key.second);
    for (const int rank : generation.running) running.add_running_ranks(rank);
    for (const v1::RankExit& exit : generation.exits) *running.add_exits() = exit;
    running.set_ended(generation.ended);
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

FakeWorker::Requests FakeWorker::End(const Key& key, Generation& generation, int rank, int code,
                                     int signal, bool teardown) {
  Requests out;
  generation.running.erase(rank);
  v1::RankExit exit;
  exit.set_rank(rank);
  exit.set_exit_code(code);
  exit.set_signal(signal);
  exit.set_teardown(teardown);
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
  if (message.has_heartbeat_reply()) return out;
  received.push_back(message);
  if (deaf) return out;
  const Key key{message.fence().job_id(), message.fence().generation()};
  if (message.has_prepare()) {
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
    result.set_ok(true);
    result.set_master_port(20'000 + static_cast<uint32_t>(generations_.size()));
    Generation& generation = generations_[key];
    for (const auto& rank : message.prepare().ranks()) generation.ranks.insert(rank.rank());
  } else if (message.has_start()) {
    const auto it = generations_.find(key);
    if (it == generations_.end() || !it->second.running.empty() || it->second.ended) return out;
    it->second.running = it->second.ranks;
    auto& pids = *out.emplace_back(Message(key)).mutable_ranks_started()->mutable_pids();
    for (const int rank : it->second.ranks) pids[rank] = 1000 + rank;
  } else if (message.has_stop()) {
    const auto it = generations_.find(key);
    if (it == generations_.end() || stubborn || it->second.ended) return out;
    const std::set<int> running = it->second.running;
    const int signal = message.stop().grace().seconds() > 0 ? SIGTERM : SIGKILL;
    for (const int rank : running) {
      for (auto& request : End(key, it->second, rank, 0, signal, /*teardown=*/true)) {
        out.push_back(std::move(request));
      }
    }
    if (running.empty()) {
      it->second.ended = true;
      out.emplace_back(Message(key)).mutable_generation_ended();
    }
  } else if (message.has_forget()) {
    generations_.erase(key);
  }
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
