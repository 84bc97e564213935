// The stack, the memo and the marks of a pickle that is run. For pickle.cc alone.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/checkpoint/pickle.h"
#include "core/checkpoint/pickle_opcodes.h"

namespace meshrun {

// Runs one pickle. Methods that take from the stack take nothing from below the last mark; they
// return DATA_LOSS where there is too little. `where` and `pickle` must outlive it.
class PickleMachine {
 public:
  PickleMachine(const std::string& where, Pickle* pickle)
      : where_(where), pickle_(*pickle), rest_(pickle->bytes) {}

  absl::Status Run();

 private:
  using Kind = PickleValue::Kind;
  using Values = std::vector<PickleValue>;

  // Does what opcode_ says.
  absl::Status Step();

  // DATA_LOSS and UNIMPLEMENTED, with the opcode and its offset; `reason` and `what` follow them.
  absl::Status Damaged(std::string_view reason) const;
  absl::Status Refused(std::string_view what) const;
  absl::Status RefusedName(std::string_view module, std::string_view name) const;

  // What follows the opcode: bytes, a number of `size` bytes, a line without its end.
  absl::StatusOr<std::string_view> Take(uint64_t size);
  absl::StatusOr<uint64_t> TakeNumber(size_t size);
  absl::StatusOr<std::string_view> TakeLine();

  size_t Floor() const { return marks_.empty() ? 0 : marks_.back(); }
  absl::Status Need(size_t count) const;
  absl::StatusOr<PickleValue> Pop();
  absl::StatusOr<Values> PopLast(size_t count);
  // All values above the last mark, and the mark.
  absl::StatusOr<Values> PopMark();

  absl::Status Push(PickleValue value);
  absl::Status PushInteger(int64_t integer, Kind kind = Kind::kInt);
  absl::Status PushObject(Kind kind, Values items = {}, const PickleName* name = nullptr);
  // The last `count` values as a tuple.
  absl::Status PushTuple(size_t count);
  // Characters after their size, a number of `size_of_size` bytes.
  absl::Status PushChars(Kind kind, size_t size_of_size);
  absl::Status PushFloat();
  absl::Status PushName(std::string_view module, std::string_view name);

  // Adds `values` to the list, set or dict on top of the stack.
  absl::Status Extend(absl::StatusOr<Values> values);
  absl::Status Memorize(uint64_t index);
  absl::Status Recall(size_t size_of_index);
  // REDUCE, NEWOBJ and NEWOBJ_EX.
  absl::Status Call();
  // BUILD.
  absl::Status Build();

  const std::string& where_;
  Pickle& pickle_;
  std::string_view rest_;
  uint64_t at_ = 0;  // where the opcode is
  PickleOpcode opcode_ = {};
  Values stack_;
  std::vector<size_t> marks_;
  Values memo_;
  uint64_t memoized_ = 0;  // by MEMOIZE
};

}  // namespace meshrun
