#include "tests/parallel/support/rank_world.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdlib>
#include <exception>

#include "parallel/comm/process_group_factory.h"
#include "parallel/comm/ucx/backend.h"
#include "parallel/manager/distributed_manager.h"
#include "torch/csrc/distributed/c10d/PrefixStore.hpp"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun {

std::string variable(const char* name, const std::string& otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : otherwise;
}

RankWorld::RankWorld() : backend_(variable("MESHRUN_BACKEND", "ucx")) {
  at::set_num_threads(1);
  DistributedManager::initialize({.backend = backend_});
  auto& manager = DistributedManager::get();
  rank_ = manager.rank();
  size_ = manager.world_size();
  group_ = manager.world();
}

RankWorld::~RankWorld() {
  group_.reset();
  // A rank that failed does not wait for those that wait for it.
  DistributedManager::cleanup(/*barrier=*/leaves_together_ && std::uncaught_exceptions() == 0);
}

c10::Device RankWorld::device() const { return DistributedManager::get().device(); }

RankWorld::Group RankWorld::make_group(const std::vector<int>& ranks) const {
  const std::string name = "group " + std::to_string(groups_made_++);
  const auto found = std::find(ranks.begin(), ranks.end(), rank_);
  if (found == ranks.end()) return {};
  ProcessGroupOptions options;
  options.name = name;
  options.device = device();
  options.world_ranks = ranks;
  if (backend_ == "ucx") {
    const auto backend = group_->getBackend(c10::DeviceType::CPU);
    options.engine = dynamic_cast<UcxBackend&>(*backend).engine();
  }
  return make_process_group(
      c10::make_intrusive<c10d::PrefixStore>(name, DistributedManager::get().store()),
      static_cast<int>(found - ranks.begin()), static_cast<int>(ranks.size()), backend_, options);
}

void RankWorld::set_timeout(const Group& group, std::chrono::milliseconds timeout) {
  group->getBackend(c10::DeviceType::CPU)->setTimeout(timeout);
}

}  // namespace meshrun
