// Makes c10d process groups: a backend by name, registered for its devices.
//
// The groups work wherever c10d's do: `group->allreduce(tensors)`, c10d::Reducer.
//
//   "ucx"                  CPU tensors, by the backend of comm/ucx
//   "gloo"                 CPU tensors, by ProcessGroupGloo
//   "nccl"                 CUDA tensors, with ucx beside it for CPU ones; only in programs that
//                          link //parallel/comm:nccl_backend (--config=cuda)
//   "cpu:gloo,cuda:nccl"   a backend for each device
//
// Where nobody asks for one, MESHRUN_BACKEND names it. c10d knows no "ucx": such a group's
// getBackendName() is "custom", that of its CPU backend "ucx".
//
// Threads: any. Errors: BackendError (unknown, or not linked in), RendezvousError (peers not
// reached in time).
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "c10/core/Device.h"
#include "c10/util/intrusive_ptr.h"
#include "parallel/base/errors.h"

namespace c10d {
class Backend;
class ProcessGroup;
class Store;
}  // namespace c10d

namespace meshrun::ucx {
class Engine;
}

namespace meshrun {

struct ProcessGroupOptions {
  // To connect to the peers.
  std::chrono::milliseconds connect_timeout = std::chrono::minutes(5);
  // For every collective; absent: the backend's own (Gloo and ucx 30 minutes, NCCL 10).
  std::optional<std::chrono::milliseconds> timeout;
  std::string name = "world";
  // This host's address that peers reach Gloo at. GLOO_SOCKET_IFNAME, an interface's name, goes
  // before it.
  std::string address = "127.0.0.1";
  // The device this rank works on. For NCCL: its communicator is made at once, by all ranks
  // together; absent: by the first collective, which all ranks must then take part in.
  std::optional<c10::Device> device;
  // For NCCL, with a device: split the communicator from this group's, which is faster than to meet
  // anew and shares its resources. Every rank of `split_from` must make its group at the same time,
  // with a colour that its members share and no others have. MESHRUN_NCCL_SPLIT=0, equal on all
  // ranks: meet anew all the same. Not held.
  c10d::ProcessGroup* split_from = nullptr;
  int split_color = 0;

  // For ucx. One engine serves all groups of a process, with one connection for each pair of
  // processes; absent: the group has its own.
  std::shared_ptr<ucx::Engine> engine;
  // The members' ranks in the job; absent: the same numbers.
  std::vector<int> world_ranks;
  // The host of each member, by any number; empty: one. Equal on all ranks: algorithms depend on
  // it.
  std::vector<int> hosts;
};

// Keys of `store` must be the group's own: the caller wraps it in a c10d::PrefixStore of name and
// ranks. All `size` ranks call it; it returns when Gloo's connections stand, with ucx at once.
// MESHRUN_CHECK_COLLECTIVES=0, equal on all ranks: ucx does not compare the ranks' calls.
// MESHRUN_REDUCTION_ORDER=rank, equal on all ranks: ucx adds in rank order across hosts too; else
// it adds inside each host first ("host", the default). Anything else: BackendError.
c10::intrusive_ptr<c10d::ProcessGroup> make_process_group(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, const std::string& backend,
    const ProcessGroupOptions& options = {});

// MESHRUN_BACKEND, what to use where nobody asks for a backend; absent: not set.
std::optional<std::string> backend_of_environment();

struct BackendChoice {
  std::string cpu = "ucx";
  std::string cuda;  // empty: none
};
// What `backend` names for each device; absent: not one that this program has, GPU or not.
std::optional<BackendChoice> parse_backend(const std::string& backend);

// Whether this program can make groups of that backend, GPU or not.
bool has_backend(const std::string& backend);

// What to throw where has_backend() is false.
BackendError unknown_backend(const std::string& backend);

// How CUDA backends come in: at start-up, by the library that has them. Not thread-safe.
using BackendFactory =
    c10::intrusive_ptr<c10d::Backend> (*)(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                          int size, const ProcessGroupOptions& options);
bool register_cuda_backend(const std::string& name, BackendFactory factory);

}  // namespace meshrun
