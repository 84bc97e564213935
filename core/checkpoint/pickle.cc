#include "core/checkpoint/pickle.h"

#include <fmt/format.h>

#include <utility>

#include "core/checkpoint/pickle_machine.h"
#include "core/status.h"

namespace meshrun {

absl::Status PickleMachine::Run() {
  while (true) {
    at_ = pickle_.bytes.size() - rest_.size();
    MESHRUN_ASSIGN_OR_RETURN(const std::string_view opcode, Take(1));
    opcode_ = static_cast<PickleOpcode>(opcode[0]);
    if (opcode_ == PickleOpcode::kStop) break;
    MESHRUN_RETURN_IF_ERROR(Step());
  }
  MESHRUN_ASSIGN_OR_RETURN(pickle_.root, Pop());
  return absl::OkStatus();
}

absl::Status PickleMachine::Step() {
  using enum PickleOpcode;
  switch (opcode_) {
    case kProto: {
      MESHRUN_ASSIGN_OR_RETURN(const uint64_t protocol, TakeNumber(1));
      if (protocol < 2 || protocol > 5) {
        return absl::UnimplementedError(
            fmt::format("{} has protocol {}, and 2 to 5 are read", where_, protocol));
      }
      return absl::OkStatus();
    }
    case kFrame:
      return Take(8).status();
    case kMark:
      marks_.push_back(stack_.size());
      return absl::OkStatus();
    case kPop:
      // It may take a mark, as in Python.
      if (stack_.size() == Floor() && !marks_.empty()) {
        marks_.pop_back();
        return absl::OkStatus();
      }
      return Pop().status();
    case kPopMark:
      return PopMark().status();
    case kDup:
      MESHRUN_RETURN_IF_ERROR(Need(1));
      return Push(PickleValue(stack_.back()));
    case kNone:
      return Push({});
    case kNewTrue:
    case kNewFalse:
      return PushInteger(opcode_ == kNewTrue, Kind::kBool);
    case kBinInt: {
      MESHRUN_ASSIGN_OR_RETURN(const uint64_t number, TakeNumber(4));
      return PushInteger(static_cast<int32_t>(static_cast<uint32_t>(number)));
    }
    case kBinInt1:
    case kBinInt2: {
      MESHRUN_ASSIGN_OR_RETURN(const uint64_t number, TakeNumber(opcode_ == kBinInt1 ? 1 : 2));
      return PushInteger(static_cast<int64_t>(number));
    }
    case kLong1:
      return PushChars(Kind::kLong, 1);
    case kLong4:
      return PushChars(Kind::kLong, 4);
    case kBinFloat:
      return PushFloat();
    case kShortBinUnicode:
    case kShortBinString:
      return PushChars(Kind::kText, 1);
    case kBinUnicode:
    case kBinString:
      return PushChars(Kind::kText, 4);
    case kBinUnicode8:
      return PushChars(Kind::kText, 8);
    case kShortBinBytes:
      return PushChars(Kind::kBytes, 1);
    case kBinBytes:
      return PushChars(Kind::kBytes, 4);
    case kBinBytes8:
    case kByteArray8:
      return PushChars(Kind::kBytes, 8);
    case kEmptyTuple:
      return PushTuple(0);
    case kTuple1:
      return PushTuple(1);
    case kTuple2:
      return PushTuple(2);
    case kTuple3:
      return PushTuple(3);
    case kEmptyList:
      return PushObject(Kind::kList);
    case kEmptySet:
      return PushObject(Kind::kSet);
    case kEmptyDict:
      return PushObject(Kind::kDict);
    case kTuple:
    case kFrozenSet: {
      MESHRUN_ASSIGN_OR_RETURN(Values items, PopMark());
      return PushObject(opcode_ == kTuple ? Kind::kTuple : Kind::kSet, std::move(items));
    }
    case kAppend:
      return Extend(PopLast(1));
    case kSetItem:
      return Extend(PopLast(2));
    case kAppends:
    case kAddItems:
    case kSetItems:
      return Extend(PopMark());
    case kBinPut:
    case kLongBinPut: {
      MESHRUN_ASSIGN_OR_RETURN(const uint64_t index, TakeNumber(opcode_ == kBinPut ? 1 : 4));
      return Memorize(index);
    }
    case kMemoize:
      return Memorize(memoized_);
    case kBinGet:
      return Recall(1);
    case kLongBinGet:
      return Recall(4);
    case kGlobal: {
      MESHRUN_ASSIGN_OR_RETURN(const std::string_view module, TakeLine());
      MESHRUN_ASSIGN_OR_RETURN(const std::string_view name, TakeLine());
      return PushName(module, name);
    }
    case kInst: {
      MESHRUN_ASSIGN_OR_RETURN(const std::string_view module, TakeLine());
      MESHRUN_ASSIGN_OR_RETURN(const std::string_view name, TakeLine());
      return RefusedName(module, name);
    }
    case kStackGlobal: {
      MESHRUN_ASSIGN_OR_RETURN(const PickleValue name, Pop());
      MESHRUN_ASSIGN_OR_RETURN(const PickleValue module, Pop());
      if (!name.Is(Kind::kText) || !module.Is(Kind::kText)) return Damaged("has no name");
      return PushName(module.text(), name.text());
    }
    case kReduce:
    case kNewObj:
    case kNewObjEx:
      return Call();
    case kBuild:
      return Build();
    case kBinPersId: {
      MESHRUN_ASSIGN_OR_RETURN(PickleValue id, Pop());
      if (!id.Is(Kind::kTuple)) return Refused("refers to something that is not a storage");
      id.kind = Kind::kStorage;
      return Push(id);
    }
    case kObj: {
      MESHRUN_ASSIGN_OR_RETURN(const Values values, PopMark());
      return Refused(
          fmt::format("would call {}", values.empty() ? "nothing" : values.front().Describe()));
    }
    default:
      return Refused("is not read");
  }
}

absl::StatusOr<std::unique_ptr<const Pickle>> ReadPickle(const std::string& where,
                                                         std::string bytes) {
  auto pickle = std::make_unique<Pickle>();
  pickle->bytes = std::move(bytes);
  MESHRUN_RETURN_IF_ERROR(PickleMachine(where, pickle.get()).Run());
  return pickle;
}

}  // namespace meshrun
