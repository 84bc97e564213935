// Plans of small operations, whose pieces travel with the headers that the ranks compare anyway
// (header_check.h). The dissemination brings every rank all contributions in ceil(log2 P) messages
// (the all-gather of Bruck et al., 1997), and no other message follows: on two ranks one each way.
//
//   operation           a rank's contribution       its steps, once all ranks agree
//   broadcast           the tensor (root)           copy to the tensor (others)
//   all_reduce          the tensor                  add all, as algorithms.h says for their sum
//   reduce              the tensor                  add all in rank order (root)
//   all_gather, gather  its piece                   copy all to the output (gather: root)
//   scatter             all pieces (root)           copy the own piece
//   reduce_scatter      all pieces                  add all contributions to the own piece
//
// An all-to-all cannot: its ranks do not know each other's sizes before they agree.
//
// As plan_*() of algorithms.h; absent where the headers carry nothing (Place::headers_carry), a
// message would have more than kMostPayload bytes, or there is nothing to send. All ranks find the
// same. The bits of a sum are those of the other algorithms. Internal to algorithms_*.cc. Pure; no
// errors.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "parallel/comm/ucx/engine/planning/algorithms.h"

namespace meshrun::ucx {

std::optional<Schedule> piggyback_broadcast(const Place& place, const Piece& tensor, int root);
std::optional<Schedule> piggyback_all_reduce(const Place& place, int64_t count,
                                             const Reduction& reduction);
std::optional<Schedule> piggyback_reduce(const Place& place, int64_t count, int root,
                                         const Reduction& reduction);
std::optional<Schedule> piggyback_all_gather(const Place& place, const Piece& own,
                                             std::span<const Piece> pieces, bool in_place);
std::optional<Schedule> piggyback_gather(const Place& place, std::span<const int64_t> piece_bytes,
                                         int root);
std::optional<Schedule> piggyback_scatter(const Place& place, std::span<const int64_t> piece_bytes,
                                          int root);
std::optional<Schedule> piggyback_reduce_scatter(const Place& place, std::span<const Piece> pieces,
                                                 const Piece& own, const Reduction& reduction);

}  // namespace meshrun::ucx
