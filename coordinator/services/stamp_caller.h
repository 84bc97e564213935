// Records the sender of an event in it.
#pragma once

#include "coordinator/services/sender.h"
#include "core/certificates/standing.h"
#include "meshrun/v1/state.pb.h"

namespace meshrun::coordinator {

// Takes the scope from the row of the event's method in the table of roles. `standing` knows the
// certificate's serial number; null without TLS. Returns what the certificate says, empty where
// there is none.
certificates::Standing::Known StampCaller(const Sender& sender, certificates::Standing* standing,
                                          v1::StateEvent& event);
// The same for a Hello: with the end of the certificate, and of the session in its grace.
void StampWorker(const Sender& sender, certificates::Standing* standing, WallNanos grace,
                 v1::StateEvent& event);

}  // namespace meshrun::coordinator
