// Records the sender of an event in it.
#pragma once

#include <grpcpp/server_context.h>

#include "meshrun/v1/state.pb.h"

namespace meshrun::coordinator {

// From the certificate of the call, and from the scope that the table of roles gives its method.
// The method is found by the event's name: cancel_job is CancelJob, a message of a session is
// OpenSession.
void StampCaller(const grpc::CallbackServerContext& context, v1::StateEvent& event);

}  // namespace meshrun::coordinator
