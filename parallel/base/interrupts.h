// Lets a language that handles signals between its own instructions end a wait, such as Python at
// Ctrl-C. C++ programs set nothing, and their waits ask nothing.
//
// Threads: any. No errors of its own.
#pragma once

#include <exception>

namespace meshrun {

// What the wait of the calling thread raises; null: it goes on. Called without locks, about each
// 50 ms of a wait.
using InterruptCheck = std::exception_ptr (*)();

void set_interrupt_check(InterruptCheck check);
bool has_interrupt_check();

// Asks. True: the wait is to end, and its caller calls raise_interrupt().
bool is_interrupted();
// Raises what is_interrupted() has found in this thread, once.
void raise_interrupt();
void forget_interrupt();

}  // namespace meshrun
