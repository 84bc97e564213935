// What the engine asks of its own process. Threads: any. No errors.
#pragma once

#include <cstddef>
#include <string>

namespace meshrun {

// Counts the forks between the start of the program and this process: a child has a higher number
// than its parent, so an object made under another number belongs to the parent. Costs one load.
int fork_count();

// Of the running kernel; empty if /proc does not have it.
std::string boot_id();

// The environment variable `name`, given in MiB, in bytes; `default_mib` if it is not a number.
size_t mib_of_environment(const char* name, size_t default_mib);

}  // namespace meshrun
