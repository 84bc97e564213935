// Names that a pickle may use. None of them is ever called.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace meshrun {

enum class PickleUse : uint8_t {
  kValue,  // a dtype, or a class that others take as an argument; a call of it is refused
  kCall,   // its call is recorded
  kDict,   // its call makes a dict
  kList,   // its call makes a list or a set
  kEnum,   // its call, or getattr() on it, is recorded
  kGetattr
};

struct PickleName {
  std::string_view module;
  std::string_view name;
  PickleUse use;

  std::string Full() const { return std::string(module) + "." + std::string(name); }
};

// Null: unknown. What it returns lives as long as the program.
const PickleName* FindPickleName(std::string_view module, std::string_view name);

}  // namespace meshrun
