// What a process's Python does right now: by py-spy where it is installed, else by the handler that
// `import meshrun` registers in a rank.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>

#include "worker/dumps/process_stack.h"

namespace meshrun::worker {

// The signal on which a rank's Python writes its frames to the file MESHRUN_STACK_FILE
// (python/meshrun/_stacks.py has the same number). A real-time one, which nothing else uses.
inline constexpr int kStackSignal = 44;

// Does it run a Python interpreter, as a program or as a library?
bool RunsPython(pid_t pid);

// py-spy is looked for in this process's PATH, and beside the rank's Python where rank and worker
// are the same user's. `stack_file`: the rank's MESHRUN_STACK_FILE; empty: it has none. Blocks for
// at most about `timeout`.
ProcessStack FramesOfPython(pid_t pid, const std::string& stack_file,
                            std::chrono::milliseconds timeout);

}  // namespace meshrun::worker
