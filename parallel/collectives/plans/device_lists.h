// The lists of an indexed all-to-all's plan on a device other than the CPU, copied once.
//
// All lists are one copy from pinned memory, queued on the stream that is current at the first
// call: the host does not wait. Another stream waits for the copy when it first uses the lists, and
// is recorded: the memory goes to nobody else before that stream is done with it.
//
// CUDA graphs: the first call is made before the capture, and the host has waited for it.
//
// Threads: one at a time. Errors: ATen's; c10::Error where a graph is to capture the first call.
#pragma once

#include <vector>

#include "ATen/core/Tensor.h"
#include "c10/core/Event.h"
#include "c10/core/Stream.h"

namespace meshrun {

// Tensors of int64, one dimension each; see IndexedPlan.
struct IndexedLists {
  at::Tensor remote, own, offsets, positions;
};

class DeviceLists {
 public:
  DeviceLists(const IndexedLists& host, c10::Device device);

  c10::Device device() const { return device_; }
  const IndexedLists& on_current_stream();

 private:
  c10::Device device_;
  at::Tensor all_;
  IndexedLists lists_;  // parts of all_
  c10::Event copied_;
  std::vector<c10::Stream> users_;  // that have queued the copy, or wait for it
};

}  // namespace meshrun
