#include "parallel/manager/number_device.h"

#include "parallel/manager/distributed_manager.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun {

c10::Device number_device(const c10d::ProcessGroup& group) {
  for (const c10::Device device : group.getDeviceTypes()) {
    if (device.is_cpu()) return device;
  }
  return DistributedManager::get().device();
}

}  // namespace meshrun
