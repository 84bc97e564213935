#include "parallel/manager/group_argument.h"

#include <utility>

#include "parallel/manager/distributed_manager.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun {

GroupArgument::GroupArgument() = default;
GroupArgument::GroupArgument(std::nullopt_t) {}
GroupArgument::GroupArgument(Handle group) : handle_(std::move(group)) {}
GroupArgument::GroupArgument(std::string name) : name_(std::move(name)) {}
GroupArgument::GroupArgument(const char* name) : name_(std::string(name)) {}
GroupArgument::GroupArgument(std::optional<std::string> name) : name_(std::move(name)) {}
GroupArgument::GroupArgument(const GroupArgument&) = default;
GroupArgument& GroupArgument::operator=(const GroupArgument&) = default;
GroupArgument::~GroupArgument() = default;

GroupArgument::Handle GroupArgument::get() const {
  if (handle_) return handle_;
  return DistributedManager::get().group(name_);
}

}  // namespace meshrun
