#include "core/os/cores.h"

#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/os/core_set.h"
#include "core/parse_integer.h"

namespace meshrun::os {
namespace {

std::optional<std::string> FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  return line;
}

// Converts a quota (CPU time per period, in the same unit) to cores; 0 for none ("max", "-1").
double CoresOf(std::string_view quota, std::string_view period) {
  const auto used = ParseInteger<int64_t>(quota);
  const auto of = ParseInteger<int64_t>(period);
  if (!used || !of || *used <= 0 || *of <= 0) return 0;
  return static_cast<double>(*used) / static_cast<double>(*of);
}

// "150000 100000"; "max 100000" is none.
double QuotaOfVersion2(const std::string& directory) {
  const std::string line = FirstLine(directory + "/cpu.max").value_or("");
  const std::string_view words = line;
  const size_t space = words.find(' ');
  if (space == std::string_view::npos) return 0;
  return CoresOf(words.substr(0, space), words.substr(space + 1));
}

// A quota of -1 is none.
double QuotaOfVersion1(const std::string& directory) {
  return CoresOf(FirstLine(directory + "/cpu.cfs_quota_us").value_or(""),
                 FirstLine(directory + "/cpu.cfs_period_us").value_or(""));
}

bool HasController(std::string_view controllers, std::string_view name) {
  while (!controllers.empty()) {
    const size_t end = std::min(controllers.find(','), controllers.size());
    if (controllers.substr(0, end) == name) return true;
    controllers.remove_prefix(std::min(end + 1, controllers.size()));
  }
  return false;
}

// Containers that see their own cgroup alone call it by the same path.
uint64_t NumberOf(const std::string& directory) {
  struct stat info = {};
  return ::stat(directory.c_str(), &info) == 0 ? info.st_ino : 0;
}

// From `path` below `mount` up to `mount` itself.
void TakeLeast(const std::string& mount, std::string path, double (*read)(const std::string&),
               CpuQuota* least) {
  while (true) {
    const std::string directory = mount + path;
    const double cores = read(directory);
    if (cores > 0 && (least->cores == 0 || cores < least->cores))
      *least = {cores, NumberOf(directory)};
    if (path.empty()) return;
    path.erase(path.rfind('/'));
  }
}

}  // namespace

CpuQuota FindCpuQuota(const std::string& membership, const std::string& root) {
  CpuQuota least;
  std::ifstream file(membership);
  // "<hierarchy>:<controllers>:<path>"; version 2 has no controllers.
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = first == line.npos ? line.npos : line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string path = line.substr(second + 1);
    if (path.empty() || path[0] != '/') continue;
    if (path == "/") path.clear();
    if (controllers.empty()) {
      TakeLeast(root, path, QuotaOfVersion2, &least);
    } else if (HasController(controllers, "cpu")) {
      TakeLeast(root + "/cpu", path, QuotaOfVersion1, &least);
    }
  }
  return least;
}

int CoresOfAffinity() { return std::max(1, static_cast<int>(OwnCores().size())); }

double UsableCores(const CpuQuota& quota) {
  const double cores = CoresOfAffinity();
  return quota.cores > 0 ? std::min(cores, quota.cores) : cores;
}

uint32_t WholeCores(const CpuQuota& quota) {
  return static_cast<uint32_t>(std::ceil(UsableCores(quota)));
}

}  // namespace meshrun::os
