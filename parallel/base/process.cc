#include "parallel/base/process.h"

#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <fstream>

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

size_t mib_of_environment(const char* name, size_t default_mib) {
  const char* text = std::getenv(name);
  char* end = nullptr;
  const long given = text == nullptr ? -1 : std::strtol(text, &end, 10);
  const bool is_given = text != nullptr && end != text && *end == '\0' && given >= 0;
  return (is_given ? static_cast<size_t>(given) : default_mib) << 20;
}

}  // namespace meshrun
