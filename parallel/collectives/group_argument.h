// The `group` argument of collectives: a handle, a registered name, or nothing (the world).
//
//   all_gather_v(x, sizes);                                    the world
//   all_gather_v(x, sizes, 0, true, "model_parallel");         DistributedManager::group(name)
//   all_gather_v(x, sizes, 0, true, manager.group("model"));   a handle
//
// Threads: any. Errors, from get(): UndefinedGroupError (no group of that name on this rank),
// UninitializedError (a name, or nothing, without DistributedManager).
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "c10/util/intrusive_ptr.h"

namespace c10d {
class ProcessGroup;
}

namespace meshrun {

class GroupArgument {
 public:
  using Handle = c10::intrusive_ptr<c10d::ProcessGroup>;

  GroupArgument() = default;
  GroupArgument(std::nullopt_t) {}                            // NOLINT(google-explicit-constructor)
  GroupArgument(Handle group) : handle_(std::move(group)) {}  // NOLINT(google-explicit-constructor)
  GroupArgument(std::string name)
      : name_(std::move(name)) {}  // NOLINT(google-explicit-constructor)
  GroupArgument(const char* name)
      : name_(std::string(name)) {}  // NOLINT(google-explicit-constructor)
  GroupArgument(std::optional<std::string> name) : name_(std::move(name)) {}  // NOLINT

  // Never null.
  Handle get() const;

 private:
  Handle handle_;
  std::optional<std::string> name_;
};

}  // namespace meshrun
