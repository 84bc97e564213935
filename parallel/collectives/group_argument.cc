#include "parallel/collectives/group_argument.h"

#include "parallel/manager/distributed_manager.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun {

GroupArgument::Handle GroupArgument::get() const {
  if (handle_) return handle_;
  return DistributedManager::get().group(name_);
}

}  // namespace meshrun
