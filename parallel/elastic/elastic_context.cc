#include "parallel/elastic/elastic_context.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>
#include <vector>

#include "agent/agent.h"
#include "fmt/format.h"
#include "parallel/base/collective_errors.h"
#include "parallel/base/errors.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/comm/interface/call_scope.h"
#include "parallel/elastic/elastic_state.h"
#include "parallel/manager/distributed_manager.h"
#include "third_party/libtorch/shims.h"

namespace meshrun {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// The coordinator knows of the loss, and says what becomes of the job: the others' places may have
// to be found first.
constexpr milliseconds kKnownLoss = std::chrono::minutes(10);
// It may know nothing of the trouble: then this rank ends, and it learns of that.
constexpr milliseconds kUnknownTrouble = std::chrono::seconds(30);
// Between two looks at stop_requested.
constexpr milliseconds kLook(500);
constexpr milliseconds kSay = std::chrono::seconds(30);
// Between two questions whether another rank has finished.
constexpr milliseconds kAsk(100);

// In place of steps in the last barrier: no ElasticState has ended; the rank was not heard of.
constexpr int64_t kNoState = -1;
constexpr int64_t kUnheard = -2;

// How long another generation is waited for after this error; absent: it is the program's own.
std::optional<milliseconds> patience_after(const c10::DistError& error) {
  if (dynamic_cast<const PeerLostError*>(&error) != nullptr) return kKnownLoss;
  if (dynamic_cast<const GroupAbortedError*>(&error) != nullptr) return kKnownLoss;
  // The world's store is over, or another rank was lost while a group was made.
  if (dynamic_cast<const c10::DistNetworkError*>(&error) != nullptr) return kUnknownTrouble;
  if (dynamic_cast<const RendezvousError*>(&error) != nullptr) return kUnknownTrouble;
  if (dynamic_cast<const TransportError*>(&error) != nullptr) return kUnknownTrouble;
  if (dynamic_cast<const CollectiveTimeoutError*>(&error) != nullptr) return kUnknownTrouble;
  return std::nullopt;
}

// Whether a body is under way in this process.
std::atomic<bool> is_running = false;

class Running {
 public:
  Running() {
    TORCH_CHECK(!is_running.exchange(true),
                "ElasticContext::run() is called within the body of another run(), whose ranks "
                "would not go on after its report: put all work into one body");
  }
  ~Running() { is_running = false; }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;
};

// Returns when all ranks of the world have called it: their steps. A barrier whose result is read:
// NCCL's wait() only lets the stream wait, and says nothing of an operation that was aborted.
std::vector<int64_t> meet_all(DistributedManager& manager, int64_t steps) {
  const CallScope scope("the last barrier of ElasticContext::run()");
  const at::TensorOptions options = at::TensorOptions(at::kLong).device(manager.device());
  at::Tensor own = at::full({1}, steps, options);
  at::Tensor all = at::full({manager.world_size()}, kUnheard, options);
  libtorch::all_gather_single(*manager.world(), all, own)->wait();
  const at::Tensor heard = all.cpu();
  const auto* const begin = heard.const_data_ptr<int64_t>();
  std::vector<int64_t> by_rank(begin, begin + heard.numel());
  const auto met = std::ranges::count_if(by_rank, [](int64_t each) { return each != kUnheard; });
  TORCH_CHECK(met == heard.numel(), "the last barrier of ElasticContext::run() has met ", met,
              " of ", heard.numel(), " ranks: it was aborted");
  return by_rank;
}

// Loops without collectives may have ended after different steps.
void check_equal(const std::vector<int64_t>& steps) {
  const auto other =
      std::ranges::find_if(steps, [&](int64_t each) { return each != steps.front(); });
  TORCH_CHECK(other == steps.end(), "the work of ElasticContext::run() has ended after ",
              steps.front(), " steps of an ElasticState on rank 0, and after ", *other, " on rank ",
              other - steps.begin(), ": all ranks take the same steps");
}

std::string generation_of(const agent::Agent& agent) {
  return std::to_string(agent.assignment().generation);
}

}  // namespace

