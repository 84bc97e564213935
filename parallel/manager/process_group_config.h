// A tree of process groups to be made together: children split their parent.
//
//   ProcessGroupConfig config(ProcessGroupNode("world"));
//   config.add_node(ProcessGroupNode("model_parallel"), "world");
//   config.add_node(ProcessGroupNode("data_parallel"), "world");
//   config.set_leaf_group_sizes({{"model_parallel", 4}, {"data_parallel", 2}});
//   DistributedManager::create_groups_from_config(config);
//
// Siblings are orthogonal: ranks with the same position in one form a group of the other.
// Corresponds to physicsnemo.distributed.ProcessGroupConfig. Not thread-safe. Errors: GroupError.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "parallel/base/arguments.h"
#include "parallel/base/errors.h"
#include "parallel/manager/process_group_node.h"

namespace meshrun {

class ProcessGroupTree;

class ProcessGroupConfig {
 public:
  explicit ProcessGroupConfig(ProcessGroupNode root);
  ~ProcessGroupConfig();
  ProcessGroupConfig(const ProcessGroupConfig& other);
  ProcessGroupConfig& operator=(const ProcessGroupConfig& other);

  // Adds `node` below `parent`, which must exist; names are unique in the tree.
  void add_node(ProcessGroupNode node, const std::string& parent);
  const ProcessGroupNode& get_node(const std::string& name) const;
  // Names of the nodes without children, depth first.
  std::vector<std::string> leaf_groups() const;
  // Every name must be a leaf. With `update_parent_sizes`, a parent's size becomes the product of
  // its children's.
  void set_leaf_group_sizes(const std::map<std::string, int>& group_sizes,
                            BoolArgument update_parent_sizes = true);

  const ProcessGroupTree& tree() const { return *tree_; }

 private:
  // Behind a pointer, since its own header needs abseil. Never null.
  std::unique_ptr<ProcessGroupTree> tree_;
};

}  // namespace meshrun
