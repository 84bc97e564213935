#include "parallel/comm/store/store_instance.h"

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "c10/util/Exception.h"
#include "fmt/format.h"
#include "parallel/base/errors.h"
#include "torch/csrc/distributed/c10d/PrefixStore.hpp"

namespace meshrun {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr char kFailed[] = "failed";
constexpr char kNewest[] = "instance/newest";

std::string failed_key(int64_t instance) {
  return fmt::format("instance/{}/{}", instance, kFailed);
}

c10::intrusive_ptr<c10d::Store> store_of_instance(int64_t instance,
                                                  c10::intrusive_ptr<c10d::Store> store) {
  return c10::make_intrusive<c10d::PrefixStore>(fmt::format("instance/{}", instance),
                                                std::move(store));
}

}  // namespace

c10::intrusive_ptr<c10d::Store> enter_instance(c10::intrusive_ptr<c10d::Store> store, int rank,
                                               InstanceHistory& history, milliseconds timeout) {
  const auto after = [](int64_t instance) { return fmt::format("instance/after/{}", instance); };
  const auto newest = [&] { return std::stoll(store->get_to_str(kNewest)); };
  if (rank == 0) {
    const int64_t found = store->check({kNewest}) ? newest() : 0;
    const int64_t instance = std::max(found, history.last) + 1;
    history.last = instance;
    store->set(kNewest, std::to_string(instance));
    // The store may be new, and some rank may wait since any attempt that followed the last
    // meeting.
    for (int64_t tried = std::max<int64_t>(history.complete, 1); tried < instance; ++tried) {
      store->set(after(tried), "");
    }
  } else {
    const Clock::time_point deadline = Clock::now() + timeout;
    do {
      history.waiting = history.last > 0;
      try {
        store->wait({history.waiting ? after(history.last) : kNewest},
                    std::max(std::chrono::duration_cast<milliseconds>(deadline - Clock::now()),
                             milliseconds(1)));
      } catch (const c10::DistStoreError&) {
        throw RendezvousError(fmt::format(
            "rank {} waited {:g} s for rank 0, which has {}: is rank 0 running, and has it called "
            "initialize(){}?",
            rank, std::chrono::duration<double>(timeout).count(),
            history.waiting ? fmt::format("not joined again since attempt {}", history.last)
                            : "not joined",
            history.waiting ? " again" : ""));
      }
      history.last = newest();
    } while (store->check({failed_key(history.last)}));
    history.waiting = false;
  }
  return store_of_instance(history.last, std::move(store));
}

c10::intrusive_ptr<c10d::Store> enter_fresh_instance(c10::intrusive_ptr<c10d::Store> store,
                                                     int rank, InstanceHistory& history,
                                                     milliseconds timeout) {
  const bool is_first = history.last == 0;
  if (is_first) history.last = 1;
  if (!is_first || store->check({failed_key(1)})) {
    return enter_instance(std::move(store), rank, history, timeout);
  }
  return store_of_instance(1, std::move(store));
}

void give_up_instance(c10d::Store& store) noexcept {
  try {
    store.set(kFailed, "");
  } catch (const std::exception&) {
    // A rank that comes to a store that is gone finds out by itself.
  }
}

}  // namespace meshrun
