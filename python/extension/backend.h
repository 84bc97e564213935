// Makes the backend "meshrun" of torch.distributed: c10d's backend over UCX for the CPU tensors of
// a group, and with it NCCL for the CUDA ones where the program has both.
//
// Threads: any, without Python's interpreter lock: it waits for the ranks of a new world. Errors:
// CollectiveArgumentError (a ValueError in Python), BackendError (RuntimeErrors there, as are the
// store's), RendezvousError.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "c10/util/intrusive_ptr.h"
#include "torch/csrc/distributed/c10d/Backend.hpp"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"
#include "torch/csrc/distributed/c10d/Store.hpp"

namespace meshrun::python {

inline constexpr std::chrono::milliseconds kLongestRendezvous = std::chrono::minutes(5);

// What torch.distributed tells a backend of a group.
struct GroupCall {
  c10::intrusive_ptr<c10d::Store> store;
  int rank = 0;
  int size = 1;
  // For each collective.
  std::chrono::milliseconds timeout{};
  // To find the peers, five minutes at most; absent: as above.
  std::optional<std::chrono::milliseconds> connect_timeout = std::nullopt;
  std::string name;
  // Members' ranks in the default group; empty: the same numbers.
  std::vector<int> global_ranks;
  bool is_default = false;
  // Meeting::host of a world that is made for the group.
  std::optional<std::string> host = std::nullopt;
};

// All members call it. A store may be used for one group after another, also of the same name, for
// example where a process destroys its groups and calls init_process_group() again: each rank
// counts its calls there.
c10::intrusive_ptr<c10d::Backend> create_backend(const GroupCall& call);

// As above, with NCCL beside it. Where has_backend("nccl") is false: BackendError.
c10::intrusive_ptr<c10d::ProcessGroup> create_group(const GroupCall& call);

}  // namespace meshrun::python
