// Which ranges of its site's files a rank writes where hosts share no file system (site_plan.h).
//
//   shared tensors    cut into equal shares for the ranks of each site
//   rank 0's          by rank 0 at its site; at the others by their leaders, to whom they are sent
//   pieces            by the ranks that hold them
//
// Collective over the group that saves. Threads: one at a time. Errors: those of collectives.
#pragma once

#include "parallel/checkpoint/save_ranges.h"
#include "parallel/checkpoint/site_plan.h"
#include "parallel/checkpoint/sites.h"

namespace meshrun::detail {

// Ranges of this rank, as list_ranges() gives them. `place.writers`: the ranks of this rank's site.
void list_site_ranges(const FileTensors& tensors, const SitePlan& plan, const Sites& sites,
                      c10d::ProcessGroup& group, const SavePlace& place, const TakeRanges& take,
                      const std::function<void(c10d::ProcessGroup& group)>& wait);

}  // namespace meshrun::detail
