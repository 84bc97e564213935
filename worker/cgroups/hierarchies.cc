#include "worker/cgroups/hierarchies.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>
#include <string_view>

namespace meshrun::worker {
namespace {

std::vector<std::string> SplitAt(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

// Spaces in mountinfo are written as \040.
std::string Unescape(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size()) {
      out += static_cast<char>(std::stoi(text.substr(i + 1, 3), nullptr, 8));
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

struct Mount {
  std::string root;
  std::string point;
  bool unified = false;
  std::vector<std::string> options;
};

// "31 23 0:32 <root> <mount point> rw,relatime [...] - cgroup cgroup rw,memory"
std::vector<Mount> ReadMounts(const std::string& mountinfo) {
  std::vector<Mount> mounts;
  std::ifstream file(mountinfo);
  for (std::string line; std::getline(file, line);) {
    const size_t dash = line.find(" - ");
    if (dash == line.npos) continue;
    const std::vector<std::string> before = SplitAt(line.substr(0, dash), ' ');
    const std::vector<std::string> after = SplitAt(line.substr(dash + 3), ' ');
    if (before.size() < 6 || after.size() < 3) continue;
    if (after[0] != "cgroup" && after[0] != "cgroup2") continue;
    mounts.push_back(
        {Unescape(before[3]), Unescape(before[4]), after[0] == "cgroup2", SplitAt(after[2], ',')});
  }
  return mounts;
}

// Where the group `path` lies below `mount`.
std::string DirectoryOf(const Mount& mount, std::string path) {
  const std::string root = mount.root == "/" ? "" : mount.root;
  if (path.starts_with(root + "/") || path == root) {
    path.erase(0, root.size());
  } else {
    path.clear();
  }
  return path == "/" ? mount.point : mount.point + path;
}

}  // namespace

std::vector<v1::ControlGroup::Hierarchy> FindHierarchies(const std::string& membership,
                                                         const std::string& mounts) {
  const std::vector<Mount> mounted = ReadMounts(mounts);
  std::vector<v1::ControlGroup::Hierarchy> found;
  std::ifstream file(membership);
  // "4:memory:/user.slice"; version 2: "0::/user.slice".
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = first == line.npos ? line.npos : line.find(':', first + 1);
    if (second == line.npos) continue;
    const auto names = SplitAt(line.substr(first + 1, second - first - 1), ',');
    const auto mount = std::find_if(mounted.begin(), mounted.end(), [&](const Mount& each) {
      if (names.empty()) return each.unified;
      return !each.unified &&
             std::find(each.options.begin(), each.options.end(), names[0]) != each.options.end();
    });
    if (mount == mounted.end()) continue;
    v1::ControlGroup::Hierarchy& hierarchy = found.emplace_back();
    hierarchy.set_directory(DirectoryOf(*mount, line.substr(second + 1)));
    hierarchy.set_unified(names.empty());
    hierarchy.mutable_controllers()->Add(names.begin(), names.end());
  }
  return found;
}

bool Has(const v1::ControlGroup::Hierarchy& hierarchy, std::string_view controller) {
  const auto& all = hierarchy.controllers();
  return std::find(all.begin(), all.end(), controller) != all.end();
}

}  // namespace meshrun::worker
