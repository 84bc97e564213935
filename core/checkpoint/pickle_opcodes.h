// Opcodes of Python's pickles, by the names that pickletools gives them.
#pragma once

#include <cstdint>
#include <string_view>

namespace meshrun {

enum class PickleOpcode : uint8_t {
  kProto = 0x80,
  kFrame = 0x95,
  kStop = 0x2E,
  kMark = 0x28,
  kPop = 0x30,
  kPopMark = 0x31,
  kDup = 0x32,
  kNone = 0x4E,
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kBinInt = 0x4A,
  kBinInt1 = 0x4B,
  kBinInt2 = 0x4D,
  kLong1 = 0x8A,
  kLong4 = 0x8B,
  kBinFloat = 0x47,
  kShortBinUnicode = 0x8C,
  kShortBinString = 0x55,
  kBinUnicode = 0x58,
  kBinString = 0x54,
  kBinUnicode8 = 0x8D,
  kShortBinBytes = 0x43,
  kBinBytes = 0x42,
  kBinBytes8 = 0x8E,
  kByteArray8 = 0x96,
  kEmptyTuple = 0x29,
  kTuple = 0x74,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kEmptyList = 0x5D,
  kEmptySet = 0x8F,
  kEmptyDict = 0x7D,
  kFrozenSet = 0x91,
  kAppend = 0x61,
  kAppends = 0x65,
  kAddItems = 0x90,
  kSetItem = 0x73,
  kSetItems = 0x75,
  kBinPut = 0x71,
  kLongBinPut = 0x72,
  kMemoize = 0x94,
  kBinGet = 0x68,
  kLongBinGet = 0x6A,
  kGlobal = 0x63,
  kStackGlobal = 0x93,
  kInst = 0x69,
  kObj = 0x6F,
  kReduce = 0x52,
  kNewObj = 0x81,
  kNewObjEx = 0x92,
  kBuild = 0x62,
  kBinPersId = 0x51,
};

// Name of the opcode: "GLOBAL". A byte without a meaning is called "of unknown meaning".
std::string_view PickleOpcodeName(PickleOpcode opcode);

}  // namespace meshrun
