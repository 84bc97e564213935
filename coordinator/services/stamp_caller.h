// Records the sender of an event in it.
#pragma once

#include <grpcpp/server_context.h>

#include "meshrun/v1/state.pb.h"

namespace meshrun::coordinator {

// Takes the sender from the call's certificate, and the scope from the row of its method in the
// table of roles. The event's name gives the method: cancel_job is CancelJob, a session's message
// is OpenSession.
void StampCaller(const grpc::CallbackServerContext& context, v1::StateEvent& event);

}  // namespace meshrun::coordinator
