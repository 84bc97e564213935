#include "parallel/comm/has_failed.h"

#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun {
namespace {

template <typename Counts>
bool any_backend(c10d::ProcessGroup& group, Counts counts) {
  for (const c10::Device& device : group.getDeviceTypes()) {
    const auto backend = group.getBackend(device.type());
    if (backend->getBackendName() == "gloo") continue;
    const c10d::ErrorType error = backend->getError();
    if (error != c10d::ErrorType::SUCCESS && counts(*backend, error)) return true;
  }
  return false;
}

}  // namespace

bool has_failed(c10d::ProcessGroup& group) {
  return any_backend(group, [](const c10d::Backend&, c10d::ErrorType) { return true; });
}

bool has_lost_rank(c10d::ProcessGroup& group) {
  return any_backend(group, [](const c10d::Backend& backend, c10d::ErrorType error) {
    return error == c10d::ErrorType::REMOTE_ERROR || backend.getBackendName() == "nccl";
  });
}

}  // namespace meshrun
