// The world ranks of a group, by rank in the group. Copies share one list: a job of 10,000 ranks
// that are all blocked in one group has it once.
#pragma once

#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

namespace meshrun {

class GroupMembers {
 public:
  GroupMembers() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): it is that list.
  GroupMembers(std::vector<int> ranks)
      : ranks_(std::make_shared<const std::vector<int>>(std::move(ranks))) {}
  GroupMembers(std::initializer_list<int> ranks) : GroupMembers(std::vector<int>(ranks)) {}

  const std::vector<int>& ranks() const {
    static const std::vector<int> none;
    return ranks_ == nullptr ? none : *ranks_;
  }
  auto begin() const { return ranks().begin(); }
  auto end() const { return ranks().end(); }
  size_t size() const { return ranks().size(); }
  bool empty() const { return ranks().empty(); }

  // At once where both share their list.
  friend bool operator==(const GroupMembers& a, const GroupMembers& b) {
    return a.ranks_ == b.ranks_ || a.ranks() == b.ranks();
  }
  friend bool operator<(const GroupMembers& a, const GroupMembers& b) {
    return a.ranks_ != b.ranks_ && a.ranks() < b.ranks();
  }

 private:
  std::shared_ptr<const std::vector<int>> ranks_;
};

}  // namespace meshrun
