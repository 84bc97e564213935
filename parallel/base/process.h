// What the layers above ask of their own process and its host. Threads: any. No errors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace meshrun {

// How many forks lie between this process and the program's first, as far as they happened in this
// program: an object whose number differs from when it was made is the parent's. A load.
int fork_count();

// Of the running kernel; empty where /proc does not have it.
std::string boot_id();

std::string host_name();

// What tells one node from another: two processes are on one node if all of it is equal. Containers
// of one machine often share the name or the kernel, but not the memory.
struct NodeFacts {
  std::string host_name;
  std::string boot_id;
  uint64_t shm_device = 0;    // of /dev/shm
  std::string ipc_namespace;  // as /proc/self/ns/ipc has it
};
NodeFacts node_facts();
// A digest of the facts: sixteen hexadecimal digits.
std::string node_identity(const NodeFacts& facts);

// Bytes of the environment variable `name`, which is in MiB; `default_mib` where it is not a
// number.
size_t mib_of_environment(const char* name, size_t default_mib);

}  // namespace meshrun
