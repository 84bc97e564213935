#include "parallel/comm/ucx_of.h"

#include <cstdlib>
#include <string_view>

#include "parallel/comm/ucx/backend.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun {

c10::intrusive_ptr<UcxBackend> as_ucx(const c10::intrusive_ptr<c10d::Backend>& backend) {
  auto* const ucx = dynamic_cast<UcxBackend*>(backend.get());
  return ucx == nullptr ? nullptr : c10::intrusive_ptr<UcxBackend>::reclaim_copy(ucx);
}

c10::intrusive_ptr<UcxBackend> cpu_ucx_of(c10d::ProcessGroup& group) {
  for (const c10::Device device : group.getDeviceTypes()) {
    if (device.is_cpu()) return as_ucx(group.getBackend(c10::DeviceType::CPU));
  }
  return nullptr;
}

c10::intrusive_ptr<UcxBackend> comparer_of(c10d::ProcessGroup& group) {
  const char* check = std::getenv("MESHRUN_CHECK_COLLECTIVES");
  if (check == nullptr || std::string_view(check) != "1") return nullptr;
  return cpu_ucx_of(group);
}

}  // namespace meshrun
