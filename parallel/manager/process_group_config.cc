#include "parallel/manager/process_group_config.h"

#include <utility>

#include "parallel/base/thrown_status.h"
#include "parallel/manager/process_group_tree.h"

namespace meshrun {

ProcessGroupConfig::ProcessGroupConfig(ProcessGroupNode root)
    : tree_(std::make_unique<ProcessGroupTree>(std::move(root))) {}

ProcessGroupConfig::~ProcessGroupConfig() = default;

ProcessGroupConfig::ProcessGroupConfig(const ProcessGroupConfig& other)
    : tree_(std::make_unique<ProcessGroupTree>(*other.tree_)) {}

ProcessGroupConfig& ProcessGroupConfig::operator=(const ProcessGroupConfig& other) {
  *tree_ = *other.tree_;
  return *this;
}

void ProcessGroupConfig::add_node(ProcessGroupNode node, const std::string& parent) {
  throw_if_error<GroupError>(tree_->add_node(std::move(node), parent));
}

const ProcessGroupNode& ProcessGroupConfig::get_node(const std::string& name) const {
  return *value_or_throw<GroupError>(std::as_const(*tree_).get_node(name));
}

std::vector<std::string> ProcessGroupConfig::leaf_groups() const { return tree_->leaf_groups(); }

void ProcessGroupConfig::set_leaf_group_sizes(const std::map<std::string, int>& group_sizes,
                                              BoolArgument update_parent_sizes) {
  throw_if_error<GroupError>(tree_->set_leaf_group_sizes(group_sizes, update_parent_sizes));
}

}  // namespace meshrun
