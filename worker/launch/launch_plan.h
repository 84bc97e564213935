// Turns the coordinator's Prepare into a SupervisorLaunch.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "meshrun/v1/supervisor.pb.h"
#include "worker/launch/log_layout.h"
#include "worker/launch/rank_environment.h"

namespace meshrun::worker {

// Where the files of one generation lie on this host.
struct GenerationPaths {
  // Sockets and records; 0700.
  std::string directory;
  // Output and error files.
  std::string logs;
  // What ranks of another user than the daemon's reach: reports' sockets, error files, stack files
  // and directories of pictures. Empty: they reach the other two.
  std::string ranks = "";
};

// File that a rank's Python writes its frames to when the worker asks for them.
std::string StackFilePath(const GenerationPaths& paths, int rank, uint64_t generation);

// Launches of the ranks whose processes are started for this generation; processes that live on
// into it have theirs already. Pure. `program`: the first word of each rank's argv, found by
// `search` before they start.
v1::SupervisorLaunch MakeLaunch(const v1::GenerationRecord& record, const std::string& program,
                                const std::string& working_dir, const Environment& inherited,
                                const HostFacts& host, const GenerationPaths& paths,
                                std::chrono::nanoseconds lease);

// How the program of `spec` is found: a shipped job below `jobs_dir`, else the first word of the
// command, looked for as execvp would in `working_dir` with the ranks' PATH. Pure.
v1::ProgramSearch SearchFor(const v1::JobSpec& spec, const std::string& jobs_dir,
                            const std::string& working_dir, const Environment& inherited);

// Carries the search out; a file system may hold it up. `on_working_dir` is called once the working
// directory has answered. An error is one sentence.
v1::ProgramFound FindProgram(const v1::ProgramSearch& search,
                             const std::function<void()>& on_working_dir = nullptr);

// Where the ranks run: the spec's, else the daemon's user's home, else "/".
std::string WorkingDirectory(const v1::JobSpec& spec, const Environment& inherited);

}  // namespace meshrun::worker
