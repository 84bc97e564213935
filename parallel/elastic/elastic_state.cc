#include "parallel/elastic/elastic_state.h"

#include <ATen/ATen.h>

#include <utility>
#include <vector>

#include "parallel/manager/distributed_manager.h"

namespace meshrun {
namespace {

// The greatest of the ranks' values.
int64_t greatest(int64_t own) {
  DistributedManager& manager = DistributedManager::get();
  std::vector<at::Tensor> value = {at::full({1}, own, at::kLong).to(manager.device())};
  c10d::AllreduceOptions options;
  options.reduceOp = c10d::ReduceOp::MAX;
  manager.world()->allreduce(value, options)->wait();
  return value[0].item<int64_t>();
}

}  // namespace

ElasticState::ElasticState(ElasticContext& context, torch::nn::Module& module,
                           torch::optim::Optimizer& optimizer)
    : context_(context),
      module_(module),
      optimizer_(optimizer),
      is_whole_(meshrun::is_whole(module, optimizer)) {
  if (is_whole_) context_.announce();
}

ElasticState::~ElasticState() {
  if (!is_whole_ || steps_ < 0) return;
  try {
    context_.memory_ = remember(module_, optimizer_, steps_, std::move(generators_));
  } catch (const std::exception& error) {
    TORCH_WARN("this rank does not remember its training: ", error.what());
  }
}

std::optional<int64_t> ElasticState::restore() {
  DistributedManager& manager = DistributedManager::get();
  if (manager.agent() == nullptr) return std::nullopt;
  // Of ranks that are equally far, the lowest.
  const int64_t ranks = manager.world_size();
  const bool has = is_whole_ && context_.memory_.has_value();
  const int64_t best =
      greatest(has ? (context_.memory_->step + 1) * ranks - 1 - manager.rank() : -1);
  if (best < 0) return std::nullopt;
  const int64_t step = best / ranks;
  const int root = static_cast<int>(ranks - 1 - best % ranks);
  const std::string own = has ? std::to_string(context_.memory_->step) : "none";
  spread_memory(context_.memory_, root, module_, optimizer_, manager.world());
  context_.memory_.reset();
  commit(step);
  place_ = "generation " + std::to_string(manager.agent()->assignment().generation) + ", rank " +
           std::to_string(manager.rank()) + " of " + std::to_string(ranks);
  context_.say(place_ + ": goes on after step " + std::to_string(step) +
               ", as in the memory of rank " + std::to_string(root) + "; had done " + own);
  return step;
}

void ElasticState::commit(IntArgument steps) {
  if (!place_.empty() && steps > steps_) {
    context_.say(std::exchange(place_, "") + ": has done step " + std::to_string(steps));
  }
  steps_ = steps;
  generators_ = generators_now(module_);
}

ElasticSteps ElasticState::steps(IntArgument first, IntArgument last, IntArgument agree_every) {
  TORCH_CHECK_VALUE(agree_every > 0, "ElasticState::steps: agree_every is ", int64_t{agree_every},
                    ", and must be at least 1");
  return {first, last, [this, last, agree_every](int64_t done) {
            commit(done);
            if (done >= last || done % agree_every != 0) return;
            if (greatest(context_.is_quiesce_wanted() ? 1 : 0) > 0) context_.stand_still(done);
          }};
}

}  // namespace meshrun
