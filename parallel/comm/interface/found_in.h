// The interface that a backend implements beside c10d::Backend's.
//
// Threads: any. No errors.
#pragma once

#include <cstddef>
#include <optional>
#include <typeinfo>

#include "torch/csrc/distributed/c10d/Backend.hpp"

namespace meshrun {

// The backend's other base, or null. A cast from one base to another walks the names of types.
// Where the other base lies depends on the object's own type alone, and a thread calls backends of
// few types.
template <typename Interface>
Interface* found_in(c10d::Backend& backend) {
  struct Last {
    const std::type_info* type = nullptr;
    std::optional<ptrdiff_t> offset;
  };
  thread_local Last last;
  const std::type_info& type = typeid(backend);
  auto* const whole = static_cast<std::byte*>(dynamic_cast<void*>(&backend));
  if (last.type != &type) {
    auto* const found = dynamic_cast<Interface*>(&backend);
    last = {&type, std::nullopt};
    if (found != nullptr) last.offset = reinterpret_cast<std::byte*>(found) - whole;
  }
  return last.offset ? reinterpret_cast<Interface*>(whole + *last.offset) : nullptr;
}

}  // namespace meshrun
