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
  meet_until_done(
      group, device, [&](milliseconds most) { return std::vector<int64_t>{is_done(most) ? 1 : 0}; },
      [](const std::vector<int64_t>&) {});
}

void meet_until_done(c10d::ProcessGroup& group, c10::Device device,
                     const std::function<std::vector<int64_t>(milliseconds)>& report,
                     const std::function<void(const std::vector<int64_t>& least)>& hear) {
  for (milliseconds wait = kFirst;; wait = std::min(kLongest, 2 * wait)) {
    const std::vector<int64_t> own = report(wait);
    const std::vector<int64_t> all = group.getSize() == 1 ? own : least(group, device, own);
    if (all[0] == 1) return;
    hear(all);
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
