// Every operation of the ucx backend and every collective on uneven pieces, each as one call that
// all ranks of a group make: what a rank can die in.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "c10/util/intrusive_ptr.h"

namespace c10d {
class ProcessGroup;
}

namespace meshrun {

struct NamedOperation {
  std::string name;
  // Returns when it is done on this rank; megabytes from and to each peer, where it moves any.
  std::function<void(const c10::intrusive_ptr<c10d::ProcessGroup>& group)> call;
};

const std::vector<NamedOperation>& every_operation();

}  // namespace meshrun
