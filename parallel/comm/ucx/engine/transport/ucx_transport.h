// The Transport over UCX: shared memory and CMA within a host, TCP or RDMA between hosts.
//
// What UCX is told, and why (docs/ucx-engine-measurements.md has what was measured):
//   UCP_ERR_HANDLING_MODE_NONE with an error handler: MODE_PEER would give up shared memory.
//   RNDV_SCHEME=get_zcopy, whatever UCX_RNDV_SCHEME says: a late peer never writes into our memory.
//   UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP; endpoints are never closed alone, only with the worker.
//   NET_DEVICES: what ucx_interfaces() says. Each of several named interfaces has a transport of
//   its own (rails_transport.h), the first alone with SHM_DEVICES: MAX_RNDV_RAILS of UCX 1.13 over
//   TCP sends by whichever has room first, and one interface often carried everything.
// All else is left to UCX's own variables (UCX_TLS=tcp,self forces TCP), which are only read.
//
// Requests are released inside their completion callback, so that close() leaves none behind.
// UCX does not survive fork(): the child must not touch the parent's transport.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "parallel/base/network_interfaces.h"
#include "parallel/comm/ucx/engine/transport/transport.h"

namespace meshrun::ucx {

// Those that carry messages between hosts: of MESHRUN_NET_DEVICES, else those that lead out of this
// host. Several that are named are used together, at most kMostRails. No names: UCX chooses
// (UCX_NET_DEVICES is set, or there is nothing to leave out). Errors: choose_interfaces()'s.
absl::StatusOr<ChosenInterfaces> ucx_interfaces();

// What a worker of UCX may use.
struct UcxDevices {
  std::vector<std::string> interfaces;  // none: those that UCX chooses
  bool shared_memory = true;
  // What errors begin with, where it is one of several rails; empty: it is not.
  std::string rail;
};
// UNAVAILABLE: UCX finds no usable device; the text has UCX's status and the UCX_TLS in force, and
// /dev/shm with its room where UCX may have found that too small.
absl::StatusOr<std::unique_ptr<Transport>> create_ucx_transport(const UcxDevices& devices);

// Over what ucx_interfaces() says, once it has.
absl::StatusOr<std::unique_ptr<Transport>> create_ucx_transport(const ChosenInterfaces& chosen);
// Asks it. Errors: also INVALID_ARGUMENT, MESHRUN_NET_DEVICES.
absl::StatusOr<std::unique_ptr<Transport>> create_ucx_transport();

}  // namespace meshrun::ucx
