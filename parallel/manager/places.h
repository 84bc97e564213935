// Where the ranks of a world are: which of them share a node, and at which addresses the others
// reach them. No LibTorch, no communication.
//
// A rank tells its RankPlace in joining; from all of them, every rank comes to the same nodes. The
// launcher is believed where it sets ranks apart, and not where it puts ranks together that cannot
// share memory.
//
// Threads: any.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace meshrun {

struct RankPlace {
  std::string node;    // node_identity()
  int node_rank = -1;  // as the launcher numbers its nodes; -1: it does not say
  // The address at which the host of rank 0 reaches this rank; empty on that host itself, where the
  // way to rank 0 is a loopback.
  std::string address;

  bool operator==(const RankPlace&) const = default;
};

std::string serialize(const RankPlace& place);
// Absent: not what serialize() makes.
std::optional<RankPlace> parse_place(const std::string& text);
// What every rank has said, by rank. InvalidArgument: a text is not what serialize() makes.
absl::StatusOr<std::vector<RankPlace>> parse_places(const std::vector<std::string>& texts);

struct NodeLayout {
  // The node of each rank: the launcher's numbers if each of them is one node, else in the order of
  // the nodes' first ranks.
  std::vector<int> nodes;
  int count = 0;
  // Place of `rank` among the ranks of its node, and the number of these ranks.
  int local_rank = 0;
  int local_world_size = 1;
};

// Two ranks are on one node if both their identity and the launcher's number are equal.
NodeLayout lay_out_nodes(const std::vector<RankPlace>& places, int rank);

// The address of another rank whose host must reach `rank`, where `rank` does not know its own
// address; absent: it does, or no rank is elsewhere.
std::optional<std::string> address_to_ask_the_way_to(const std::vector<RankPlace>& places,
                                                     int rank);

// Where the peers of rank 0 may find what listens there, the likeliest first. `master` is the
// address that the launcher gave, `store_is_hosted` says that the launcher listens there itself;
// `own` and `interfaces` are rank 0's addresses. A loopback `master` means that all ranks are on
// this host.
std::vector<std::string> addresses_of_rank_zero(const std::string& master, bool store_is_hosted,
                                                const std::string& own,
                                                const std::vector<std::string>& interfaces);

}  // namespace meshrun
