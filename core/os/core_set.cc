#include "core/os/core_set.h"

#include <sched.h>

#include <memory>

#include "core/text.h"

namespace meshrun::os {
namespace {

// Larger than any host: the kernel refuses a set that has no place for one of its cores.
constexpr int kMostCores = 1 << 14;

struct FreeCpuSet {
  void operator()(cpu_set_t* set) const { CPU_FREE(set); }
};

}  // namespace

std::optional<CoreSet> ParseCoreSet(std::string_view text) {
  while (text.ends_with('\n')) text.remove_suffix(1);
  const auto cores = ParseRanks(text);
  return cores.ok() ? std::optional(*cores) : std::nullopt;
}

CoreSet OwnCores() {
  const std::unique_ptr<cpu_set_t, FreeCpuSet> set(CPU_ALLOC(kMostCores));
  const size_t bytes = CPU_ALLOC_SIZE(kMostCores);
  CoreSet cores;
  if (::sched_getaffinity(0, bytes, set.get()) != 0) return cores;
  for (int core = 0; core < kMostCores; ++core) {
    if (CPU_ISSET_S(core, bytes, set.get())) cores.push_back(core);
  }
  return cores;
}

bool RunOn(const CoreSet& cores) {
  const std::unique_ptr<cpu_set_t, FreeCpuSet> set(CPU_ALLOC(kMostCores));
  const size_t bytes = CPU_ALLOC_SIZE(kMostCores);
  CPU_ZERO_S(bytes, set.get());
  for (const int core : cores) CPU_SET_S(core, bytes, set.get());
  return ::sched_setaffinity(0, bytes, set.get()) == 0;
}

}  // namespace meshrun::os
