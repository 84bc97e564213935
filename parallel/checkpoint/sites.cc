#include "parallel/checkpoint/sites.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <set>

#include "core/os/files.h"
#include "fmt/format.h"
#include "parallel/base/digest.h"
#include "parallel/base/process.h"
#include "parallel/checkpoint/agreement.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/checkpoint/patience.h"
#include "parallel/checkpoint/step_directories.h"

namespace meshrun::detail {
namespace {

constexpr char kSeen = '1';
constexpr char kUnseen = '0';

// The files by which the ranks of one call find each other.
class Probes {
 public:
  Probes(c10d::ProcessGroup& group, c10::Device device, std::string directory, std::string number)
      : group_(group),
        device_(device),
        directory_(std::move(directory)),
        number_(std::move(number)) {}

  // Collective: these ranks write theirs, and all look.
  void add(const std::vector<int>& ranks) {
    const bool writes = std::ranges::find(ranks, group_.getRank()) != ranks.end();
    together([&]() -> std::string {
      if (!writes) return "";
      absl::Status made = os::MakeDirectories(directory_);
      const std::string own = path_of(group_.getRank());
      if (made.ok()) made = os::WriteFileAtomically(own, number_, 0666, /*sync=*/false);
      return made.ok() ? "" : "cannot create " + std::string(made.message());
    });
    together([&]() -> std::string {
      for (const int rank : ranks) {
        const auto content = os::ReadFile(path_of(rank));
        const bool is_there = content.ok() && *content == number_;
        seen_ += is_there ? kSeen : kUnseen;
        if (is_there || rank != group_.getRank()) continue;
        return "cannot read what was just written: " + path_of(rank);
      }
      return "";
    });
    writers_.insert(writers_.end(), ranks.begin(), ranks.end());
    seen_by_ = gather_texts(group_, device_, seen_);
  }

  // Collective: removes the files.
  void remove() {
    run_patiently(group_, device_, [&] {
      const int own = group_.getRank();
      if (std::ranges::find(writers_, own) != writers_.end()) ::unlink(path_of(own).c_str());
    });
  }

  // By rank: which of the files it sees, a character each.
  const std::vector<std::string>& seen_by() const { return seen_by_; }
  // Ranks that see none.
  std::vector<int> blind() const {
    std::vector<int> ranks;
    for (size_t rank = 0; rank < seen_by_.size(); ++rank) {
      if (seen_by_[rank].find(kSeen) == std::string::npos) ranks.push_back(static_cast<int>(rank));
    }
    return ranks;
  }

 private:
  std::string path_of(int rank) const {
    return fmt::format("{}/.probe-{}-{}", directory_, number_, rank);
  }
  void together(const std::function<std::string()>& work) {
    std::string problem;
    run_patiently(group_, device_, [&] { problem = work(); });
    if (!problem.empty()) {
      problem = fmt::format("rank {} on {}: {}", group_.getRank(), worker_name(), problem);
    }
    problem = common_problem(group_, device_, problem);
    if (!problem.empty()) throw CheckpointFileError(problem);
  }

  c10d::ProcessGroup& group_;
  const c10::Device device_;
  const std::string directory_;
  const std::string number_;
  std::vector<int> writers_;
  std::string seen_;
  std::vector<std::string> seen_by_;
};

// Whether there is a file that both see.
bool share(const std::string& one, const std::string& other) {
  for (size_t i = 0; i < one.size(); ++i) {
    if (one[i] == kSeen && other[i] == kSeen) return true;
  }
  return false;
}

}  // namespace

std::vector<bool> Sites::members(size_t site) const {
  std::vector<bool> members;
  for (const size_t of : of_rank) members.push_back(of == site);
  return members;
}

bool Sites::leads(int rank) const {
  const size_t site = of_rank[static_cast<size_t>(rank)];
  return std::ranges::find(of_rank, site) - of_rank.begin() == rank;
}

std::vector<int> first_of_each_host(c10d::ProcessGroup& group, c10::Device device,
                                    const std::string& directory) {
  std::error_code error;
  const auto path = std::filesystem::absolute(directory, error).lexically_normal();
  const uint64_t own = digest_of(node_identity(node_facts()) + path.string());
  std::set<int64_t> known;
  std::vector<int> first;
  int rank = 0;
  for (const int64_t place : number_by_rank(group, device, static_cast<int64_t>(own))) {
    if (known.insert(place).second) first.push_back(rank);
    ++rank;
  }
  return first;
}

void check_writable(c10d::ProcessGroup& group, c10::Device device, const std::string& directory) {
  const std::vector<int> first = first_of_each_host(group, device, directory);
  const int own = group.getRank();
  std::string problem;
  run_patiently(group, device, [&] {
    if (std::ranges::find(first, own) == first.end()) return;
    const absl::Status status = probe_directory(directory);
    if (status.ok()) return;
    problem = fmt::format(
        "rank {} on {} cannot write checkpoints: {}; give a directory that the ranks' user may "
        "write to on every host",
        own, host_name(), std::string(status.message()));
  });
  problem = common_problem(group, device, problem);
  if (!problem.empty()) throw CheckpointFileError(problem);
}

Sites find_sites(c10d::ProcessGroup& group, c10::Device device, const std::string& directory,
                 const std::string& number) {
  if (group.getSize() == 1) return {{0}, {worker_name()}};
  Probes probes(group, device, directory, number);
  probes.add(first_of_each_host(group, device, directory));
  // Containers may look like one host, and have directories of their own.
  if (const std::vector<int> blind = probes.blind(); !blind.empty()) probes.add(blind);
  probes.remove();
  Sites sites;
  std::vector<std::string> known;
  const std::vector<std::string> names = gather_texts(group, device, worker_name());
  for (size_t rank = 0; rank < names.size(); ++rank) {
    const std::string& seen = probes.seen_by()[rank];
    const auto found = std::ranges::find(known, seen);
    sites.of_rank.push_back(static_cast<size_t>(found - known.begin()));
    if (found != known.end()) continue;
    for (const std::string& other : known) {
      if (!share(seen, other)) continue;
      const auto first = std::ranges::find(probes.seen_by(), other) - probes.seen_by().begin();
      throw CheckpointFileError(
          fmt::format("ranks {} and {} see a part of what the other one sees in {}, and not all of "
                      "it: a directory must be the same one for both, or another one",
                      first, rank, directory));
    }
    known.push_back(seen);
    sites.hosts.push_back(names[rank]);
  }
  return sites;
}

}  // namespace meshrun::detail
