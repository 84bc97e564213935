#include "parallel/elastic/elastic_state.h"

#include <ATen/ATen.h>

#include <mutex>
#include <utility>
#include <vector>

#include "parallel/base/no_collectives.h"
#include "parallel/checkpoint/random_streams.h"
#include "parallel/manager/distributed_manager.h"
#include "parallel/nn/optimizer_state.h"

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
  TORCH_CHECK(!context_.has_state_,
              "a context has one ElasticState at a time, and another one is alive: put all modules "
              "into one, or keep() what is beside it");
  context_.has_state_ = true;
  if (is_whole_) context_.announce();
}

ElasticState::~ElasticState() {
  context_.has_state_ = false;
  if (!is_whole_ || steps_ < 0) return;
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
  if (restored_ && recorder_.digest() == *restored_) return "";
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

std::optional<int64_t> ElasticState::restore() {
  was_restored_ = true;
  DistributedManager& manager = DistributedManager::get();
  if (manager.agent() == nullptr) return std::nullopt;
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
  // Of ranks that are equally far, the lowest.
  const int64_t ranks = manager.world_size();
  const bool has = is_whole_ && context_.memory_.has_value();
  const int64_t best =
      greatest({has ? (context_.memory_->step + 1) * ranks - 1 - manager.rank() : -1})[0];
  if (best < 0) return std::nullopt;
  const int64_t step = best / ranks;
  const int root = static_cast<int>(ranks - 1 - best % ranks);
  const std::string own = has ? std::to_string(context_.memory_->step) : "none";
  spread_memory(context_.memory_, root, module_, optimizer_, manager.world(), kept_);
  context_.memory_.reset();
  commit(step);
  restored_ = recorder_.digest();
  place_ = "generation " + std::to_string(manager.agent()->assignment().generation) + ", rank " +
           std::to_string(manager.rank()) + " of " + std::to_string(ranks);
  context_.say(place_ + ": goes on after step " + std::to_string(step) +
               ", as in the memory of rank " + std::to_string(root) + "; had done " + own);
  return step;
}

int64_t ElasticState::agree(int64_t own) {
  const c10::Device device = detail::generator_device(module_);
  const int64_t digest = detail::digest_of_states(detail::generator_states(device));
  const std::vector<int64_t> all = greatest({own, digest, ~digest});
  alike_.reset();
  if (world_size_ > 1 && all[1] == ~all[2]) alike_ = seed_now();
  return all[0];
}

void ElasticState::check_unchanged(const char* since) const {
  std::string changed = recorder_.written();
  if (changed.empty()) changed = recorder_.changed();
  // A loop of the program's own may set a learning rate before update().
  if (changed.empty() && step_ && recorder_.has_other_options()) {
    changed = "an option of the optimizer";
  }
  TORCH_CHECK(changed.empty(), "ElasticState: ", changed, " was changed ", since,
              " update() of step ", steps_ - 1,
              ": ranks that lose another one in between would not agree on it. Change "
              "it within update(), or say commit(",
              steps_, ") once it is as before");
}

void ElasticState::update(const std::function<void()>& change) {
  TORCH_CHECK(!is_changing_,
              "ElasticState::update() is called within itself, or after one that raised: say "
              "commit(steps) where the state is whole again");
  TORCH_CHECK(!step_ || steps_ <= *step_, "ElasticState::update() is called twice in step ",
              step_.value_or(0), ": put both changes into one");
  TORCH_CHECK(steps_ >= 0,
              "ElasticState::update() does not know how many steps are done: before a loop of the "
              "program's own say commit(steps), 0 for a new training");
  if (is_whole_ && is_updated_ && !step_) check_unchanged("since the");
  is_changing_ = true;
  {
    std::optional<NoCollectives> none;
    if (is_whole_) none.emplace("ElasticState::update()");
    change();
  }
  commit(step_.value_or(steps_) + 1, /*is_watched=*/false);
  is_updated_ = true;
}

void ElasticState::commit(IntArgument steps) { commit(steps, /*is_watched=*/true); }

void ElasticState::commit(int64_t steps, bool is_watched) {
  if (!place_.empty() && steps > steps_) {
    context_.say(std::exchange(place_, "") + ": has done step " + std::to_string(steps));
  }
  is_changing_ = true;
  if (is_whole_) recorder_.record(steps, is_watched);
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
    // The program has seeded by now.
    if (is_whole_ && DistributedManager::get().agent() != nullptr) agree(0);
    commit(first);
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
  const bool accumulates = is_whole_ && recorder_.has_gradients() && recorder_.written().empty() &&
                           recorder_.changed().empty() && !recorder_.has_other_options();
  step_.reset();
  if (!accumulates) commit(done);
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
