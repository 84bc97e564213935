// What the layers above ask of their own process and its host. Threads: any. No errors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace meshrun {

// Counts the forks between the start of the program and this process: a child has a higher number
// than its parent, so an object made under another number belongs to the parent. Costs one load.
int fork_count();

// Boot id of the running kernel; empty if /proc does not have it.
std::string boot_id();

std::string host_name();

// The name that people know this host by: that of the worker that started the process
// (MESHRUN_NODE_NAME), which 'meshrun nodes' shows. Without a worker it is host_name().
std::string worker_name();

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

// The environment variable `name`, given in MiB, in bytes; `default_mib` if it is not a number.
size_t mib_of_environment(const char* name, size_t default_mib);

}  // namespace meshrun
