// Turns the coordinator's Prepare into a SupervisorLaunch.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "meshrun/v1/supervisor.pb.h"
#include "worker/launch/rank_environment.h"

namespace meshrun::worker {

// Where the files of one generation lie on this host.
struct GenerationPaths {
  // Sockets and records; 0700.
  std::string directory;
  // Output and error files.
  std::string logs;
};

// Pure. `program` is the absolute path that stands for the spec's command or shipped job.
v1::SupervisorLaunch MakeLaunch(const v1::GenerationRecord& record, const std::string& program,
                                const std::string& working_dir, const Environment& inherited,
                                const HostFacts& host, const GenerationPaths& paths,
                                std::chrono::nanoseconds lease);

// Why a generation cannot run on this host.
struct CommandError {
  absl::Status status;
  // It could not run on any other host either.
  bool bad_command = false;
};

// Finds the program of `spec`: a shipped job below `jobs_dir`, else the first word of the command,
// looked for as execvp would in `working_dir` with the ranks' PATH. Returns true and sets
// `program`, or fills `error` with one sentence.
bool ResolveProgram(const v1::JobSpec& spec, const std::string& jobs_dir,
                    const std::string& working_dir, const Environment& inherited,
                    std::string* program, CommandError* error);

// Where the ranks run: the spec's, else the daemon's user's home, else "/".
std::string WorkingDirectory(const v1::JobSpec& spec, const Environment& inherited);

// <logs>/<rank>.stdout.log and so on.
std::string LogPath(const std::string& logs, int rank, v1::LogStream stream);
std::string ErrorFilePath(const std::string& logs, int rank);

}  // namespace meshrun::worker
