// The `group` argument of collectives: a handle, a registered name, or nothing (the world).
//
//   all_gather_v(x, sizes);                                    the world
//   all_gather_v(x, sizes, 0, true, "model_parallel");         DistributedManager::group(name)
//   all_gather_v(x, sizes, 0, true, manager.group("model"));   a handle
//
// A null handle means the world, too. nullptr and 0 do not compile.
//
// Threads: any. Errors, from get(): UndefinedGroupError (this rank has no group of that name),
// UninitializedError (a name, or nothing, without DistributedManager).
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "c10/util/intrusive_ptr.h"

namespace c10d {
class ProcessGroup;
}

namespace meshrun {

class GroupArgument {
 public:
  using Handle = c10::intrusive_ptr<c10d::ProcessGroup>;

  // Defined in the source file, so that a caller need not include ProcessGroup.hpp.
  GroupArgument();
  GroupArgument(std::nullopt_t);              // NOLINT(google-explicit-constructor)
  GroupArgument(Handle group);                // NOLINT(google-explicit-constructor)
  GroupArgument(std::string name);            // NOLINT(google-explicit-constructor)
  GroupArgument(const char* name);            // NOLINT(google-explicit-constructor)
  GroupArgument(std::nullptr_t) = delete;     // a name that is null; 0 is one too
  GroupArgument(std::optional<std::string>);  // NOLINT(google-explicit-constructor)
  GroupArgument(const GroupArgument&);
  GroupArgument& operator=(const GroupArgument&);
  ~GroupArgument();

  // Never null.
  Handle get() const;

 private:
  Handle handle_;
  std::optional<std::string> name_;
};

}  // namespace meshrun
