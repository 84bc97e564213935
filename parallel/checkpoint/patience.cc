#include "parallel/checkpoint/patience.h"

#include <algorithm>
#include <future>

#include "parallel/checkpoint/agreement.h"

namespace meshrun::detail {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirst(1);
constexpr milliseconds kLongest(100);

}  // namespace

void await_all(c10d::ProcessGroup& group, c10::Device device,
               const std::function<bool(milliseconds most)>& is_done) {
  milliseconds wait = kFirst;
  while (true) {
    const bool done = is_done(wait);
    if (group.getSize() == 1 && done) return;
    if (group.getSize() > 1 && least(group, device, {done ? 1 : 0})[0] == 1) return;
    wait = std::min(kLongest, 2 * wait);
  }
}

void run_patiently(c10d::ProcessGroup& group, c10::Device device,
                   const std::function<void()>& work) {
  if (group.getSize() == 1) return work();
  std::future<void> done = std::async(std::launch::async, work);
  await_all(group, device,
            [&](milliseconds most) { return done.wait_for(most) == std::future_status::ready; });
  done.get();
}

}  // namespace meshrun::detail
