#include "coordinator/state_copy.h"

#include <algorithm>

namespace meshrun::coordinator {

void StateCopy::OnStart(uint64_t term, bool another_leads, SteadyNanos now) {
  known_ = term;
  another_led_ = another_leads;
  started_ = now;
}

bool StateCopy::OnTakeover(uint64_t term, SteadyNanos now) {
  if (!is_copy_) return false;
  if (!known_) OnStart(term, /*another_leads=*/false, now);
  const uint64_t begun = term - std::min(term, *known_);
  if (begun >= 2 || (another_led_ && (begun == 1 || now - started_ >= kLongestRollCall))) {
    is_copy_ = false;
    return false;
  }
  // From here on the next term is our own, also where this takeover fails.
  known_ = term + 1;
  another_led_ = false;
  return true;
}

}  // namespace meshrun::coordinator
