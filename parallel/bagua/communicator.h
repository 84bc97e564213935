// A handle of a communicator, which the functions of collectives.h take.
//
//   const Communicator inside = group.get_intra_node_communicator();
//   allreduce_inplace(tensor, ReduceOp::SUM, inside);
//   allreduce_inplace(tensor);  // Communicator(): the default group's global one
//
// A default-constructed handle stands for the global communicator of the default process group,
// looked up at each use. A rank outside the communicator has a handle too; every operation on it
// raises NotAMemberError, sends nothing and does not disturb the members. After
// DistributedManager::cleanup() every operation raises GroupAbortedError.
//
// Threads: any; all ranks of a communicator make its operations in the same order. Copies share one
// communicator. Errors: NotAMemberError; GroupError if the default group is needed and does not
// exist.
//
// Corresponds to bagua_core.BaguaSingleCommunicatorPy.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "c10/core/Stream.h"
#include "c10/util/Exception.h"
#include "c10/util/intrusive_ptr.h"

namespace c10d {
class ProcessGroup;
}

namespace meshrun::bagua {

// An operation was called on a communicator that this rank is not in.
class NotAMemberError : public c10::ValueError {
  using ValueError::ValueError;
};

class Communicator {
 public:
  Communicator() = default;

  // This communicator; for an empty handle, the one that it stands for now.
  Communicator resolved() const;
  // This rank's number in the communicator; -1 outside it.
  int rank() const;
  int nranks() const;
  // World ranks, by rank in the communicator.
  const std::vector<int>& ranks() const;
  bool is_member() const;
  const std::string& name() const;
  // The stream of operations on CUDA tensors; absent: the current one. Not used for CPU tensors.
  std::optional<c10::Stream> stream() const;

  // Ends all operations under way, here and, with ucx, on the other ranks; these and all later ones
  // raise GroupAbortedError. Other communicators stay usable.
  void abort() const;
  // Whether abort() was called on a copy of this handle.
  bool is_aborted() const;
  // Whether it was aborted, here or elsewhere, or has failed. With ucx an idle rank that asks again
  // and again learns of another rank's abort() as soon as its message is here; the call waits for
  // nobody. The message goes to ranks that the aborting one has exchanged messages with in this
  // communicator, and from those on: any other learns in its next operation. With NCCL this rank's
  // own failures count, with Gloo only abort() on this rank.
  bool check_abort() const;

  // The c10d group behind it.
  const c10::intrusive_ptr<c10d::ProcessGroup>& group() const;

  // For `ranks` over `group`, which is null on a rank that is not among them. BaguaProcessGroup
  // makes those of a group.
  Communicator(std::string name, std::vector<int> ranks,
               c10::intrusive_ptr<c10d::ProcessGroup> group, std::optional<c10::Stream> stream);

 private:
  struct State;
  friend class BaguaProcessGroup;
  friend class ProcessGroups;
  explicit Communicator(std::shared_ptr<State> state);
  // Lets go of what it is made of, for all copies.
  void close() const;
  // The default group's where this handle is empty.
  std::shared_ptr<State> state() const;
  std::shared_ptr<State> state_;
};

}  // namespace meshrun::bagua
