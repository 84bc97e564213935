// The ucx backend of a process group, which compares the ranks' calls: for its own collectives
// always, for those of other backends (CUDA tensors, Gloo) where it stands beside them and
// MESHRUN_CHECK_COLLECTIVES=1 asks for it, on all ranks alike.
//
// Threads: any. Cheap: look-ups, and one in the environment.
#pragma once

#include "c10/util/intrusive_ptr.h"

namespace c10d {
class Backend;
class ProcessGroup;
}  // namespace c10d

namespace meshrun {

class UcxBackend;

// Null: another backend, or none.
c10::intrusive_ptr<UcxBackend> as_ucx(const c10::intrusive_ptr<c10d::Backend>& backend);

// What serves the group's CPU tensors; null where it is not ucx.
c10::intrusive_ptr<UcxBackend> cpu_ucx_of(c10d::ProcessGroup& group);

// Compares headers for a collective of another backend of the group; null: nobody does.
c10::intrusive_ptr<UcxBackend> comparer_of(c10d::ProcessGroup& group);

}  // namespace meshrun
