// Which ranks of a group see one directory: hosts may share a file system or not.
//
// A probe tells, not a flag: a flag would be wrong after a job has moved.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

namespace meshrun::detail {

// The ranks that see one directory are a site. Sites are in the order of their lowest ranks, which
// lead them: rank 0 leads site 0.
struct Sites {
  std::vector<size_t> of_rank;
  // Worker names of the leaders, by site.
  std::vector<std::string> hosts;

  size_t count() const { return hosts.size(); }
  // By rank: whether it is of this site.
  std::vector<bool> members(size_t site) const;
  bool leads(int rank) const;
};

// Finds the sites of `directory`, which ranks may know under several names, and makes it where it
// is absent. `number`: random, and of this call alone.
//
// One rank of each host writes a file with a new name, and every rank looks which of these files it
// sees. Collective over `group`. Raises CheckpointFileError, the same on all ranks, where a rank
// cannot write or read its file, and where some ranks share a part of what they see.
Sites find_sites(c10d::ProcessGroup& group, c10::Device device, const std::string& directory,
                 const std::string& number);

// Tries the directory on each host (probe_directory()). Collective over `group`. Raises
// CheckpointFileError, the same on all ranks, where a host can write no checkpoint there.
void check_writable(c10d::ProcessGroup& group, c10::Device device, const std::string& directory);

// The first rank of each host, of those that have the same name for the directory.
std::vector<int> first_of_each_host(c10d::ProcessGroup& group, c10::Device device,
                                    const std::string& directory);

}  // namespace meshrun::detail
