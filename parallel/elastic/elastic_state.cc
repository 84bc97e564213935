#include "parallel/elastic/elastic_state.h"

#include <ATen/ATen.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <mutex>
#include <set>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>
#include <vector>

#include "agent/agent.h"
#include "core/text.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "parallel/base/digest.h"
#include "parallel/base/no_collectives.h"
#include "parallel/base/sharded_key.h"
#include "parallel/checkpoint/agreement.h"
#include "parallel/checkpoint/random_streams.h"
#include "parallel/comm/interface/call_scope.h"
#include "parallel/manager/distributed_manager.h"
#include "parallel/nn/optimizer_state.h"
#include "parallel/shard/shard_tensor.h"

namespace meshrun {
namespace {

// The greatest of the ranks' values, one by one.
std::vector<int64_t> greatest(const std::vector<int64_t>& own) {
  DistributedManager& manager = DistributedManager::get();
  std::vector<at::Tensor> values = {at::tensor(own, at::kLong).to(manager.device())};
  c10d::AllreduceOptions options;
  options.reduceOp = c10d::ReduceOp::MAX;
  manager.world()->allreduce(values, options)->wait();
  const at::Tensor seen = values[0].cpu();
  const auto* const begin = seen.const_data_ptr<int64_t>();
  return {begin, begin + seen.numel()};
}

uint64_t seed_now() {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
  const std::scoped_lock lock(generator.mutex());
  return generator.current_seed();
}

// Whether each step of the optimizer raises the versions of the parameters.
bool counts_writes(const torch::optim::Optimizer& optimizer) {
  return dynamic_cast<const torch::optim::SGD*>(&optimizer) == nullptr &&
         dynamic_cast<const ParameterStates*>(&optimizer) == nullptr;
}

}  // namespace

ElasticState::ElasticState(ElasticContext& context, torch::nn::Module& module,
                           torch::optim::Optimizer& optimizer)
    : context_(context),
      module_(module),
      optimizer_(optimizer),
      is_whole_(meshrun::is_whole(module, optimizer)),
      rank_(DistributedManager::get().rank()),
      world_size_(DistributedManager::get().world_size()),
      recorder_(module, optimizer, kept_) {
  if (is_whole_) check_parameters_of(optimizer, module);
  TORCH_CHECK(context_.state_ == nullptr,
              "a context has one ElasticState at a time, and another one is alive: put all modules "
              "into one, or keep() what is beside it");
  TORCH_CHECK(!context_.ended_after_,
              "a world has one ElasticState, and this one's has ended after ",
              context_.ended_after_.value_or(0),
              " steps: ranks that go on could not tell whose memory they have. Take all phases of "
              "the training in one loop over one state");
  context_.state_ = this;
  if (is_whole_) context_.announce();
}

ElasticState::~ElasticState() {
  context_.state_ = nullptr;
  if (steps_ < 0) return;
  context_.ended_after_ = steps_;
  if (!is_whole_) return;
  try {
    context_.memory_.reset();
    const std::string reason = half_done();
    if (reason.empty()) {
      context_.memory_ = recorder_.memory(rank_, world_size_);
      context_.memory_->draws_alike = alike_ && *alike_ == seed_now();
    } else {
      context_.refusal_ = "step " + std::to_string(steps_ + 1) +
                          " was half done when its world ended: " + reason +
                          "; change the state within ElasticState::update() alone";
    }
  } catch (const std::exception& error) {
    TORCH_WARN("this rank does not remember its training: ", error.what());
  }
}

std::string ElasticState::half_done() const {
  if (is_changing_) return "an update() had not returned";
  const std::string written = recorder_.written();
  if (written.empty()) return "";
  // Perhaps with the same bits: DistributedDataParallel's construction does that.
  if (restored_ && digest_of_state(module_, optimizer_, kept_) == *restored_) return "";
  return written + " had been written";
}

void ElasticState::check_keep(const std::string& name) const {
  TORCH_CHECK(!was_restored_, "ElasticState::keep(\"", name,
              "\") comes after restore(), which would have restored it: call it before");
}

void ElasticState::check_kept(const std::string& name) const {
  TORCH_CHECK_VALUE(!is_whole_ || kept_.is_whole(), "ElasticState::keep(\"", name,
                    "\"): it lies in pieces on several ranks, and the module does not");
}

void ElasticState::check_alike() const {
  DistributedManager& manager = DistributedManager::get();
  c10d::ProcessGroup& world = *manager.world();
  const std::string names = fmt::format("{}", fmt::join(kept_.names(), ", "));
  const std::vector<bool> equal =
      are_equal(world, manager.device(),
                {static_cast<int64_t>(digest_of(names)), is_whole_ ? 1 : 0, snapshot_every_});
  if (equal[0] && equal[1] && equal[2]) return;
  const std::string own =
      !equal[0]   ? "keeps [" + names + "]"
      : !equal[1] ? std::string(is_whole_ ? "has its state whole" : "has its state in pieces")
                  : "has snapshot_every(" + std::to_string(snapshot_every_) + ")";
  const std::vector<std::string> all = gather_texts(world, manager.device(), own);
  const auto other =
      std::find_if(all.begin(), all.end(), [&](const std::string& each) { return each != all[0]; });
  C10_THROW_ERROR(ValueError, "ElasticState::restore(): rank 0 " + all[0] + ", but rank " +
                                  std::to_string(other - all.begin()) + " " + *other +
                                  (equal[0] ? ": it must be the same on all ranks"
                                            : ": all ranks keep() the same names"));
}

std::optional<int64_t> ElasticState::restore() {
  was_restored_ = true;
  DistributedManager& manager = DistributedManager::get();
  kept_.check_stepped(module_);
  if (manager.agent() == nullptr) return std::nullopt;
  const CallScope scope("ElasticState::restore()");
  check_alike();
  if (context_.memory_) {
    const std::string written = context_.memory_->versions.written();
    if (!written.empty()) {
      context_.refusal_ = written + " was written after the world that it is of had ended";
      context_.memory_.reset();
    }
  }
  if (!context_.refusal_.empty()) {
    context_.say("this rank's memory is not used: " + std::exchange(context_.refusal_, ""));
  }
  // The lowest rank wins among ranks that have done equally many steps.
  const int64_t ranks = manager.world_size();
  const bool has = context_.memory_.has_value();
  const int64_t best =
      greatest({has ? (context_.memory_->step + 1) * ranks - 1 - manager.rank() : -1})[0];
  if (best < 0) return restore_snapshot();
  const int64_t step = best / ranks;
  const int root = static_cast<int>(ranks - 1 - best % ranks);
  const std::string own = has ? std::to_string(context_.memory_->step) : "none";
  kept_.list_moments();
  const SpreadMemory spread =
      spread_memory(context_.memory_, root, module_, optimizer_, manager.world(), kept_);
  go_on_after(step, spread.digest,
              "the memory of rank " + std::to_string(root) + "; had done " + own);
  return step;
}

std::optional<int64_t> ElasticState::restore_snapshot() {
  DistributedManager& manager = DistributedManager::get();
  if (manager.backend() != "ucx") return std::nullopt;
  const auto [step, problem] =
      context_.snapshots_->restore(manager.world(), module_, optimizer_, kept_);
  if (!problem.empty() && rank_ == 0) context_.say(problem);
  if (!step) return std::nullopt;
  std::optional<int64_t> digest;
  if (is_whole_) digest = digest_of_state(module_, optimizer_, kept_);
  go_on_after(*step, digest, "the snapshots of all ranks");
  return step;
}

void ElasticState::go_on_after(int64_t step, std::optional<int64_t> digest,
                               const std::string& source) {
  commit(step, /*is_watched=*/true);
  restored_ = digest;
  take_snapshot_if_due();
  // Until here a rank might be lost.
  context_.memory_.reset();
  const uint64_t generation = DistributedManager::get().agent()->assignment().generation;
  context_.snapshots_->keep_only(generation);
  place_ = fmt::format("generation {}, rank {} of {}", generation, rank_, world_size_);
  context_.say(fmt::format("{}: goes on after step {}, as in {}", place_, step, source));
}

void ElasticState::snapshot_every(IntArgument steps) {
  TORCH_CHECK_VALUE(steps >= 0, "ElasticState::snapshot_every: ", int64_t{steps},
                    " steps lie between two snapshots; 0 is for none");
  TORCH_CHECK(!was_restored_,
              "ElasticState::snapshot_every() comes after restore(): call it before");
  const DistributedManager& manager = DistributedManager::get();
  if (is_whole_ || manager.agent() == nullptr || manager.backend() != "ucx") return;
  check_parameters_of(optimizer_, module_);
  snapshot_every_ = steps;
  if (snapshot_every_ == 0) return;
  context_.announce();
  pieces_.clear();
  for (const auto& item : module_.named_parameters()) {
    pieces_.add(item.key(), is_sharded(item.value()) ? local_of(item.value()) : item.value());
  }
}

std::optional<int64_t> ElasticState::newest_snapshot() const {
  if (snapshot_every_ == 0) return std::nullopt;
  return context_.snapshots_->newest(DistributedManager::get().agent()->assignment().generation);
}

void ElasticState::take_snapshot_if_due(bool at_once) {
  if (snapshot_every_ == 0) return;
  const std::optional<int64_t> newest = newest_snapshot();
  if (newest == steps_) return;
  const bool is_due =
      !newest || steps_ < *newest || steps_ / snapshot_every_ != *newest / snapshot_every_;
  if (is_due || at_once) take_snapshot();
}

void ElasticState::take_snapshot() {
  DistributedManager& manager = DistributedManager::get();
  PieceSnapshots& snapshots = *context_.snapshots_;
  snapshots.take({manager.world(), manager.agent()->assignment().generation, manager.node_ranks()},
                 steps_, module_, optimizer_, kept_);
  // Before the first step there are no moments.
  if (steps_ == 0 || std::exchange(is_memory_told_, true)) return;
  const int64_t most = greatest({static_cast<int64_t>(snapshots.bytes())})[0];
  if (rank_ != 0) return;
  context_.say(fmt::format("keeps snapshots every {} steps in memory: at most {} on a rank",
                           snapshot_every_, FormatBytes(static_cast<uint64_t>(most))));
}

int64_t ElasticState::agree(int64_t own) {
  const CallScope scope("the agreement of ElasticState::steps()");
  const c10::Device device = detail::generator_device(module_);
  const int64_t digest = detail::digest_of_states(detail::generator_states(device));
  const std::vector<int64_t> all = greatest({own, digest, ~digest});
  alike_.reset();
  if (world_size_ > 1 && all[1] == ~all[2]) alike_ = seed_now();
  return all[0];
}

void ElasticState::check_restored() const {
  TORCH_CHECK(was_restored_,
              "ElasticState::restore() was not called, so that a rank which joins or goes on would "
              "begin anew: call it before the first step, in a new training too");
}

// Once.
void ElasticState::tell_of_other_optimizers() {
  if (!are_others_listed_) {
    are_others_listed_ = true;
    std::set<const c10::TensorImpl*> stepped;
    for (const auto& group : optimizer_.param_groups()) {
      for (const at::Tensor& parameter : group.params()) {
        stepped.insert(parameter.unsafeGetTensorImpl());
      }
    }
    for (const auto& item : module_.named_parameters()) {
      const at::Tensor& parameter = item.value();
      if (!parameter.requires_grad() || kept_.is_stepped(parameter) ||
          stepped.contains(parameter.unsafeGetTensorImpl())) {
        continue;
      }
      others_.add(item.key(), parameter);
    }
    others_.record();
    return;
  }
  const std::string written = others_.written();
  if (written.empty()) return;
  others_.clear();
  if (context_.is_announced_ && rank_ == 0) {
    context_.say(written +
                 " is changed in update(), and is not the ElasticState's optimizer's: if another "
                 "optimizer steps it, keep() that one, else its moments are lost with a rank");
  }
}

// `since` an update(), or "after" it, where nothing may have changed. Before the next one a loop
// may set a learning rate; kept bytes are handed on as the update() left them.
void ElasticState::check_unchanged(const char* since) const {
  const bool is_after = step_ && steps_ > *step_;
  std::string changed = recorder_.written();
  if (changed.empty() && (is_after || !step_)) changed = recorder_.changed();
  if (changed.empty() && is_after && recorder_.has_other_options()) {
    changed = "an option of the optimizer";
  }
  TORCH_CHECK(changed.empty(), "ElasticState: ", changed, " was changed ", since,
              " update() of step ", steps_ - 1,
              ": ranks that lose another one in between would not agree on it. Change "
              "it within update(), or say commit(",
              steps_, ") once it is as before");
}

void ElasticState::update(const std::function<void()>& change) {
  begin_update();
  try {
    change();
  } catch (...) {
    end_update(/*is_whole=*/false);
    throw;
  }
  end_update();
}

void ElasticState::begin_update() {
  TORCH_CHECK(!is_changing_,
              "ElasticState::update() is called within itself, or after one that raised: say "
              "commit(steps) where the state is whole again");
  TORCH_CHECK(!step_ || steps_ <= *step_, "ElasticState::update() is called twice in step ",
              step_.value_or(0), ": put both changes into one");
  TORCH_CHECK(steps_ >= 0,
              "ElasticState::update() does not know how many steps are done: before a loop of the "
              "program's own say commit(steps), 0 for a new training");
  check_restored();
  if (is_whole_ && is_updated_) check_unchanged("since the");
  is_changing_ = true;
  if (is_whole_) no_collectives_.emplace("ElasticState::update()");
}

void ElasticState::end_update(BoolArgument is_whole) {
  TORCH_CHECK(is_changing_, "ElasticState::end_update() comes without a begin_update()");
  no_collectives_.reset();
  if (!is_whole) return;
  if (is_whole_) tell_of_other_optimizers();
  commit(step_.value_or(steps_) + 1, /*is_watched=*/false);
  is_updated_ = true;
  take_snapshot_if_due();
}

void ElasticState::commit(IntArgument steps) {
  commit(steps, /*is_watched=*/true);
  // The state after so many steps may be another one now.
  if (newest_snapshot() == steps_) return take_snapshot();
  take_snapshot_if_due();
}

void ElasticState::commit(int64_t steps, bool is_watched) {
  if (!place_.empty() && steps > steps_) {
    context_.say(std::exchange(place_, "") + ": has done step " + std::to_string(steps));
  }
  is_changing_ = true;
  if (is_whole_) recorder_.record(steps, is_watched);
  if (snapshot_every_ > 0) {
    pieces_.record();
    piece_bits_.reset();
    if (is_watched && !counts_writes(optimizer_)) piece_bits_ = pieces_.digest();
  }
  steps_ = steps;
  is_changing_ = false;
  is_updated_ = false;
  restored_.reset();
}

void ElasticState::seed_step(IntArgument step) const {
  TORCH_CHECK(seed_, "ElasticState::seed_step() needs a seed: call seed_each_step(seed) first");
  detail::seed_generators(detail::generator_device(module_),
                          step_seed(*seed_, step, stream_.value_or(rank_)),
                          step_seed(*seed_, step, stream_.value_or(0)));
}

void ElasticState::begin_step(int64_t step, int64_t first, int64_t last) {
  if (step == first) {
    check_restored();
    // The program has seeded by now.
    if (is_whole_ && DistributedManager::get().agent() != nullptr) agree(0);
    commit(first, /*is_watched=*/true);
    take_snapshot_if_due();
  }
  step_.reset();
  if (step >= last) return;
  step_ = step;
  if (seed_) seed_step(step);
}

void ElasticState::end_step(int64_t done) {
  TORCH_CHECK(!is_changing_, "ElasticState: the update() of step ", done - 1,
              " raised, and the state is half changed: say commit(steps) where it is whole again");
  if (steps_ == done) {
    if (is_whole_ && is_updated_) check_unchanged("after the");
    step_.reset();
    return;
  }
  // Gradients that a later step's update() takes are in no memory: that step begins with this one.
  const bool is_left = accumulates();
  step_.reset();
  if (is_left) return;
  commit(done, /*is_watched=*/true);
  take_snapshot_if_due();
}

bool ElasticState::accumulates() const {
  if (!recorder_.has_gradients()) return false;
  if (is_whole_) {
    return recorder_.written().empty() && recorder_.changed().empty() &&
           !recorder_.has_other_options();
  }
  return snapshot_every_ > 0 && pieces_.written().empty() &&
         (!piece_bits_ || pieces_.digest() == *piece_bits_);
}

ElasticSteps ElasticState::steps(IntArgument first, IntArgument last, IntArgument agree_every) {
  TORCH_CHECK_VALUE(agree_every > 0, "ElasticState::steps: agree_every is ", int64_t{agree_every},
                    ", and must be at least 1");
  return {first, last, [this, first, last](int64_t step) { begin_step(step, first, last); },
          [this, last, agree_every](int64_t done) {
            end_step(done);
            if (done >= last || done % agree_every != 0) return;
            if (agree(context_.is_quiesce_wanted() ? 1 : 0) > 0) context_.stand_still(done);
          }};
}

}  // namespace meshrun
