#include "parallel/base/process.h"

#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdlib>
#include <fstream>

#include "fmt/format.h"
#include "parallel/base/digest.h"

namespace meshrun {
namespace {

std::atomic<int> forks{0};

// Before main(): a local static would be initialised under a guard, which a child that is forked
// meanwhile inherits locked.
const bool counts_forks [[maybe_unused]] = pthread_atfork(nullptr, nullptr, [] { ++forks; }) == 0;

}  // namespace

int fork_count() { return forks.load(std::memory_order_relaxed); }

std::string boot_id() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id;
}

std::string host_name() {
  char name[HOST_NAME_MAX + 1] = {};
  gethostname(name, HOST_NAME_MAX);
  return name;
}

std::string worker_name() {
  const char* const name = std::getenv("MESHRUN_NODE_NAME");
  return name != nullptr && *name != '\0' ? name : host_name();
}

NodeFacts node_facts() {
  NodeFacts facts{.host_name = host_name(), .boot_id = boot_id()};
  struct stat shm {};
  if (stat("/dev/shm", &shm) == 0) facts.shm_device = shm.st_dev;
  char name_space[64] = {};
  if (readlink("/proc/self/ns/ipc", name_space, sizeof(name_space) - 1) > 0) {
    facts.ipc_namespace = name_space;
  }
  return facts;
}

std::string node_identity(const NodeFacts& facts) {
  return fmt::format("{:016x}",
                     digest_of(fmt::format("{}\n{}\n{}\n{}", facts.host_name, facts.boot_id,
                                           facts.shm_device, facts.ipc_namespace)));
}

size_t mib_of_environment(const char* name, size_t default_mib) {
  const char* text = std::getenv(name);
  char* end = nullptr;
  const long given = text == nullptr ? -1 : std::strtol(text, &end, 10);
  const bool is_given = text != nullptr && end != text && *end == '\0' && given >= 0;
  return (is_given ? static_cast<size_t>(given) : default_mib) << 20;
}

}  // namespace meshrun
