// What the engine asks of its own process. Threads: any. No errors.
#pragma once

#include <cstddef>
#include <string>

namespace meshrun {

// How many forks lie between this process and the program's first, as far as they happened in this
// program: an object whose number differs from when it was made is the parent's. A load.
int fork_count();

// Of the kernel that runs; empty where /proc has it not.
std::string boot_id();

// Bytes of the environment variable `name`, which is in MiB; `default_mib` where it is not a
// number.
size_t mib_of_environment(const char* name, size_t default_mib);

}  // namespace meshrun
