// Where the numbers lie that ranks of a group tell each other.
#pragma once

#include "c10/core/Device.h"

namespace c10d {
class ProcessGroup;
}

namespace meshrun {

// The CPU where the group has a backend for it, since a number need not go to a GPU and back; else
// this rank's device. Requires DistributedManager then.
c10::Device number_device(const c10d::ProcessGroup& group);

}  // namespace meshrun
