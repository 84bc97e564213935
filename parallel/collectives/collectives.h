// All collectives of this room. Including this takes the compiler about as long as LibTorch's
// own autograd headers do; the single headers are light.
#pragma once

#include "parallel/collectives/all_gather_v.h"             // IWYU pragma: export
#include "parallel/collectives/all_to_all_v.h"             // IWYU pragma: export
#include "parallel/collectives/async_tensor.h"             // IWYU pragma: export
#include "parallel/collectives/autograd_functions.h"       // IWYU pragma: export
#include "parallel/collectives/fused_all_reduce.h"         // IWYU pragma: export
#include "parallel/collectives/gather_v.h"                 // IWYU pragma: export
#include "parallel/collectives/group_argument.h"           // IWYU pragma: export
#include "parallel/collectives/indexed_all_to_all_plan.h"  // IWYU pragma: export
#include "parallel/collectives/indexed_all_to_all_v.h"     // IWYU pragma: export
#include "parallel/collectives/mappings.h"                 // IWYU pragma: export
#include "parallel/collectives/padding.h"                  // IWYU pragma: export
#include "parallel/collectives/primitives.h"               // IWYU pragma: export
#include "parallel/collectives/reduce_loss.h"              // IWYU pragma: export
#include "parallel/collectives/reduce_scatter_v.h"         // IWYU pragma: export
#include "parallel/collectives/scatter_v.h"                // IWYU pragma: export
#include "parallel/collectives/sizes.h"                    // IWYU pragma: export
#include "parallel/collectives/split.h"                    // IWYU pragma: export
#include "parallel/collectives/split_tensor.h"             // IWYU pragma: export
#include "parallel/collectives/tie.h"                      // IWYU pragma: export
#include "parallel/collectives/transpose.h"                // IWYU pragma: export
