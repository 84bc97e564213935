// What a process does right now, in words, for people who ask why a job hangs. Linux.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>

#include "worker/dumps/process_stack.h"

namespace meshrun::worker {

// The process that does the rank's work: the rank's own; where that is a shell or another program
// that waits for one (sudo, a profiler), the Python that it has started, else its first
// child. Never what a program of the rank's own has started.
pid_t WorkingProcess(pid_t rank);

// Frames of machine code: by eu-stack or gdb, whichever is installed. A stopped process has some
// too. These calls block; for a thread of its own.
ProcessStack NativeStack(pid_t pid, std::chrono::milliseconds timeout);
// Python's frames where it runs Python, else those of machine code. `python_file`: as
// FramesOfPython.
ProcessStack StackOf(pid_t pid, const std::string& python_file, std::chrono::milliseconds timeout);

// The text for a reader who is told the problem too: without the line that only repeats it.
std::string TextBesidesProblem(const ProcessStack& stack);

// From /proc: command, state, memory, and for each thread its name, state, system call and where
// the kernel holds it. Says so where something cannot be read.
std::string DescribeThreads(pid_t pid);

}  // namespace meshrun::worker
