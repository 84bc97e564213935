// A request to stop: SIGTERM or SIGINT, or the coordinator's word that the generation is over. See
// graceful_stop.h for loops that stop at the same step on all ranks.
#pragma once

#include "parallel/base/arguments.h"

namespace meshrun {

// From now on the first SIGTERM or SIGINT only sets the request; a second one ends the process.
void catch_stop_signals();

// Thread-safe; may be called from anywhere but a signal handler.
void request_stop(IntArgument signal_number);

// Call when the ranks have agreed to stop: sets the request, and ignores SIGTERM from now on. When
// the first rank ends, a launcher sends SIGTERM to the others, although they are about to end.
void stop_together();

bool stop_requested();
// The signal to answer with in the exit code, 128 + n; 0 while nobody asked.
int stop_signal();

}  // namespace meshrun
