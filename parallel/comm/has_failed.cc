#include "parallel/comm/has_failed.h"

#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun {

bool has_failed(c10d::ProcessGroup& group) {
  for (const c10::Device& device : group.getDeviceTypes()) {
    const auto backend = group.getBackend(device.type());
    if (backend->getBackendName() == "gloo") continue;
    if (backend->getError() != c10d::ErrorType::SUCCESS) return true;
  }
  return false;
}

}  // namespace meshrun
