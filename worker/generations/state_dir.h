// A worker daemon's state directory:
//
//   lock                            held while the daemon runs
//   node.json                       node_id, incarnation, cluster_id
//   agent.sock                      where a probe asks the daemon for its health
//   j/<short>/agent.sock            where the ranks of one job reach the daemon
//   g/<short>/                      one generation: record, launch, sup.sock, r<rank>.sock, final
//   logs/<job_id>/<generation>/     <rank>.stdout.log, <rank>.stderr.log, <rank>.error.json,
//                                   <rank>.pictures/
//
// Only the owner can enter a directory (0700), and every file that the daemon writes has mode 0600.
// If ranks run as the daemon's user, that user owns the jobs' directories too; otherwise see
// OpenToRanks.
//
// Sockets' paths must fit 107 bytes: when the state directory's is too long, agent.sock, j/ and g/
// lie in a short directory of this user's under $XDG_RUNTIME_DIR or /tmp instead.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/ids.h"
#include "core/os/fd.h"

namespace meshrun::worker {

class StateDir {
 public:
  // Creates what is missing, locks, and begins a new incarnation. Errors: FAILED_PRECONDITION
  // (another daemon uses it), PERMISSION_DENIED (other users can enter it), those of the file
  // system.
  // `join_cluster`: leaves the cluster that the directory belongs to for this one; empty: stays.
  static absl::StatusOr<StateDir> Open(const std::string& path, IdSource& ids,
                                       const std::string& join_cluster = "");
  // Ranks run as other users: from now on jobs' directories lie where those users reach them, below
  // /run/meshrun-ranks. The directories are root's, and nobody can list or write them; what a rank
  // may use in its job's directory belongs to the rank's user. Errors: from the file system.
  absl::Status OpenToRanks();
  bool open_to_ranks() const { return !ranks_dir_.empty(); }

  const std::string& node_id() const { return node_id_; }
  uint64_t incarnation() const { return incarnation_; }
  // The cluster that this directory belongs to; empty: none yet.
  const std::string& cluster_id() const { return cluster_id_; }
  // OK: this coordinator may command the ranks here. FAILED_PRECONDITION: it is a stranger.
  absl::Status CheckCluster(const std::string& cluster_id) const;
  // The first cluster that welcomes this node is its own from now on. A second call changes
  // nothing.
  absl::Status JoinCluster(const std::string& cluster_id);
  // The highest term of this cluster that this host knows: it hears no coordinator of a lower one.
  uint64_t term() const { return term_; }
  absl::Status KeepTerm(uint64_t term);

  std::string AgentSocket() const { return run_dir_ + "/agent.sock"; }
  // Holds the job's agent.sock alone.
  std::string JobDirectory(const std::string& job_id) const;
  // Those of an earlier incarnation too.
  std::vector<std::string> JobDirectories() const;
  std::string GenerationDirectory(const std::string& job_id, uint64_t generation) const;
  // Holds a directory per job, and those one per generation.
  std::string LogRoot() const { return path_ + "/logs"; }
  std::string LogDirectory(const std::string& job_id, uint64_t generation) const;
  // Directories of generations, left by an earlier incarnation too.
  std::vector<std::string> GenerationDirectories() const;

 private:
  absl::Status WriteNode() const;

  std::string path_;
  std::string run_dir_;
  std::string node_id_;
  uint64_t incarnation_ = 0;
  std::string cluster_id_;
  uint64_t term_ = 0;
  std::string ranks_dir_;
  os::UniqueFd lock_;
};

}  // namespace meshrun::worker
