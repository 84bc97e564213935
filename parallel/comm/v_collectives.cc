#include "parallel/comm/v_collectives.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <utility>
#include <vector>

#include "parallel/comm/point_to_point_v_collectives.h"
#include "parallel/comm/ucx/backend.h"
#include "parallel/manager/errors.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun {
namespace {

bool headers_are_asked_for() {
  const char* check = std::getenv("MESHRUN_CHECK_COLLECTIVES");
  return check != nullptr && std::string_view(check) == "1";
}

// The ucx backend beside `backend`, which compares for it; null: none, or nobody asks for it.
c10::intrusive_ptr<UcxBackend> comparer_of(c10d::ProcessGroup& group) {
  const std::vector<c10::Device> devices = group.getDeviceTypes();
  const bool has_cpu = std::any_of(devices.begin(), devices.end(),
                                   [](const c10::Device& device) { return device.is_cpu(); });
  if (!headers_are_asked_for() || !has_cpu) return nullptr;
  const auto backend = group.getBackend(c10::DeviceType::CPU);
  auto* const ucx = dynamic_cast<UcxBackend*>(backend.get());
  return ucx == nullptr ? nullptr : c10::intrusive_ptr<UcxBackend>::reclaim_copy(ucx);
}

}  // namespace

VCollectivesOf::VCollectivesOf(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                               c10::DeviceType device) {
  try {
    backend_ = group->getBackend(device);
  } catch (const c10::Error&) {
    throw BackendError("the process group \"" + group->getGroupName() + "\" has no backend for " +
                       c10::DeviceTypeName(device, /*lower_case=*/true) + " tensors");
  }
  collectives_ = dynamic_cast<VCollectives*>(backend_.get());
  if (collectives_ != nullptr) return;
  PointToPointVCollectives::Compare compare;
  if (auto comparer = comparer_of(*group)) {
    compare = [comparer](std::string what, uint64_t digest, VCall call) {
      return comparer->compare(std::move(what), digest, std::move(call));
    };
  }
  adapter_ = std::make_unique<PointToPointVCollectives>(backend_, std::move(compare));
  collectives_ = adapter_.get();
}

VCollectivesOf::~VCollectivesOf() = default;
VCollectivesOf::VCollectivesOf(VCollectivesOf&&) noexcept = default;

}  // namespace meshrun
