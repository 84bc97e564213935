// The `meshrun run` calls of this user on this host: other commands find their jobs here.
//
// Each run has a file of mode 0600 in a directory that only this user can enter, and holds a lock
// on it. A file without a lock was left by a run that was killed, and whoever reads the directory
// removes it.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/os/fd.h"
#include "core/rpc/security.h"

namespace meshrun::client {

struct RegisteredRun {
  std::string job_id;
  pid_t pid = 0;
  // How its coordinator is reached, from here.
  std::string address;
  rpc::TlsFiles tls;
  // This host's node in a job of several; empty: the job has this one alone.
  std::string node;
  // The coordinator of a job of several nodes is this run's own.
  bool hosts = false;
};

class RunRegistration {
 public:
  // Beside the default socket of a coordinator: core/rpc/default_address.h. Errors: as there, or as
  // the system says.
  static absl::StatusOr<std::string> DefaultDirectory();
  static absl::StatusOr<RunRegistration> Add(const std::string& directory,
                                             const RegisteredRun& run);

  RunRegistration() = default;
  RunRegistration(RunRegistration&& other) noexcept;
  RunRegistration& operator=(RunRegistration&& other) noexcept;
  ~RunRegistration() { Remove(); }

 private:
  void Remove();

  std::string path_;
  os::UniqueFd lock_;
};

// Runs that live, by job and pid. A directory that is not there has none.
std::vector<RegisteredRun> RegisteredRuns(const std::string& directory);

// The run of the job with this id, else of the only job whose id begins like that; null: no run's.
// `others`: ids of other jobs that begin like that; asked where the ids of runs do, and none is
// equal. INVALID_ARGUMENT: several jobs begin like that; the message names them.
using JobIds = std::function<std::vector<std::string>(const std::string& start)>;
absl::StatusOr<const RegisteredRun*> FindRun(const std::vector<RegisteredRun>& runs,
                                             const std::string& job, const JobIds& others);

}  // namespace meshrun::client