ElasticContext::ElasticContext(ElasticOptions options)
    : options_(std::move(options)), snapshots_(std::make_unique<PieceSnapshots>()) {
  listen();
}
ElasticContext::~ElasticContext() = default;

void ElasticContext::listen() {
  signs_->quiesce = false;
  signs_->save = false;
  is_announced_ = false;
  ended_after_.reset();
  agent::Agent* const agent = DistributedManager::get().agent();
  if (agent == nullptr) return;
  agent::GenerationListener listener;
  listener.on_lost = [](int, const std::string&) {};
  listener.on_left = [](int) {};
  listener.on_stopping = [](const std::string&) {};
  listener.on_verdict = [](const WaitVerdict&) {};
  listener.on_quiesce = [signs = signs_](const agent::Quiesce& quiesce) {
    signs->save = quiesce.save;
    signs->quiesce = true;
  };
  agent->Watch(std::move(listener));
}

void ElasticContext::announce() {
  DistributedManager& manager = DistributedManager::get();
  // Gloo's groups cannot be left while a peer is gone, and NCCL's not where they block.
  if (is_announced_ || manager.agent() == nullptr || manager.backend() != "ucx") return;
  const absl::Status said = manager.agent()->SetInProcess(true, kSay);
  // Then all ranks are started anew after a failure, which works as well.
  if (!said.ok()) say("cannot say that this rank goes on in process: " + said.ToString());
  is_announced_ = said.ok();
}

void ElasticContext::run(const std::function<void()>& body) {
  check_unfinished();
  std::optional<Running> running(std::in_place);
  memory_.reset();
  snapshots_ = std::make_unique<PieceSnapshots>();
  ended_after_.reset();
  while (true) {
    std::exception_ptr failure;
    std::optional<milliseconds> patience;
    at_end_.clear();
    try {
      body();
      finish();
    } catch (const detail::StoodStill&) {
      patience = kKnownLoss;
    } catch (const CheckpointRefusedError& error) {
      // The coordinator knew first that this world is over.
      if (!is_announced_) throw;
      patience = kUnknownTrouble;
      failure = std::current_exception();
      say(error.what_without_backtrace());
    } catch (const c10::DistError& error) {
      patience = patience_after(error);
      if (!patience || !is_announced_) throw;
      failure = std::current_exception();
      say(fmt::format("leaves generation {}: {}", generation_of(*DistributedManager::get().agent()),
                      error.what_without_backtrace()));
    }
    if (!patience) break;
    rejoin(failure, *patience);
  }
  running.reset();
  // Their exceptions are the program's own.
  for (const std::function<void()>& act : std::exchange(at_end_, {})) act();
}

void ElasticContext::at_end(std::function<void()> act) { at_end_.push_back(std::move(act)); }

void ElasticContext::check_unfinished() const {
  if (!DistributedManager::is_initialized()) return;
  agent::Agent* const agent = DistributedManager::get().agent();
  if (agent == nullptr) return;
  // The coordinator knows of another context's report too. Where it cannot be asked, work goes on.
  const bool is_finished = reported_generation_ == agent->assignment().generation ||
                           agent->HasFinished(kLook).value_or(false);
  TORCH_CHECK(!is_finished, "ElasticContext::run() has reported that the work of generation ",
              agent->assignment().generation,
              " is finished, and a rank that is lost from then on is not replaced: put all work "
              "into one run()");
}

