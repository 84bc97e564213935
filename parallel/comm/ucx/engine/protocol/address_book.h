// Where the members of a group are: each publishes a record once, and reads another's when it first
// has something to send to it. Over the c10d store in ranks (store_address_book.h), over a map in
// tests.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/base/shared_heap.h"

namespace meshrun::ucx {

struct AddressRecord {
  // Random, of the process: two groups with the same peer share one connection.
  uint64_t process = 0;
  // The rank in the job, which liveness speaks of.
  int32_t world_rank = 0;
  // The peer's number for this group: what our tags to it carry. 0: it cannot be a member, since it
  // has made as many groups as tags can number.
  uint32_t group = 0;
  // Equal where ranks share cores (boot id, IPC namespace, the cores that a process may run on;
  // sets that overlap count as apart): for WaitPolicy, never for the choice of an algorithm, which
  // must not depend on what only some ranks know.
  uint64_t host = 0;
  // kAlgorithmVersion and whether headers are compared: must be equal, or the first operation with
  // this peer fails with both values.
  uint32_t algorithm_version = 0;
  bool checks_headers = true;
  HeapAddress heap;
  std::string transport_address;
};

std::string serialize(const AddressRecord& record);
// Absent: not one of ours, or of another version.
std::optional<AddressRecord> parse_address_record(std::string_view bytes);

// What every member says of a `rank` whose record has the group 0.
std::string too_many_groups(std::string_view group_name, int rank);

class AddressBook {
 public:
  // `record` absent: not found within the book's timeout, for the reason given.
  using Found =
      std::function<void(int rank, std::optional<AddressRecord> record, const std::string& reason)>;

  virtual ~AddressBook() = default;

  // Errors: the text; a second group over the same keys is one.
  virtual std::optional<std::string> publish(int rank, const AddressRecord& record) = 0;
  // Never waits; calls `found` once for each rank, from any thread, perhaps before returning.
  virtual void look_up(const std::vector<int>& ranks, Found found) = 0;
  // No call of `found` after it returns.
  virtual void stop() = 0;
};

}  // namespace meshrun::ucx
