// Whether a backend of a group has recorded a failure, as after a peer was lost or abort().
//
// Gloo keeps no account of its errors and has no method to ask, so it counts as whole. Threads:
// any.
// No errors of its own.
#pragma once

namespace c10d {
class ProcessGroup;
}

namespace meshrun {

bool has_failed(c10d::ProcessGroup& group);

}  // namespace meshrun