void ElasticContext::finish() {
  // All ranks wait for the same saves.
  const std::exception_ptr unsaved = finish_background_saves();
  agent::Agent* const agent =
      DistributedManager::is_initialized() ? DistributedManager::get().agent() : nullptr;
  if (agent == nullptr && unsaved) std::rethrow_exception(unsaved);
  if (agent == nullptr) return;
  DistributedManager& manager = DistributedManager::get();
  std::vector<int64_t> steps;
  try {
    // A rank that left alone would be missed by the others' last collectives.
    if (manager.world_size() > 1) steps = meet_all(manager, ended_after_.value_or(kNoState));
  } catch (const CollectiveMismatchError&) {
    throw;                           // another rank is not at its end
  } catch (const std::exception&) {  // Gloo has exceptions of its own
    // A rank that had passed it may have ended, with messages that this one waits for.
    if (!another_has_finished(*agent)) throw;
  }
  if (!steps.empty()) check_equal(steps);
  // After the barrier, which tells whether a lost rank is the reason.
  if (unsaved) std::rethrow_exception(unsaved);
  const absl::Status said = agent->ReportFinished(kSay);
  if (absl::IsFailedPrecondition(said)) {
    throw PeerLostError("this rank's work is finished, and the job goes on without its world: " +
                        std::string(said.message()));
  }
  if (said.ok()) {
    reported_generation_ = agent->assignment().generation;
  } else {
    say("cannot say that this rank has finished its work: " + said.ToString());
  }
}

bool ElasticContext::another_has_finished(agent::Agent& agent) const {
  const auto until = steady_clock::now() + kUnknownTrouble;
  while (steady_clock::now() < until && !options_.stop_requested()) {
    const absl::StatusOr<bool> finished = agent.HasFinished(kLook);
    if (finished.ok() && *finished) return true;
    // A loss was known before any rank had finished.
    const absl::Status& status = finished.status();
    if (!status.ok() && !absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status)) break;
    std::this_thread::sleep_for(kAsk);
  }
  return false;
}

void ElasticContext::stand_still(IntArgument step) {
  agent::Agent* const agent = DistributedManager::get().agent();
  TORCH_CHECK(agent != nullptr, "stand_still() outside meshrun: nobody brings another generation");
  if (state_ != nullptr) state_->take_snapshot_if_due(/*at_once=*/true);
  const absl::Status said = agent->ReportQuiesced(step, kSay);
  // The coordinator then stops the ranks when its deadline is over.
  if (!said.ok()) say("cannot say that this rank stands still: " + said.ToString());
  say(fmt::format("leaves generation {} after step {} as the coordinator wishes",
                  generation_of(*agent), static_cast<int64_t>(step)));
  throw detail::StoodStill();
}

void ElasticContext::rejoin(const std::exception_ptr& failure, milliseconds patience) {
  DistributedManager& manager = DistributedManager::get();
  std::shared_ptr<agent::Agent> agent = manager.shared_agent();
  const std::string backend = manager.backend();
  const std::string method = manager.initialization_method();
  const std::optional<milliseconds> timeout = manager.timeout();
  give_up_background_saves();
  DistributedManager::cleanup();
  const auto until = steady_clock::now() + patience;
  while (true) {
    agent = await_next(std::move(agent), failure, until);
    try {
      DistributedManager::initialize(
          {.backend = backend, .method = method, .timeout = timeout, .agent = agent});
      break;
    } catch (const c10::DistError& error) {
      // A peer was lost on the way: yet another generation follows.
      say(fmt::format("cannot join generation {}: {}", generation_of(*agent),
                      error.what_without_backtrace()));
    }
  }
  agent.reset();
  listen();
  options_.on_joined();
}

std::shared_ptr<agent::Agent> ElasticContext::await_next(std::shared_ptr<agent::Agent> agent,
                                                         const std::exception_ptr& failure,
                                                         steady_clock::time_point until) {
  while (true) {
    auto next = agent->NextGeneration(kLook);
    if (next.ok()) return *std::move(next);
    const absl::Status& status = next.status();
    if (absl::IsAborted(status) || options_.stop_requested()) {
      throw ElasticStoppedError("the job is being stopped: " + std::string(status.message()));
    }
    const bool may_come = absl::IsDeadlineExceeded(status) || absl::IsUnavailable(status);
    if (may_come && steady_clock::now() < until) continue;
    if (failure) std::rethrow_exception(failure);
    throw RendezvousError("no generation follows: " + std::string(status.message()));
  }
}

void ElasticContext::say(const std::string& text) const {
  if (options_.log) {
    options_.log(text);
    return;
  }
  const std::string line = "meshrun: " + text + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace meshrun
