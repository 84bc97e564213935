// The engine's AddressBook over a c10d store.
//
//   ucx/<rank>    that rank's AddressRecord; written once, with compareSet: a second group over the
//                 same keys is an error instead of a message that nobody receives
//
// Look-ups wait in the store, in one multiGet for all ranks of a question, on threads of their own
// with clones of the store: other users of the store are not held up. Where some ranks are still
// missing after 2 s, a thread asks for each rank whether its record is there, and tells of those
// that are. The threads exist while questions are open. stop() ends a call of a StoppableStore; in
// other stores calls are short, and stop() takes a second at most.
//
// Threads: any. Errors: as AddressBook; the store's become texts.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "c10/util/intrusive_ptr.h"
#include "parallel/comm/ucx/engine/protocol/address_book.h"
#include "torch/csrc/distributed/c10d/Store.hpp"

namespace meshrun {

class StoreAddressBook : public ucx::AddressBook {
 public:
  StoreAddressBook(const c10::intrusive_ptr<c10d::Store>& store, std::chrono::milliseconds timeout);
  ~StoreAddressBook() override;

  std::optional<std::string> publish(int rank, const ucx::AddressRecord& record) override;
  void look_up(const std::vector<int>& ranks, Found found) override;
  void stop() override;

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace meshrun
