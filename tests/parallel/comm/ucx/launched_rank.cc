// A rank that meshrun launches, with two groups of all ranks on ucx, for launched_test.cc. Says on
// stdout what becomes of its collectives. Without LibTorch.
//
//   opposite   ranks 0 and 1 wait in two groups in opposite order; then all go on
//   killed     rank 1 kills itself while the others are in a barrier
//   exits      rank 1 exits while the others are in a barrier
//   leaves     rank 1 leaves a group that it has used, as cleanup() does, and lives on while the
//              others are in a barrier
//   fails      the same, but it ends, slowly and with code 3, as an interpreter after an exception
//   waits      rank 0 is in a barrier that rank 1 never calls
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "agent/agent.h"
#include "parallel/comm/ucx/agent_watch.h"
#include "parallel/comm/ucx/engine/execution/engine.h"
#include "parallel/comm/ucx/engine/transport/ucx_transport.h"

namespace meshrun::ucx {
namespace {

constexpr std::chrono::seconds kPatience(60);

// Records in the agent's store.
class AgentBook final : public AddressBook {
 public:
  AgentBook(std::shared_ptr<agent::Agent> agent, std::string prefix)
      : agent_(std::move(agent)), prefix_(std::move(prefix)) {}
  ~AgentBook() override { stop(); }

  std::optional<std::string> publish(int rank, const AddressRecord& record) override {
    const absl::Status status = agent_->Set(key(rank), serialize(record));
    return status.ok() ? std::nullopt : std::optional(std::string(status.message()));
  }
  void look_up(const std::vector<int>& ranks, Found found) override {
    const std::lock_guard lock(mu_);
    threads_.emplace_back([this, ranks, found] {
      for (const int rank : ranks) {
        const auto bytes = agent_->Get(key(rank), kPatience);
        if (!bytes.ok()) return found(rank, std::nullopt, std::string(bytes.status().message()));
        found(rank, parse_address_record(*bytes), "");
      }
    });
  }
  void stop() override {
    std::vector<std::thread> threads;
    {
      const std::lock_guard lock(mu_);
      threads.swap(threads_);
    }
    for (std::thread& thread : threads) thread.join();
  }

 private:
  std::string key(int rank) const { return prefix_ + "/" + std::to_string(rank); }

  const std::shared_ptr<agent::Agent> agent_;
  const std::string prefix_;
  std::mutex mu_;
  std::vector<std::thread> threads_;
};

void say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

// In words: how it ended.
std::string barrier(Group& group) {
  OperationSpec spec;
  spec.signature.kind = OperationKind::kBarrier;
  spec.timeout = kPatience;
  spec.drive = Drive::kCaller;
  const auto operation = group.submit(std::move(spec));
  group.wait(*operation);
  if (!operation->failure()) return "ok";
  return std::string(name_of(operation->failure()->kind)) + ": " + operation->failure()->message;
}

int run(const std::string& mode) {
  auto connected = agent::Agent::Connect();
  if (!connected.ok()) {
    say(connected.status().ToString());
    return 2;
  }
  const std::shared_ptr<agent::Agent> agent = *std::move(connected);
  const int rank = agent->assignment().rank;
  auto transport = create_ucx_transport();
  if (!transport.ok()) {
    say(transport.status().ToString());
    return 2;
  }
  Engine::Options options;
  options.watch = create_agent_watch(agent);
  const auto engine = Engine::start(*std::move(transport), std::move(options));
  const auto join = [&](const std::string& name) {
    GroupConfig config;
    config.name = name;
    config.rank = rank;
    config.size = agent->assignment().world_size;
    std::shared_ptr<Group> group;
    if (const auto error = engine->join(config, std::make_unique<AgentBook>(agent, name), &group)) {
      say(*error);
      std::_Exit(2);
    }
    return group;
  };
  const auto a = join("a"), b = join("b");
  if (mode == "opposite") {
    say(barrier(rank == 0 ? *a : *b));
    say("then a: " + barrier(*a));
    say("then b: " + barrier(*b));
    return 0;
  }
  say("at first: " + barrier(*a));
  if (rank == 1) {
    if (mode == "killed") raise(SIGKILL);
    // Not in order: as a program that forgets a collective.
    if (mode == "exits") std::_Exit(0);
    if (mode == "leaves") {
      a->leave("The program is done with it.");
      return agent->Get("through", kPatience).ok() ? 0 : 2;
    }
    if (mode == "fails") {
      a->leave("The interpreter ends.");
      std::this_thread::sleep_for(std::chrono::seconds(1));
      std::_Exit(3);
    }
    while (true) pause();
  }
  const auto begin = std::chrono::steady_clock::now();
  const std::string end = barrier(mode == "leaves" || mode == "fails" ? *a : *b);
  say(end);
  if (mode == "fails") return end == "ok" ? 0 : 4;
  if (mode == "leaves") {
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    say("waited " + std::to_string(took.count()) + " s");
    if (!agent->Set("through", "").ok()) return 2;
  }
  return 0;
}

}  // namespace
}  // namespace meshrun::ucx

int main(int, char** argv) {
  // Those that are stopped because of another one say what they have heard first.
  signal(SIGTERM, SIG_IGN);
  return meshrun::ucx::run(argv[1]);
}
