// The exception of shared modules (shared_module.h).
#pragma once

#include "c10/util/Exception.h"

namespace meshrun {

// From mark_module_as_shared, on every rank: a parameter is marked already, there is nothing to
// train, an option is wrong, the group has several but not exactly the ranks that hold pieces of a
// parameter, or the ranks' modules or options differ. From the first backward pass, on every rank:
// the ranks' values of a parameter differ. From unmark_module_as_shared, on this rank alone: a
// parameter is not marked.
class SharedModuleError : public c10::Error {
  using Error::Error;
};

}  // namespace meshrun
