// Blocked ranks of each running generation: which ranks report that they are blocked, and which of
// them wait in vain. core/wait_board.h decides, and peer_news.h tells the ranks.
//
// None of this is durable: after a restart of the coordinator the workers report again, and the
// job's record says which ranks are gone.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "coordinator/state_machine/jobs.h"
#include "coordinator/state_machine/nodes.h"
#include "coordinator/state_machine/peer_news.h"
#include "core/wait_board.h"
#include "meshrun/v1/waiting.pb.h"

namespace meshrun::coordinator {

class BlockedRanks {
 public:
  BlockedRanks(Context& context, NodeTable& nodes, JobTable& jobs, PeerNews& peers)
      : context_(context), nodes_(nodes), jobs_(jobs), peers_(peers) {}

  // A report about a rank that does not live on `member` is logged and ignored.
  void Report(const Job& job, const Member& member, const v1::WaitReport& report);
  void Withdraw(const Job& job, const Member& member, const v1::WaitWithdrawn& withdrawn);

  // Whether the rank has reported that it is blocked, and not withdrawn it.
  bool IsBlocked(const Job& job, int rank) const;

  void OnRankLeft(const Job& job, int rank);
  void OnRankLost(const Job& job, int rank);
  // After a restart of the coordinator the ranks that had left count as gone from now on.
  void OnNodeReturned(const Job& job);
  void EndGeneration(const Job& job);

  void ExpireDue();
  std::optional<SteadyNanos> NextDeadline() const;

 private:
  // Groups of a generation that reports may name by their ids.
  static constexpr size_t kMostGroups = 10'000;

  struct Board {
    uint64_t generation = 0;
    WaitBoard waiting;
    // By WaitCall.group_id.
    std::map<uint64_t, GroupMembers> groups;
  };

  // Board of the job's current generation.
  Board& BoardOf(const Job& job);

  Context& context_;
  NodeTable& nodes_;
  JobTable& jobs_;
  PeerNews& peers_;
  std::map<std::string, Board> boards_;
};

}  // namespace meshrun::coordinator
