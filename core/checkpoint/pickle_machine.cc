#include "core/checkpoint/pickle_machine.h"

#include <fmt/format.h>

#include <bit>

#include "core/checkpoint/little_endian.h"
#include "core/status.h"
#include "core/utf8.h"

namespace meshrun {

absl::Status PickleMachine::Damaged(std::string_view reason) const {
  return absl::DataLossError(fmt::format("{} is damaged: opcode {} at byte {} {}", where_,
                                         PickleOpcodeName(opcode_), at_, reason));
}

absl::Status PickleMachine::Refused(std::string_view what) const {
  return absl::UnimplementedError(
      fmt::format("{}: opcode {} at byte {} {}", where_, PickleOpcodeName(opcode_), at_, what));
}

absl::Status PickleMachine::RefusedName(std::string_view module, std::string_view name) const {
  // What every nn.Module has among its attributes.
  const bool has_module = pickle_.bytes.find("_parameters") != std::string::npos &&
                          pickle_.bytes.find("_buffers") != std::string::npos;
  return Refused(fmt::format("would call {}.{}, and only tensors and plain data are read{}",
                             EscapeControls(module), EscapeControls(name),
                             has_module ? "; the file seems to hold an nn.Module, not its "
                                          "tensors alone: save its state_dict()"
                                        : ""));
}

absl::StatusOr<std::string_view> PickleMachine::Take(uint64_t size) {
  if (size > rest_.size()) {
    return absl::DataLossError(fmt::format("{} is damaged: it ends at byte {}, in the middle",
                                           where_, pickle_.bytes.size()));
  }
  const std::string_view taken = rest_.substr(0, size);
  rest_.remove_prefix(size);
  return taken;
}

absl::StatusOr<uint64_t> PickleMachine::TakeNumber(size_t size) {
  MESHRUN_ASSIGN_OR_RETURN(const std::string_view bytes, Take(size));
  return LittleEndian(bytes);
}

absl::StatusOr<std::string_view> PickleMachine::TakeLine() {
  const size_t end = rest_.find('\n');
  MESHRUN_ASSIGN_OR_RETURN(const std::string_view line,
                           Take(end == std::string_view::npos ? end : end + 1));
  return line.substr(0, end);
}

absl::Status PickleMachine::Need(size_t count) const {
  if (stack_.size() - Floor() >= count) return absl::OkStatus();
  return Damaged("finds too little on the stack");
}

absl::StatusOr<PickleValue> PickleMachine::Pop() {
  MESHRUN_RETURN_IF_ERROR(Need(1));
  const PickleValue value = stack_.back();
  stack_.pop_back();
  return value;
}

absl::StatusOr<PickleMachine::Values> PickleMachine::PopLast(size_t count) {
  MESHRUN_RETURN_IF_ERROR(Need(count));
  const auto begin = stack_.end() - static_cast<std::ptrdiff_t>(count);
  Values values(begin, stack_.end());
  stack_.erase(begin, stack_.end());
  return values;
}

absl::StatusOr<PickleMachine::Values> PickleMachine::PopMark() {
  if (marks_.empty()) return Damaged("finds no mark");
  const auto begin = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
  Values values(begin, stack_.end());
  stack_.erase(begin, stack_.end());
  marks_.pop_back();
  return values;
}

absl::Status PickleMachine::Push(PickleValue value) {
  stack_.push_back(value);
  return absl::OkStatus();
}

absl::Status PickleMachine::PushObject(Kind kind, Values items, const PickleName* name) {
  PickleObject& object = pickle_.objects.emplace_back();
  object.name = name;
  object.items = std::move(items);
  PickleValue value;
  value.kind = kind;
  value.object = &object;
  return Push(value);
}

absl::Status PickleMachine::PushTuple(size_t count) {
  MESHRUN_ASSIGN_OR_RETURN(Values items, PopLast(count));
  return PushObject(Kind::kTuple, std::move(items));
}

absl::Status PickleMachine::PushChars(Kind kind, size_t size_of_size) {
  MESHRUN_ASSIGN_OR_RETURN(const uint64_t size, TakeNumber(size_of_size));
  MESHRUN_ASSIGN_OR_RETURN(const std::string_view chars, Take(size));
  if (kind != Kind::kLong || size > 8) {
    PickleValue value;
    value.kind = kind;
    value.size = static_cast<uint32_t>(size);
    value.chars = chars.data();
    return Push(value);
  }
  if (size == 0) return PushInteger(0);
  const uint64_t shift = 64 - 8 * size;  // extends the sign
  return PushInteger(static_cast<int64_t>(LittleEndian(chars) << shift) >> shift);
}

absl::Status PickleMachine::Extend(absl::StatusOr<Values> values) {
  MESHRUN_RETURN_IF_ERROR(values.status());
  MESHRUN_RETURN_IF_ERROR(Need(1));
  const bool pairs = opcode_ == PickleOpcode::kSetItem || opcode_ == PickleOpcode::kSetItems;
  const PickleValue target = stack_.back();
  const bool fits =
      pairs ? target.Is(Kind::kDict) : target.Is(Kind::kList) || target.Is(Kind::kSet);
  if (!fits) return Refused(fmt::format("changes {}", target.Describe()));
  if (pairs && values->size() % 2 != 0) return Damaged("has a key without a value");
  Values& items = target.object->items;
  items.insert(items.end(), values->begin(), values->end());
  return absl::OkStatus();
}

absl::Status PickleMachine::Memorize(uint64_t index) {
  MESHRUN_RETURN_IF_ERROR(Need(1));
  // Pickles count from zero on, and each entry needs an opcode.
  if (index >= pickle_.bytes.size()) return Damaged("has an impossible index");
  if (memo_.size() <= index) memo_.resize(index + 1);
  memo_[index] = stack_.back();
  if (opcode_ == PickleOpcode::kMemoize) ++memoized_;
  return absl::OkStatus();
}

absl::Status PickleMachine::Recall(size_t size_of_index) {
  MESHRUN_ASSIGN_OR_RETURN(const uint64_t index, TakeNumber(size_of_index));
  if (index >= memo_.size()) return Damaged("refers to a value that is not there");
  return Push(memo_[index]);
}

absl::Status PickleMachine::PushName(std::string_view module, std::string_view name) {
  PickleValue value;
  value.kind = Kind::kName;
  value.name = FindPickleName(module, name);
  return value.name == nullptr ? RefusedName(module, name) : Push(value);
}

absl::Status PickleMachine::PushInteger(int64_t integer, Kind kind) {
  PickleValue value;
  value.kind = kind;
  value.integer = integer;
  return Push(value);
}

absl::Status PickleMachine::PushFloat() {
  MESHRUN_ASSIGN_OR_RETURN(const std::string_view bytes, Take(8));
  const std::string reversed(bytes.rbegin(), bytes.rend());
  PickleValue value;
  value.kind = Kind::kFloat;
  value.real = std::bit_cast<double>(LittleEndian(reversed));
  return Push(value);
}

absl::Status PickleMachine::Call() {
  if (opcode_ == PickleOpcode::kNewObjEx) {
    MESHRUN_ASSIGN_OR_RETURN(const PickleValue keywords, Pop());
    if (!keywords.Is(Kind::kDict) || !keywords.items().empty()) {
      return Refused("passes arguments by name");
    }
  }
  MESHRUN_ASSIGN_OR_RETURN(const PickleValue arguments, Pop());
  MESHRUN_ASSIGN_OR_RETURN(const PickleValue callee, Pop());
  if (!arguments.Is(Kind::kTuple)) return Damaged("has no tuple of arguments");
  if (!callee.Is(Kind::kName)) return Refused(fmt::format("would call {}", callee.Describe()));
  const auto refused = [&] {
    return Refused(fmt::format("would call {} with {} arguments", callee.name->Full(),
                               arguments.items().size()));
  };
  const Values& items = arguments.items();
  switch (callee.name->use) {
    case PickleUse::kValue:
      return refused();
    case PickleUse::kGetattr:
      if (items.size() != 2 || !items[0].Is(Kind::kName) ||
          items[0].name->use != PickleUse::kEnum) {
        return refused();
      }
      break;
    case PickleUse::kDict:
    case PickleUse::kList: {
      const bool dict = callee.name->use == PickleUse::kDict;
      const bool empty = items.empty() || items[0].Is(Kind::kName) || items[0].Is(Kind::kNone) ||
                         (items[0].HasObject() && items[0].items().empty());
      if (empty) return PushObject(dict ? Kind::kDict : Kind::kList, {}, callee.name);
      if (!(dict ? items[0].Is(Kind::kDict) : items[0].Is(Kind::kList))) return refused();
      // Shares the argument's items: a copy would make memory grow faster than the file.
      return Push(items[0]);
    }
    case PickleUse::kCall:
    case PickleUse::kEnum:
      break;
  }
  MESHRUN_RETURN_IF_ERROR(PushObject(Kind::kCall, {}, callee.name));
  stack_.back().object->arguments = arguments.object;
  return absl::OkStatus();
}

absl::Status PickleMachine::Build() {
  MESHRUN_ASSIGN_OR_RETURN(const PickleValue state, Pop());
  MESHRUN_RETURN_IF_ERROR(Need(1));
  const PickleValue target = stack_.back();
  // A state_dict() has its modules' versions as an attribute; they are not needed.
  if (target.Is(Kind::kDict) && target.object->name != nullptr) return absl::OkStatus();
  if (!target.Is(Kind::kCall)) {
    return Refused(fmt::format("sets the state of {}", target.Describe()));
  }
  target.object->state = state;
  return absl::OkStatus();
}

}  // namespace meshrun
