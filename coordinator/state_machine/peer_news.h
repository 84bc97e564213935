// What all ranks of a running generation are told of each other: which ranks have left, which are
// lost and why, and which wait in vain (blocked_ranks.h decides that).
//
// None of this is durable: after a restart of the coordinator the job's record says which ranks are
// gone.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "coordinator/state_machine/jobs.h"
#include "coordinator/state_machine/nodes.h"
#include "meshrun/v1/waiting.pb.h"

namespace meshrun::coordinator {

class PeerNews {
 public:
  PeerNews(Context& context, NodeTable& nodes, JobTable& jobs)
      : context_(context), nodes_(nodes), jobs_(jobs) {}

  // All ranks are told at the end of the batch, or by Tell().
  void OnRankLeft(const Job& job, int rank);
  void OnRankLost(const Job& job, int rank, const std::string& reason);
  // Gives the verdict its number.
  void OnVerdict(const Job& job, v1::WaitVerdict verdict);
  // Sends the news now, before the stop that follows from it: ranks that are told to stop then know
  // why.
  void Tell(const Job& job);
  void TellAll();
  // The node has come back and may have missed news: sends all of it again.
  void OnNodeReturned(const Job& job, const Node& node);
  void EndGeneration(const Job& job);
  std::optional<SteadyNanos> NextDeadline() const;

 private:
  // Every host hears all news. In a job with more hosts than this, news that is not urgent (ranks
  // that left, deaths that follow from a stop) is collected and sent once per interval:
  // kGatherPerHost for each host.
  static constexpr size_t kFewHosts = 64;
  static constexpr std::chrono::microseconds kGatherPerHost{200};
  // News of each rank to each host grows with the square of the number of hosts. With more hosts
  // than this, the interval grows in the same way, up to kLongestGather.
  static constexpr size_t kManyHosts = 1000;
  static constexpr std::chrono::seconds kLongestGather{10};
  // Programs may go on after many verdicts; for a node that was away the newest ones are kept.
  static constexpr size_t kMostVerdicts = 64;

  struct News {
    uint64_t generation = 0;
    // The ranks that are gone, and why those of `lost` are.
    std::set<int> left;
    std::map<int, std::string> lost;
    // The last ones, for nodes that return.
    std::deque<v1::WaitVerdict> verdicts;
    v1::PeerNews untold;
    // When news were told last.
    SteadyNanos told{0};
  };

  // News of the job's current generation.
  News& Of(const Job& job);
  void Send(const Job& job, const Node& node, const v1::PeerNews& news);
  // When the job's untold news may be told.
  SteadyNanos GatherUntil(const Job& job) const;

  Context& context_;
  NodeTable& nodes_;
  JobTable& jobs_;
  std::map<std::string, News> news_;
  // Jobs with unsent peer news.
  std::set<std::string> untold_;
  // Number of verdicts in this term: the lower half of a verdict's number.
  uint32_t verdicts_ = 0;
};

}  // namespace meshrun::coordinator
