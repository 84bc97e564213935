// A machine for Python's pickles (protocols 2 to 5) that calls nothing. It builds texts, numbers,
// lists and dicts; a call of a known name (pickle_names.h) becomes a value that records the call.
//
// Memory is at most about 150 bytes for each byte of the pickle, as no opcode copies what it is
// given. Values may contain themselves, so whoever walks through them needs a limit.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/checkpoint/pickle_names.h"

namespace meshrun {

struct PickleObject;

struct PickleValue {
  enum class Kind : uint8_t {
    kNone,
    kBool,
    kInt,
    kFloat,
    kText,  // UTF-8, as the file has it: perhaps damaged
    kBytes,
    kLong,   // an integer of more than 64 bits: two's complement, least significant byte first
    kName,   // a class or a function, or a dtype of torch
    kTuple,  // kinds from here on have an object
    kList,
    kSet,
    kDict,    // items: keys and values in turn
    kCall,    // the function is object->name
    kStorage  // what torch.save() keeps outside of the pickle; items: the tuple that describes it
  };

  Kind kind = Kind::kNone;
  uint32_t size = 0;  // bytes of `chars`
  union {
    int64_t integer = 0;  // also a kBool
    double real;
    const char* chars;
    const PickleName* name;
    PickleObject* object;
  };

  bool Is(Kind other) const { return kind == other; }
  bool HasObject() const { return kind >= Kind::kTuple; }
  // Requires kText, kBytes or kLong. Lives as long as the Pickle.
  std::string_view text() const { return {chars, size}; }
  // Whether this is a call of that function.
  bool Calls(std::string_view module, std::string_view name) const;
  // The arguments, if this is a call. Empty unless this has an object.
  const std::vector<PickleValue>& items() const;
  // The value of that key in a dict, or in the state (BUILD) of a call; null: absent. It looks at
  // the first 64 keys, as it is for the fields of a class.
  const PickleValue* Find(std::string_view key) const;
  // "a dict", "a call of torch.device", for errors.
  std::string Describe() const;
};

struct PickleObject {
  // What was called; null unless this is a call, or a dict or list that a call made.
  const PickleName* name = nullptr;
  std::vector<PickleValue> items;
  // Only a call has these: the tuple of its arguments, and what BUILD gave it.
  const PickleObject* arguments = nullptr;
  PickleValue state;
};

// Owns all values of a pickle. `root` is the one that it was written for.
struct Pickle {
  std::string bytes;
  std::deque<PickleObject> objects;
  PickleValue root;
};

// Runs a pickle. Errors begin with `where` ("PATH: data.pkl"). DATA_LOSS: it is damaged.
// UNIMPLEMENTED: it uses an opcode or a name that is not known; the text has the opcode, its offset
// and the name.
absl::StatusOr<std::unique_ptr<const Pickle>> ReadPickle(const std::string& where,
                                                         std::string bytes);

}  // namespace meshrun
