#include "parallel/manager/group_table.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "parallel/base/errors.h"

namespace meshrun {
namespace {

constexpr char kWorld[] = "world";

using GroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;

}  // namespace

GroupTable::GroupTable(int rank, int world_size, Maker maker)
    : rank_(rank), maker_(std::move(maker)) {
  std::vector<int> all(static_cast<size_t>(world_size));
  std::iota(all.begin(), all.end(), 0);
  world_ = make_entry(kWorld, {std::move(all)});
}

Partition GroupTable::split(const std::string& name, int size,
                            const std::optional<std::string>& parent) const {
  check_free(name);
  const std::shared_ptr<Entry> above = find(parent);
  const int parent_size = static_cast<int>(above->mine.size());
  if (size < 1 || parent_size % size != 0) {
    throw GroupError(
        fmt::format("the group \"{}\" of {} ranks cannot be split into groups \"{}\" of {}: {}",
                    above->name, parent_size, name, size,
                    size < 1 ? "a group has at least 1 rank"
                             : fmt::format("{} is not a multiple of {}", parent_size, size)));
  }
  Partition result;
  for (const std::vector<int>& ranks : above->partition) {
    for (size_t begin = 0; begin < ranks.size(); begin += static_cast<size_t>(size)) {
      result.emplace_back(ranks.begin() + static_cast<std::ptrdiff_t>(begin),
                          ranks.begin() + static_cast<std::ptrdiff_t>(begin) + size);
    }
  }
  return result;
}

Partition GroupTable::transpose(const std::string& orthogonal_name, const std::string& name) const {
  check_free(orthogonal_name);
  const Partition blocks = find(name)->partition;
  Partition result(blocks.front().size());
  for (const std::vector<int>& block : blocks) {
    for (size_t position = 0; position < block.size(); ++position)
      result[position].push_back(block[position]);
  }
  return result;
}

void GroupTable::declare(const std::string& name, Partition partition) {
  check_free(name);
  std::shared_ptr<Entry> entry = make_entry(name, std::move(partition));
  const std::lock_guard lock(mutex_);
  named_.push_back(std::move(entry));
}

void GroupTable::forget(const std::string& name) {
  const std::lock_guard lock(mutex_);
  std::erase_if(named_, [&](const std::shared_ptr<Entry>& entry) { return entry->name == name; });
}

GroupPtr GroupTable::group(const std::optional<std::string>& name) {
  return ensure(*find_or_alone(name));
}

void GroupTable::make_together(const std::string& name) { ensure(*find(name), true); }

GroupPtr GroupTable::unnamed_group(const std::string& key, const std::vector<int>& ranks) {
  std::shared_ptr<Entry> entry;
  {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Entry>& slot = unnamed_[key];
    if (!slot) slot = make_entry(key, {ranks});
    entry = slot;
  }
  return ensure(*entry);
}

std::optional<std::string> GroupTable::name_of(const c10d::ProcessGroup* group) const {
  const std::lock_guard lock(mutex_);
  if (world_->group.get() == group) return world_->name;
  for (const auto& entry : named_) {
    if (entry->group.get() == group) return entry->name;
  }
  for (const auto& [key, entry] : unnamed_) {
    if (entry->group.get() == group) return key;
  }
  for (const auto& [name, entry] : alone_) {
    if (entry->group.get() == group) return name;
  }
  return std::nullopt;
}

std::vector<std::string> GroupTable::names() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> names;
  for (const auto& entry : named_) names.push_back(entry->name);
  return names;
}

bool GroupTable::contains(const std::string& name) const {
  const std::vector<std::string> all = names();
  return name == kWorld || std::find(all.begin(), all.end(), name) != all.end();
}

std::vector<int> GroupTable::ranks(const std::optional<std::string>& name) const {
  return find_or_alone(name)->mine;
}

std::vector<GroupPtr> GroupTable::release() {
  const std::lock_guard lock(mutex_);
  std::vector<GroupPtr> groups;
  for (auto& [key, entry] : unnamed_) groups.push_back(std::move(entry->group));
  for (auto& [name, entry] : alone_) groups.push_back(std::move(entry->group));
  for (auto& entry : named_) groups.push_back(std::move(entry->group));
  groups.push_back(std::move(world_->group));
  std::erase_if(groups, [](const GroupPtr& group) { return !group.defined(); });
  return groups;
}

void GroupTable::check_free(const std::string& name) const {
  if (name.empty()) throw GroupError("a process group needs a name");
  if (!contains(name)) return;
  const std::vector<int> theirs = ranks(name);
  throw GroupError(
      fmt::format("the process group \"{}\" exists already; this rank's has ranks [{}]", name,
                  fmt::join(theirs, ", ")));
}

std::shared_ptr<GroupTable::Entry> GroupTable::find(const std::optional<std::string>& name) const {
  if (!name || *name == kWorld) return world_;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& entry : named_) {
      if (entry->name == *name) return entry;
    }
  }
  const std::vector<std::string> known = names();
  throw UndefinedGroupError(fmt::format(
      "there is no process group \"{}\"; there {}: create it with create_process_subgroup() or "
      "initialize_mesh()",
      *name,
      known.empty() ? "is only \"world\""
                    : fmt::format("are \"world\", \"{}\"", fmt::join(known, "\", \""))));
}

std::shared_ptr<GroupTable::Entry> GroupTable::find_or_alone(
    const std::optional<std::string>& name) const {
  if (name && *name != kWorld && !name->empty() && world_->mine.size() == 1) {
    const std::lock_guard lock(mutex_);
    if (named_.empty()) {
      std::shared_ptr<Entry>& entry = alone_[*name];
      if (!entry) entry = make_entry(*name, {world_->mine});
      return entry;
    }
  }
  return find(name);
}

std::shared_ptr<GroupTable::Entry> GroupTable::make_entry(const std::string& name,
                                                          Partition partition) const {
  auto entry = std::make_shared<Entry>();
  entry->name = name;
  entry->partition = std::move(partition);
  for (const std::vector<int>& ranks : entry->partition) {
    if (std::find(ranks.begin(), ranks.end(), rank_) != ranks.end()) entry->mine = ranks;
  }
  if (entry->mine.empty()) {
    throw GroupError(fmt::format("rank {} is in no group of \"{}\"", rank_, name));
  }
  return entry;
}

GroupPtr GroupTable::ensure(Entry& entry, bool together) {
  // One maker at a time; a second thread waits for the first one's group instead of making its own.
  const std::lock_guard making(entry.making);
  {
    const std::lock_guard lock(mutex_);
    if (entry.group) return entry.group;
  }
  GroupPtr group = maker_(entry.name, entry.mine, together);
  const std::lock_guard lock(mutex_);
  entry.group = group;
  return group;
}

}  // namespace meshrun
