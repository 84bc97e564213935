#include "parallel/comm/interface/call_comparer.h"

#include <cstdlib>
#include <string_view>
#include <utility>

#include "parallel/comm/interface/found_in.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun {

ComparingBackend::ComparingBackend(c10::intrusive_ptr<c10d::Backend> backend)
    : backend_(std::move(backend)),
      comparer_(backend_ ? found_in<CallComparer>(*backend_) : nullptr) {}

ComparingBackend cpu_comparer_of(c10d::ProcessGroup& group) {
  for (const c10::Device device : group.getDeviceTypes()) {
    if (device.is_cpu()) return ComparingBackend(group.getBackend(c10::DeviceType::CPU));
  }
  return {};
}

ComparingBackend comparer_of(c10d::ProcessGroup& group) {
  const char* check = std::getenv("MESHRUN_CHECK_COLLECTIVES");
  if (check == nullptr || std::string_view(check) != "1") return {};
  return cpu_comparer_of(group);
}

NodeNumber number_of_node(c10d::ProcessGroup& group, c10::DeviceType device) {
  if (group.getSize() == 1) return {};
  ComparingBackend comparer;
  try {
    comparer = ComparingBackend(group.getBackend(device));
  } catch (const c10::Error&) {
    return {};  // the call raises that
  }
  if (!comparer) comparer = comparer_of(group);
  return comparer ? comparer->next_node_number() : NodeNumber();
}

}  // namespace meshrun
