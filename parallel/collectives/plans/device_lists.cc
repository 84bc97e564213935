#include "parallel/collectives/plans/device_lists.h"

#include <algorithm>

#include "ATen/ops/cat.h"
#include "ATen/ops/empty.h"
#include "c10/core/impl/VirtualGuardImpl.h"
#include "c10/util/Exception.h"
#include "parallel/kernels/row_kernels.h"

namespace meshrun {
namespace {

constexpr at::Tensor IndexedLists::*kLists[] = {&IndexedLists::remote, &IndexedLists::own,
                                                &IndexedLists::offsets, &IndexedLists::positions};

bool is_capturing(c10::Device device) {
  const RowKernels& kernels = row_kernels(device.type());
  return kernels.is_capturing != nullptr && kernels.is_capturing(device);
}

bool has_passed(const c10::Event& event) {
  const RowKernels& kernels = row_kernels(event.device_type());
  return kernels.has_passed != nullptr ? kernels.has_passed(event) : event.query();
}

}  // namespace

DeviceLists::DeviceLists(const IndexedLists& host, c10::Device device)
    : device_(device), copied_(device.type()) {
  TORCH_CHECK(!is_capturing(device), "the first call of an indexed all-to-all's plan on ",
              device.str(),
              " copies its lists there, which a CUDA graph would repeat: make one call before the "
              "capture, and wait for it");
  std::vector<at::Tensor> lists;
  int64_t count = 0;
  for (const auto list : kLists) {
    lists.push_back(host.*list);
    count += lists.back().numel();
  }
  // From other memory CUDA copies while the host waits. The allocator keeps it until then.
  at::Tensor pinned =
      at::empty({count}, at::TensorOptions(at::kLong).pinned_memory(device.is_cuda()));
  at::cat_out(pinned, lists);
  all_ = pinned.to(device, /*non_blocking=*/true);
  int64_t begin = 0;
  for (const auto list : kLists) {
    lists_.*list = all_.narrow(0, begin, (host.*list).numel());
    begin += (host.*list).numel();
  }
  users_.push_back(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  copied_.record(users_.front());
}

const IndexedLists& DeviceLists::on_current_stream() {
  const c10::impl::VirtualGuardImpl guard(device_.type());
  const c10::Stream current = guard.getStream(device_);
  if (std::find(users_.begin(), users_.end(), current) == users_.end()) {
    // A stream that a graph is captured on may not wait for what is outside the graph.
    if (!has_passed(copied_)) copied_.block(current);
    guard.recordDataPtrOnStream(all_.storage().data_ptr(), current);
    users_.push_back(current);
  }
  return lists_;
}

}  // namespace meshrun
