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

#include "parallel/comm/ucx/engine/execution/operation.h"
#include "parallel/comm/ucx/engine/protocol/address_book.h"

namespace meshrun::ucx {

struct Actions {
  struct LookUp {
    uint32_t group = 0;
    std::vector<int> ranks;
    AddressBook* book = nullptr;  // Engine's
  };
  // What most calls have not: so Actions are small.
  struct Seldom {
    std::vector<LookUp> look_ups;
    // Flight records of groups that failed.
    std::vector<std::string> dumps;
    // Engine's: what its callers want to hear of the operations in `finished`.
    std::vector<std::function<void()>> callbacks;
  };

  // The caller's memory, of operations that no longer touch it. Destroy it first.
  std::vector<std::shared_ptr<void>> memory;
  // Operations that have ended.
  std::vector<std::shared_ptr<Operation>> finished;
  std::unique_ptr<Seldom> seldom;  // null: nothing

  bool empty() const { return finished.empty() && memory.empty() && seldom == nullptr; }
  bool has_callbacks() const { return seldom != nullptr && !seldom->callbacks.empty(); }
  Seldom& make_seldom() {
    if (seldom == nullptr) seldom = std::make_unique<Seldom>();
    return *seldom;
  }
  // All of it; nothing is left.
  Actions take() { return std::move(*this); }
  void append(Actions&& more) {
    const auto move = [](auto& to, auto& from) {
      to.insert(to.end(), std::make_move_iterator(from.begin()),
                std::make_move_iterator(from.end()));
    };
    move(memory, more.memory);
    move(finished, more.finished);
    if (more.seldom == nullptr) return;
    Seldom& to = make_seldom();
    move(to.look_ups, more.seldom->look_ups);
    move(to.dumps, more.seldom->dumps);
    move(to.callbacks, more.seldom->callbacks);
  }
};

}  // namespace meshrun::ucx
