#include <algorithm>
#include <string>

#include "core/checkpoint/pickle.h"

namespace meshrun {

bool PickleValue::Calls(std::string_view module, std::string_view function) const {
  return kind == Kind::kCall && object->name->module == module && object->name->name == function;
}

const std::vector<PickleValue>& PickleValue::items() const {
  static const std::vector<PickleValue>& none = *new std::vector<PickleValue>();
  if (kind == Kind::kCall) return object->arguments->items;
  return HasObject() ? object->items : none;
}

const PickleValue* PickleValue::Find(std::string_view key) const {
  if (kind == Kind::kCall) return object->state.Is(Kind::kDict) ? object->state.Find(key) : nullptr;
  if (kind != Kind::kDict) return nullptr;
  constexpr size_t kMostKeys = 64;
  const size_t end = std::min(object->items.size(), 2 * kMostKeys);
  for (size_t k = 0; k + 1 < end; k += 2) {
    const PickleValue& other = object->items[k];
    if (other.Is(Kind::kText) && other.text() == key) return &object->items[k + 1];
  }
  return nullptr;
}

std::string PickleValue::Describe() const {
  switch (kind) {
    case Kind::kNone:
      return "None";
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kLong:
    case Kind::kFloat:
      return "a number";
    case Kind::kText:
      return "a text";
    case Kind::kBytes:
      return "bytes";
    case Kind::kName:
      return name->Full();
    case Kind::kTuple:
      return "a tuple";
    case Kind::kList:
      return "a list";
    case Kind::kSet:
      return "a set";
    case Kind::kDict:
      return "a dict";
    case Kind::kCall:
      return "a value of " + object->name->Full();
    case Kind::kStorage:
      return "a storage";
  }
  return "a value";
}

}  // namespace meshrun
