// The tree behind ProcessGroupConfig. No LibTorch, no communication; errors are INVALID_ARGUMENT.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "parallel/manager/process_group_node.h"

namespace meshrun {

class ProcessGroupTree {
 public:
  explicit ProcessGroupTree(ProcessGroupNode root);

  absl::Status add_node(ProcessGroupNode node, const std::string& parent);
  absl::StatusOr<const ProcessGroupNode*> get_node(const std::string& name) const;
  std::vector<std::string> leaf_groups() const;
  // Changes nothing where it fails.
  absl::Status set_leaf_group_sizes(const std::map<std::string, int>& group_sizes,
                                    bool update_parent_sizes);

  const std::string& root() const { return root_; }
  // In the order they were added.
  const std::vector<std::string>& children(const std::string& name) const;

 private:
  struct Entry {
    ProcessGroupNode node;
    std::vector<std::string> children;
  };
  absl::Status update_parent_sizes(const std::string& name);

  std::string root_;
  std::map<std::string, Entry> entries_;
};

}  // namespace meshrun
