// Where a thread stands, read from what tools print of its frames. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace meshrun::worker {

struct Frame {
  std::string function;
  // Empty: not known.
  std::string file;
  int line = 0;
};

// Frames of one thread, the innermost first: of the thread `id` where the tool names threads by
// their system ids, else of the first one (for faulthandler, of the one that took the signal: the
// main thread, unless it blocks the signal). Empty where the text has none.
std::vector<Frame> FramesOfPySpy(std::string_view text, int id);
std::vector<Frame> FramesOfFaulthandler(std::string_view text);
std::vector<Frame> FramesOfEuStack(std::string_view text, int id);
std::vector<Frame> FramesOfGdb(std::string_view text, int id);

// What gdb prints, without notes on its own work and tracebacks of its Python, and with C++ names
// where it prints symbols: it is told not to compute the names of all functions of LibTorch.
std::string TidyGdb(std::string_view text);

// "step (train.py:12)": the innermost frame with a source file of the program's own, that is none
// of the C or C++ library, of Python's or of a package; then the innermost frame of all where that
// is another one: "step (train.py:12), in wait (threading.py:327)". Files are named without their
// directories. Empty where there are no frames.
std::string PlaceOf(const std::vector<Frame>& frames);

// What to do where `output` says that the kernel does not let a tool trace a process; else empty.
// `ptrace_scope`: content of /proc/sys/kernel/yama/ptrace_scope, empty where there is none.
std::string TracingAdvice(std::string_view output, std::string_view ptrace_scope);

}  // namespace meshrun::worker
