#include "parallel/checkpoint/background_saves.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <exception>
#include <utility>
#include <vector>

#include "core/mutex.h"
#include "fmt/format.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/manager/distributed_manager.h"

namespace meshrun {
namespace detail {
namespace {

using std::chrono::steady_clock;

// How long the end of a process waits for other ranks, of which it hears nothing.
constexpr std::chrono::minutes kEnd(10);

// Those of this process that are alive.
template <typename Thing>
class Alive {
 public:
  static void add(const std::shared_ptr<Thing>& thing) {
    const MutexLock lock(mu());
    std::erase_if(all(), [](const auto& each) { return each.expired(); });
    all().push_back(thing);
  }
  static std::vector<std::shared_ptr<Thing>> alive() {
    std::vector<std::shared_ptr<Thing>> alive;
    const MutexLock lock(mu());
    for (const auto& each : all()) {
      if (auto thing = each.lock()) alive.push_back(std::move(thing));
    }
    return alive;
  }

 private:
  static Mutex& mu() {
    static auto& mu = *new Mutex;
    return mu;
  }
  static std::vector<std::weak_ptr<Thing>>& all() {
    static auto& all = *new std::vector<std::weak_ptr<Thing>>;
    return all;
  }
};
using BackgroundSaves = Alive<BackgroundSave>;
using CommitHooks = Alive<CommitHook>;

// Before the groups and stores of the world go.
void finish_at_cleanup() {
  static std::atomic<bool> is_asked_for{false};
  if (!DistributedManager::is_initialized() || is_asked_for.exchange(true)) return;
  DistributedManager::get().at_cleanup([] {
    is_asked_for = false;
    for (const auto& save : BackgroundSaves::alive()) {
      if (!save->is_done() && !save->is_given_up()) finish_and_say(*save);
    }
  });
}

}  // namespace

void say(const std::string& text) {
  const std::string line = "meshrun: " + text + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
}

void note_background_save(const std::shared_ptr<BackgroundSave>& save) {
  BackgroundSaves::add(save);
  finish_at_cleanup();
}

void note_commit_hook(const std::shared_ptr<CommitHook>& hook) { CommitHooks::add(hook); }

// Not collective: the other ranks' threads are at work too.
void finish(BackgroundSave& save) {
  const auto begin = steady_clock::now();
  bool is_said = false;
  while (!save.wait_for(std::chrono::seconds(1))) {
    if (!std::exchange(is_said, true)) {
      say(fmt::format("waits for the checkpoint of step {}, {}", save.step(), save.progress()));
    }
    if (steady_clock::now() - begin > kEnd) save.give_up_and_wait();
  }
}

void finish(const CommitHook& hook) {
  bool is_said = false;
  while (!hook.wait_for(std::chrono::seconds(1))) {
    if (!std::exchange(is_said, true)) say("waits for the program of on_commit");
  }
}

void finish_and_say(BackgroundSave& save) {
  finish(save);
  const SaveOutcome outcome = save.outcome();
  if (outcome.kind == SaveOutcome::Kind::kWritten || !save.is_news()) return;
  say(fmt::format("the checkpoint of step {} is not written: {}", save.step(), outcome.problem));
}

void raise_outcome(SaveOutcome::Kind kind, const std::string& problem) {
  if (kind == SaveOutcome::Kind::kRefused) throw CheckpointRefusedError(problem);
  throw CheckpointFileError(problem);
}

}  // namespace detail

std::exception_ptr finish_background_saves() {
  std::exception_ptr problem;
  for (const auto& save : detail::BackgroundSaves::alive()) {
    detail::finish(*save);
    const SaveOutcome outcome = save->outcome();
    if (outcome.kind == SaveOutcome::Kind::kWritten || problem || !save->is_news()) continue;
    try {
      detail::raise_outcome(outcome.kind, outcome.problem);
    } catch (const CheckpointError&) {
      problem = std::current_exception();
    }
  }
  for (const auto& hook : detail::CommitHooks::alive()) detail::finish(*hook);
  return problem;
}

void give_up_background_saves() {
  for (const auto& save : detail::BackgroundSaves::alive()) save->give_up();
}

}  // namespace meshrun
