// The named process groups of a rank: their ranks, and the groups themselves once connected.
//
// A declaration partitions the world, the same on every rank, so every rank makes every check
// before anything is sent. A rank connects only its own group of a name, over store keys that
// contain the group's name and ranks.
//
// Thread-safe. Making a group waits for its other members and holds that group's own lock alone.
// Errors: GroupError, UndefinedGroupError, and what the maker raises.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "c10/util/intrusive_ptr.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun {

// Global ranks of every group of one name; each rank is in exactly one.
using Partition = std::vector<std::vector<int>>;

class GroupTable {
 public:
  // Makes the group of `ranks`, this rank's own. `together`: all ranks of the world are making
  // their group of that name at this moment.
  using Maker = std::function<c10::intrusive_ptr<c10d::ProcessGroup>(
      const std::string& name, const std::vector<int>& ranks, bool together)>;

  GroupTable(int rank, int world_size, Maker maker);

  // The partition of every group of `parent` (the world where absent) into contiguous blocks of
  // `size`.
  Partition split(const std::string& name, int size,
                  const std::optional<std::string>& parent) const;
  // The partition in which ranks with the same position in `name` form a group.
  Partition transpose(const std::string& orthogonal_name, const std::string& name) const;

  // Makes a name known; the group follows at first use. GroupError where the name is taken.
  void declare(const std::string& name, Partition partition);
  void forget(const std::string& name);

  // In a world of one rank without any named group every name is a group of that rank: a program
  // that asks for its mesh's axes also runs alone.
  c10::intrusive_ptr<c10d::ProcessGroup> group(const std::optional<std::string>& name);
  // As group(), at first use: called by all ranks of the world at the same point.
  void make_together(const std::string& name);
  // The group of `ranks`, under a name that declare() never sees.
  c10::intrusive_ptr<c10d::ProcessGroup> unnamed_group(const std::string& key,
                                                       const std::vector<int>& ranks);
  // Absent if the handle is not from here.
  std::optional<std::string> name_of(const c10d::ProcessGroup* group) const;

  std::vector<std::string> names() const;
  bool contains(const std::string& name) const;
  // This rank's group; alone as for group().
  std::vector<int> ranks(const std::optional<std::string>& name) const;

  // Takes every group out, the world last.
  std::vector<c10::intrusive_ptr<c10d::ProcessGroup>> release();

 private:
  struct Entry {
    std::string name;
    Partition partition;
    std::vector<int> mine;
    std::mutex making;
    // Written under `making` and mutex_.
    c10::intrusive_ptr<c10d::ProcessGroup> group;
  };

  void check_free(const std::string& name) const;
  std::shared_ptr<Entry> find(const std::optional<std::string>& name) const;
  std::shared_ptr<Entry> find_or_alone(const std::optional<std::string>& name) const;
  std::shared_ptr<Entry> make_entry(const std::string& name, Partition partition) const;
  c10::intrusive_ptr<c10d::ProcessGroup> ensure(Entry& entry, bool together = false);

  const int rank_;
  const Maker maker_;
  mutable std::mutex mutex_;
  std::shared_ptr<Entry> world_;
  std::vector<std::shared_ptr<Entry>> named_;
  std::map<std::string, std::shared_ptr<Entry>> unnamed_;
  // Those of a rank alone that nobody declared.
  mutable std::map<std::string, std::shared_ptr<Entry>> alone_;
};

}  // namespace meshrun
