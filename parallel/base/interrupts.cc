#include "parallel/base/interrupts.h"

#include <atomic>
#include <utility>

namespace meshrun {
namespace {

std::atomic<InterruptCheck> the_check = nullptr;
thread_local std::exception_ptr found;

}  // namespace

void set_interrupt_check(InterruptCheck check) { the_check = check; }

bool has_interrupt_check() { return the_check.load(std::memory_order_relaxed) != nullptr; }

bool is_interrupted() {
  const InterruptCheck check = the_check;
  if (check == nullptr) return false;
  if (found == nullptr) found = check();
  return found != nullptr;
}

void raise_interrupt() {
  if (found != nullptr) std::rethrow_exception(std::exchange(found, nullptr));
}

void forget_interrupt() { found = nullptr; }

}  // namespace meshrun
