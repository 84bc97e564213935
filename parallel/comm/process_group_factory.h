// Makes c10d process groups: a backend by name, registered for its devices.
//
// The groups work wherever c10d's do: `group->allreduce(tensors)`, c10d::Reducer. "gloo" serves CPU
// tensors; "nccl" serves CUDA tensors, with Gloo beside it for CPU ones, and exists only in
// programs that link //parallel/comm:nccl_backend (--config=cuda).
//
// Threads: any. Errors: BackendError (unknown, or not linked in), RendezvousError (peers not
// reached in time).
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "c10/core/Device.h"
#include "c10/util/intrusive_ptr.h"
#include "parallel/manager/errors.h"

namespace c10d {
class Backend;
class ProcessGroup;
class Store;
}  // namespace c10d

namespace meshrun {

struct ProcessGroupOptions {
  // Of connecting to the peers.
  std::chrono::milliseconds connect_timeout = std::chrono::minutes(5);
  // Of every collective; absent: the backend's own (Gloo 30 minutes, NCCL 10).
  std::optional<std::chrono::milliseconds> timeout;
  std::string name = "world";
  // This host's address that peers reach Gloo at. GLOO_SOCKET_IFNAME, an interface's name, goes
  // before it.
  std::string address = "127.0.0.1";
  // The device this rank works on; for NCCL.
  std::optional<c10::Device> device;
};

// Keys of `store` must be the group's own: the caller wraps it in a c10d::PrefixStore of name and
// ranks. All `size` ranks call it; it returns when Gloo's connections stand.
c10::intrusive_ptr<c10d::ProcessGroup> make_process_group(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, const std::string& backend,
    const ProcessGroupOptions& options = {});

// Whether this program can make groups of that backend, GPU or not.
bool has_backend(const std::string& backend);

// What to throw where has_backend() is false.
BackendError unknown_backend(const std::string& backend);

// How backends beyond Gloo come in: at start-up, by the library that has them. Not thread-safe.
using BackendFactory =
    c10::intrusive_ptr<c10d::Backend> (*)(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                          int size, const ProcessGroupOptions& options);
bool register_cuda_backend(const std::string& name, BackendFactory factory);

}  // namespace meshrun
