#include "parallel/manager/process_group_tree.h"

#include <algorithm>
#include <utility>

#include "fmt/format.h"
#include "fmt/ranges.h"

namespace meshrun {

ProcessGroupNode::ProcessGroupNode(std::string its_name, std::optional<IntArgument> its_size)
    : name(std::move(its_name)) {
  if (its_size) size = its_size->to_int();
}

ProcessGroupTree::ProcessGroupTree(ProcessGroupNode root) : root_(root.name) {
  entries_.emplace(root_, Entry{std::move(root), {}});
}

absl::Status ProcessGroupTree::add_node(ProcessGroupNode node, const std::string& parent) {
  const auto above = entries_.find(parent);
  if (above == entries_.end()) {
    return absl::InvalidArgumentError(fmt::format(
        "\"{}\" cannot be added below \"{}\", which is not in the tree", node.name, parent));
  }
  if (node.name.empty()) {
    return absl::InvalidArgumentError(fmt::format("a node below \"{}\" has no name", parent));
  }
  if (entries_.count(node.name) > 0) {
    return absl::InvalidArgumentError(fmt::format("\"{}\" is in the tree already", node.name));
  }
  above->second.children.push_back(node.name);
  const std::string name = node.name;
  entries_.emplace(name, Entry{std::move(node), {}});
  return absl::OkStatus();
}

absl::StatusOr<const ProcessGroupNode*> ProcessGroupTree::get_node(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    return absl::InvalidArgumentError(fmt::format("\"{}\" is not in the tree", name));
  }
  return &found->second.node;
}

std::vector<std::string> ProcessGroupTree::leaf_groups() const {
  std::vector<std::string> leaves;
  std::vector<std::string> open = {root_};
  while (!open.empty()) {
    const std::string name = open.back();
    open.pop_back();
    const std::vector<std::string>& below = children(name);
    if (below.empty()) leaves.push_back(name);
    open.insert(open.end(), below.rbegin(), below.rend());
  }
  return leaves;
}

absl::Status ProcessGroupTree::set_leaf_group_sizes(const std::map<std::string, int>& group_sizes,
                                                    bool update_parents) {
  ProcessGroupTree changed = *this;
  for (const auto& [name, size] : group_sizes) {
    const auto found = changed.entries_.find(name);
    if (found == changed.entries_.end()) {
      return absl::InvalidArgumentError(fmt::format("\"{}\" is not in the tree; its leaves are {}",
                                                    name, fmt::join(leaf_groups(), ", ")));
    }
    if (!found->second.children.empty()) {
      return absl::InvalidArgumentError(
          fmt::format("\"{}\" is not a leaf: its size follows from {}", name,
                      fmt::join(found->second.children, ", ")));
    }
    if (size < 1) {
      return absl::InvalidArgumentError(
          fmt::format("the size of \"{}\" is {}, not at least 1", name, size));
    }
    found->second.node.size = size;
  }
  if (update_parents) {
    const absl::Status status = changed.update_parent_sizes(root_);
    if (!status.ok()) return status;
  }
  *this = std::move(changed);
  return absl::OkStatus();
}

absl::Status ProcessGroupTree::update_parent_sizes(const std::string& name) {
  Entry& entry = entries_.at(name);
  if (entry.children.empty()) {
    if (entry.node.size) return absl::OkStatus();
    return absl::InvalidArgumentError(
        fmt::format("the leaf \"{}\" has no size: give it one in set_leaf_group_sizes", name));
  }
  int product = 1;
  for (const std::string& child : entry.children) {
    const absl::Status status = update_parent_sizes(child);
    if (!status.ok()) return status;
    product *= *entries_.at(child).node.size;
  }
  entry.node.size = product;
  return absl::OkStatus();
}

const std::vector<std::string>& ProcessGroupTree::children(const std::string& name) const {
  return entries_.at(name).children;
}

}  // namespace meshrun
