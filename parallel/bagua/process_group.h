// Bagua's process groups: a set of ranks with three communicators, all members, the members of each
// node, and one member of each node.
//
//   init_process_group();
//   const BaguaProcessGroup evens = new_group(std::vector<int>{0, 2});
//   if (evens.get_global_communicator().is_member()) {
//     allreduce_inplace(tensor, ReduceOp::SUM, evens.get_global_communicator());
//   }
//
// Communicators, for any shape of group (members on one node, one per node, unequal numbers):
//
//   global  all members, by rank in the group
//   intra   the members on this rank's node, in the order of the group; its own on every node
//   inter   the leaders, that is the first member of each node that has any
//
// Callers: every rank of the job, member or not, calls init_process_group() and new_group(), in the
// same order. Every member of the c10d group calls from_torch_group(). The first request makes a
// communicator: all members request the global one, all members on the node the intra one, all
// leaders the inter one. With ucx a request waits for no other rank; Gloo and NCCL connect, so
// ranks must request communicators in the same order. Other ranks get, without any exchange, a
// handle on which every operation is a NotAMemberError. The launcher says which node a rank is on
// (DistributedManager::node_rank()); init_process_group() exchanges that once.
//
// Streams: collectives on CUDA tensors run on the group's stream, after the work queued on the
// caller's current one, and return when they are done. Without a stream of its own a group uses the
// default group's, which has high priority. On the CPU no stream is used.
//
// Threads: init_process_group() from one; all else from any. DistributedManager::cleanup() ends
// everything, even if handles are kept. Errors: GroupError, on all ranks that called, with both
// sides' values; UninitializedError; RendezvousError.
//
// Corresponds to bagua.torch_api.communication. There, collectives silently return on ranks that
// are not members, and the inter communicator needs leaders of equal local rank on all nodes.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "c10/core/Stream.h"
#include "c10/util/intrusive_ptr.h"
#include "parallel/bagua/communicator.h"
#include "parallel/bagua/node_map.h"

namespace c10d {
class ProcessGroup;
class Store;
}  // namespace c10d

namespace meshrun::bagua {

class BaguaProcessGroup {
 public:
  // new_group() without its check that all ranks name the same group: `ranks` are sorted, all of
  // them construct it, and no other group has `group_name`. GroupError: a rank is out of range or
  // named twice, there is none, or the name is taken.
  BaguaProcessGroup(std::vector<int> ranks, std::optional<c10::Stream> stream,
                    std::string group_name);

  Communicator get_global_communicator() const;
  Communicator get_inter_node_communicator() const;
  Communicator get_intra_node_communicator() const;

  const std::string& group_name() const;
  // World ranks of all members.
  const std::vector<int>& ranks() const;
  // World ranks of the members on this rank's node; empty if this rank is not a member.
  std::vector<int> intra_ranks() const;
  std::vector<int> inter_ranks() const;
  // The members, node by node.
  const NodeMembers& nodes() const;
  std::optional<c10::Stream> stream() const;

 private:
  struct State;
  explicit BaguaProcessGroup(std::shared_ptr<State> state);
  // Ends the communicators of all copies.
  static void close(State& state);
  friend class ProcessGroups;
  std::shared_ptr<State> state_;
};

// Makes the default group, of all ranks. Joins the job first (DistributedManager::initialize())
// where that has not been done. Addresses are exchanged through `store`, which all ranks reach;
// absent: the manager's. GroupError where it was called before.
void init_process_group(const c10::intrusive_ptr<c10d::Store>& store = {});
bool is_initialized();
// GroupError before init_process_group().
BaguaProcessGroup default_process_group();

// A group of `ranks` (absent: all), sorted. To be called by all ranks of the job with the same
// ranks: they are compared, and GroupError names two ranks that differ, or what is wrong with them.
BaguaProcessGroup new_group(const std::optional<std::vector<int>>& ranks = std::nullopt,
                            std::optional<c10::Stream> stream = std::nullopt);

// The group of a c10d group's ranks, whose global communicator is that group itself, its ranks in
// that order. To be called by all of them.
BaguaProcessGroup from_torch_group(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                   std::optional<c10::Stream> stream = std::nullopt);

}  // namespace meshrun::bagua
