// What must be done without the engine's lock. The executor's objects collect it while they work;
// Engine adds callbacks and address books, and carries it out.
#pragma once

#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "parallel/comm/ucx/engine/execution/operation.h"
#include "parallel/comm/ucx/engine/protocol/address_book.h"

namespace meshrun::ucx {

struct Actions {
  struct LookUp {
    uint32_t group = 0;
    std::vector<int> ranks;
    AddressBook* book = nullptr;  // Engine's
  };

  // The caller's memory, of operations that no longer touch it. Destroy it first.
  absl::InlinedVector<std::shared_ptr<void>, 2> memory;
  // Operations that have ended.
  absl::InlinedVector<std::shared_ptr<Operation>, 2> finished;
  std::vector<LookUp> look_ups;
  // Flight records of groups that failed.
  std::vector<std::string> dumps;
  // Engine's: what its callers want to hear of the operations in `finished`.
  std::vector<std::function<void()>> callbacks;

  bool empty() const {
    return finished.empty() && memory.empty() && look_ups.empty() && dumps.empty() &&
           callbacks.empty();
  }
  // All of it; nothing is left.
  Actions take() {
    Actions taken = std::move(*this);
    // These have null pointers where something was moved out of them.
    memory.clear();
    finished.clear();
    return taken;
  }
  void append(Actions&& more) {
    const auto move = [](auto& to, auto& from) {
      to.insert(to.end(), std::make_move_iterator(from.begin()),
                std::make_move_iterator(from.end()));
    };
    move(memory, more.memory);
    move(finished, more.finished);
    move(look_ups, more.look_ups);
    move(dumps, more.dumps);
    move(callbacks, more.callbacks);
  }
};

}  // namespace meshrun::ucx
