// Records the sender of an event in it.
#pragma once

#include <grpcpp/server_context.h>

#include "core/certificates/standing.h"
#include "meshrun/v1/state.pb.h"

namespace meshrun::coordinator {

// Takes the sender from the call's certificate, and the scope from the row of its method in the
// table of roles. `standing` knows the certificate's serial number; null without TLS.
// Returns what the certificate says, empty where there is none.
certificates::Standing::Known StampCaller(const grpc::CallbackServerContext& context,
                                          certificates::Standing* standing, v1::StateEvent& event);
// The same for a Hello: with the end of the certificate, and of the session in its grace.
void StampWorker(const grpc::CallbackServerContext& context, certificates::Standing* standing,
                 WallNanos grace, v1::StateEvent& event);

}  // namespace meshrun::coordinator
