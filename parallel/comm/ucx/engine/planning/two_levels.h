// Plans for groups on several hosts, of which one at least has several ranks: inside the hosts,
// between them, inside again. Each byte crosses to a host once. Internal to algorithms_*.cc. Pure;
// no errors.
//
//   all_reduce      every host has an equal share of the tensor, dealt in chunks to its ranks, the
//                   owners. On each host one rank, the reducer of the chunk, adds its host's
//                   contributions in rank order and sends the partial to the owner. The owner adds
//                   the partials in host order and sends the result to the reducers, who pass it
//                   on. 2 S (H - 1) between H hosts, the least.
//     small         the first ranks of the hosts exchange their partials, and each adds them.
//   reduce_scatter  the same way to the owner, who is the piece's rank: S (H - 1)
//   all_gather      each chunk to one rank of each other host, who passes it on: S (H - 1)
//   broadcast       each chunk to one rank of one other host, who passes it on to one rank of each
//                   of the rest; all to their hosts' ranks: S (H - 1), of which the root sends S.
//     small         a binomial tree of one rank a host
//
// Sums: ((contributions of host 0 in rank order) + (those of host 1) + ...), hosts in the order of
// their first ranks. Partials are of type Reduction::partial(). So all ranks have the same bits, in
// every run; they are not those of one level. An all_reduce has them for every length, alone or as
// a part of a coalesced call: with fewer messages than hosts, so many hosts own shares.
//
// Why nothing waits for ever: all ranks list the chunks in one order, and the steps of a chunk in
// one order; a step waits for steps of its chunk and of earlier ones only.
#pragma once

#include <cstdint>
#include <span>

#include "parallel/comm/ucx/engine/planning/algorithms.h"

namespace meshrun::ucx {

// Whether the plans below serve the group. Except for all_reduce, they need messages for each
// rank's piece. So a call that may send fewer than four messages per rank uses one level: a part of
// a large coalesced call, or any call of a group of more than kMaxMessages / 4 ranks.
bool has_two_levels(const Place& place);
bool all_reduces_in_two_levels(const Place& place);
bool reduce_scatters_in_two_levels(const Place& place);

// As plan_*() of algorithms.h; at least two ranks, and something to do.
Schedule all_reduce_in_two_levels(const Place& place, int64_t count, const Reduction& reduction);
Schedule reduce_scatter_in_two_levels(const Place& place, std::span<const Piece> pieces,
                                      const Piece& own, const Reduction& reduction);
void all_gather_in_two_levels(ScheduleBuilder& builder, const Place& place, const Piece& own,
                              std::span<const Piece> pieces);
void broadcast_in_two_levels(ScheduleBuilder& builder, const Place& place, const Piece& tensor,
                             int root);

}  // namespace meshrun::ucx
