// All of parallel/collectives. This header includes LibTorch's autograd headers, which take the
// compiler several seconds; the single headers do not.
#pragma once

#include "parallel/base/sizes.h"                                 // IWYU pragma: export
#include "parallel/base/split.h"                                 // IWYU pragma: export
#include "parallel/collectives/all_gather_v.h"                   // IWYU pragma: export
#include "parallel/collectives/all_to_all_v.h"                   // IWYU pragma: export
#include "parallel/collectives/autograd_functions.h"             // IWYU pragma: export
#include "parallel/collectives/call/async_tensor.h"              // IWYU pragma: export
#include "parallel/collectives/fused_all_reduce.h"               // IWYU pragma: export
#include "parallel/collectives/gather_v.h"                       // IWYU pragma: export
#include "parallel/collectives/halo_exchange.h"                  // IWYU pragma: export
#include "parallel/collectives/indexed_all_to_all_v.h"           // IWYU pragma: export
#include "parallel/collectives/mappings.h"                       // IWYU pragma: export
#include "parallel/collectives/padding.h"                        // IWYU pragma: export
#include "parallel/collectives/plans/indexed_all_to_all_plan.h"  // IWYU pragma: export
#include "parallel/collectives/primitives.h"                     // IWYU pragma: export
#include "parallel/collectives/reduce_loss.h"                    // IWYU pragma: export
#include "parallel/collectives/reduce_scatter_v.h"               // IWYU pragma: export
#include "parallel/collectives/scatter_v.h"                      // IWYU pragma: export
#include "parallel/collectives/split_tensor.h"                   // IWYU pragma: export
#include "parallel/collectives/tie.h"                            // IWYU pragma: export
#include "parallel/collectives/transpose.h"                      // IWYU pragma: export
#include "parallel/manager/group_argument.h"                     // IWYU pragma: export
