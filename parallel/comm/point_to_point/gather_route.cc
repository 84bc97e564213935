#include "parallel/comm/point_to_point/gather_route.h"

#include <algorithm>
#include <numeric>

namespace meshrun {

GatherRoute choose_gather_route(std::span<const int64_t> sizes) {
  if (sizes.size() < 2) return GatherRoute::kSends;
  const auto [least, most] = std::minmax_element(sizes.begin(), sizes.end());
  if (*most == 0) return GatherRoute::kSends;  // nothing travels
  if (*least == *most) return GatherRoute::kAllGather;
  // What the busiest sender sends, against what every algorithm has to bring to the rank with the
  // smallest piece; a tenth more is worth the shorter way.
  constexpr double kWorthIt = 1.1;
  const auto peers = static_cast<double>(sizes.size() - 1);
  const int64_t total = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  const double sent = peers * static_cast<double>(*most);
  return sent <= kWorthIt * static_cast<double>(total - *least) ? GatherRoute::kSends
                                                                : GatherRoute::kBroadcasts;
}

}  // namespace meshrun
