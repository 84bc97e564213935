// Ctrl-C in a collective that waits for a peer: Python runs its signal handlers between its own
// instructions, and a rank that waits in C++ comes to none.
//
// About each 50 ms a wait of the main thread, which is the one that Python calls handlers in, lets
// Python look. What a handler raises, KeyboardInterrupt for example, leaves the wait; the operation
// goes on.
#pragma once

namespace meshrun::python {

// Called in the main thread.
void let_signals_end_waits();

}  // namespace meshrun::python
