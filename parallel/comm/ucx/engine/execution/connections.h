// Where the members of all groups are: addresses that are looked up on first use, connections,
// which processes are on this host, and the memory of those that can be reached.
//
//   Member::state   kUnknown --look_up()--> kLookingUp --connect()--> kKnown
//
// Threads: under the engine's lock. Errors: a Failure, which is the whole group's.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "parallel/base/shared_heap.h"
#include "parallel/comm/ucx/engine/execution/actions.h"
#include "parallel/comm/ucx/engine/execution/member_group.h"
#include "parallel/comm/ucx/engine/protocol/address_book.h"
#include "parallel/comm/ucx/engine/transport/transport.h"

namespace meshrun::ucx {

class Connections {
 public:
  // All outlive it. `host` is that of the AddressRecord. `heap`: this process's; null: none.
  Connections(Transport& transport, uint64_t host, const SharedHeap* heap, Actions& actions);

  // Under which peers find this rank of the group.
  AddressRecord record(const MemberGroup& group) const;

  // Ranks that `operation` sends to or receives from, and whose address the group lacks.
  std::vector<int> missing(const RunningOperation& operation) const;
  // Asks for the addresses that nobody has asked for yet.
  void look_up(MemberGroup& group, const std::vector<int>& ranks);
  // Why `rank` can never be reached, where nothing or `record` was found; absent: it can.
  static std::optional<Failure> refusal(const MemberGroup& group, int rank,
                                        const std::optional<AddressRecord>& record,
                                        const std::string& reason);
  // The member is known from now on. A failure: it runs another program.
  std::optional<Failure> connect(MemberGroup& group, int rank, const AddressRecord& record);

  // The peer of a member that is known.
  PeerId peer(MemberGroup& group, int rank) {
    const PeerId peer = group.members[rank].peer;
    return peer >= 0 ? peer : connect_to_self(group, rank);
  }
  // Absent: no member is behind it.
  std::optional<int> world_rank_of(PeerId peer) const;
  // Processes on this host, this one and those met so far.
  int local_ranks() const;

 private:
  PeerId connect_to_self(MemberGroup& group, int rank);

  Transport& transport_;
  const uint64_t host_;
  const uint64_t process_;
  const SharedHeap* const heap_;
  Actions& actions_;
  std::map<uint64_t, uint64_t> host_of_process_;
  std::map<uint64_t, std::unique_ptr<PeerHeap>> heap_of_process_;  // null: out of reach
  std::map<PeerId, int> world_rank_of_;
};

}  // namespace meshrun::ucx
