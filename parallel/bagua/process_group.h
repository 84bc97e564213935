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
// Who calls what. init_process_group() and new_group(): every rank of the job, members or not, in
// the same order. from_torch_group(): every member of the c10d group. A communicator is made when
// it is first asked for: global by all members, intra by all members on the node, inter by all
// leaders. With ucx that waits for nobody; Gloo and NCCL connect, so ranks must ask for
// communicators in one order. Others get one on which every operation is a NotAMemberError, without
// any exchange. Which node a rank is on is the launcher's word (DistributedManager::node_rank()),
// exchanged once by init_process_group().
//
// Streams: collectives on CUDA tensors run on the group's, after the work that is queued on the
// caller's current one, and return when they are done; absent, the default group's, which is of
// high priority. On the CPU a stream has no meaning, and none is used.
//
// Threads: init_process_group() from one; all else from any. Everything ends with
// DistributedManager::cleanup(), also what handles are kept of. Errors: GroupError, on all ranks
// that called, with both sides' values; UninitializedError; RendezvousError.
//
// Corresponds to bagua.torch_api.communication, whose collectives silently return on ranks that are
// not members and whose inter communicator needs a leader of equal local rank on every node.
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
  // them construct it, and `group_name` was given to no other group. GroupError where a rank is out
  // of range or named twice, where there is none, or where the name is taken.
  BaguaProcessGroup(std::vector<int> ranks, std::optional<c10::Stream> stream,
                    std::string group_name);

  Communicator get_global_communicator() const;
  Communicator get_inter_node_communicator() const;
  Communicator get_intra_node_communicator() const;
  // The members at `place` on their nodes, as the leaders are those at place 0: for collectives in
  // several levels. Asked for by all of them; `place` is less than fewest_members(nodes()).
  Communicator get_place_communicator(size_t place) const;

  const std::string& group_name() const;
  // World ranks of all members.
  const std::vector<int>& ranks() const;
  // Of the members on this rank's node; empty where this rank is no member.
  std::vector<int> intra_ranks() const;
  std::vector<int> inter_ranks() const;
  // The members, node by node.
  const NodeMembers& nodes() const;
  std::optional<c10::Stream> stream() const;

 private:
  struct State;
  explicit BaguaProcessGroup(std::shared_ptr<State> state);
  // Of all copies: the communicators end.
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
