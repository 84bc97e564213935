#include "worker/launch/launch_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "core/env_entries.h"
#include "core/job_spec.h"
#include "core/os/process.h"
#include "core/proto_time.h"
#include "core/utf8.h"
#include "worker/launch/shipped_jobs.h"
#include "worker/pictures/picture_paths.h"

namespace meshrun::worker {
namespace {

// The lesser of the host's and the job's; 0 is none.
uint64_t LogLimit(uint64_t host, uint64_t job) {
  if (host == 0 || job == 0) return std::max(host, job);
  return std::min(host, job);
}

}  // namespace

std::string StackFilePath(const GenerationPaths& paths, int rank, uint64_t generation) {
  return fmt::format("{}/s{}.{}", paths.ranks.empty() ? paths.directory : paths.ranks, rank,
                     generation);
}

v1::SupervisorLaunch MakeLaunch(const v1::GenerationRecord& record, const std::string& program,
                                const std::string& working_dir, const Environment& inherited,
                                const HostFacts& host, const GenerationPaths& paths,
                                std::chrono::nanoseconds lease) {
  const v1::Prepare& prepare = record.prepare();
  v1::SupervisorLaunch launch;
  *launch.mutable_fence() = record.fence();
  *launch.mutable_lease() = ToProtoDuration(lease);
  *launch.mutable_kill_grace() = ToProtoDuration(KillGrace(prepare.spec()));
  const uint64_t generation = record.fence().generation();
  const auto starts = [generation](const v1::RankAssignment& rank) {
    return rank.process_generation() == 0 || rank.process_generation() == generation;
  };
  const bool first = std::all_of(prepare.ranks().begin(), prepare.ranks().end(), starts);
  for (int i = 0; i < prepare.ranks_size(); ++i) {
    if (!starts(prepare.ranks(i))) continue;
    const int rank = prepare.ranks(i).rank();
    v1::RankLaunch& out = *launch.add_ranks();
    out.set_rank(rank);
    out.set_generation(generation);
    out.add_argv(program);
    // The first word of a command is the program itself; a shipped job's command is arguments only.
    for (int a = prepare.spec().shipped_job().empty() ? 1 : 0; a < prepare.spec().command_size();
         ++a) {
      out.add_argv(prepare.spec().command(a));
    }
    out.set_working_dir(working_dir);
    out.set_log_limit_bytes(LogLimit(host.log_limit_bytes, prepare.spec().log_bytes()));
    const std::string& job_id = record.fence().job_id();
    const auto log = [&](v1::LogStream stream) {
      return host.log_layout.Path(paths.logs, job_id, generation, rank, stream);
    };
    out.set_stdout_path(log(v1::LOG_STREAM_STDOUT));
    out.set_stderr_path(log(v1::LOG_STREAM_STDERR));
    out.set_error_file(paths.ranks.empty()
                           ? host.log_layout.ErrorFile(paths.logs, job_id, generation, rank)
                           : fmt::format("{}/e{}.{}.json", paths.ranks, rank, generation));
    out.set_report_socket(!paths.ranks.empty()
                              ? fmt::format("{}/r{}.{}", paths.ranks, rank, generation)
                          : first ? fmt::format("{}/r{}.sock", paths.directory, rank)
                                  : fmt::format("{}/r{}.{}", paths.directory, rank, generation));
    out.set_stack_file(StackFilePath(paths, rank, generation));
    out.set_picture_directory(PicturesPath(paths.ranks, paths.logs, rank, generation));
    if (const std::string& events = prepare.spec().tensorboard(); !events.empty()) {
      const std::filesystem::path directory = std::filesystem::path(working_dir) / events;
      out.set_event_directory(fmt::format("{}/{}/rank{}", directory.string(), job_id, rank));
    }
    if (!host.cores_of_ranks.empty()) {
      const os::CoreSet& cores = host.cores_of_ranks[static_cast<size_t>(i)];
      out.mutable_cores()->Assign(cores.begin(), cores.end());
    }
    const Environment env = RankEnvironment(inherited, record, i, host, out);
    for (const auto& [name, value] : env) SetEnv(*out.mutable_env(), name, value);
  }
  return launch;
}

v1::ProgramSearch SearchFor(const v1::JobSpec& spec, const std::string& jobs_dir,
                            const std::string& working_dir, const Environment& inherited) {
  v1::ProgramSearch search;
  search.set_working_dir(working_dir);
  if (!spec.shipped_job().empty()) {
    search.set_shipped_job(spec.shipped_job());
    search.set_jobs_dir(jobs_dir);
    search.set_gpus(spec.gpus_per_proc() > 0);
    return search;
  }
  if (spec.command_size() > 0) search.set_command(spec.command(0));
  const std::string* const path = FindEnv(spec.env(), "PATH");
  const auto own = inherited.find("PATH");
  search.set_path_variable(path != nullptr          ? *path
                           : own != inherited.end() ? own->second
                                                    : "/usr/local/bin:/usr/bin:/bin");
  return search;
}

v1::ProgramFound FindProgram(const v1::ProgramSearch& search,
                             const std::function<void()>& on_working_dir) {
  v1::ProgramFound out;
  std::error_code ignored;
  if (!std::filesystem::is_directory(search.working_dir(), ignored)) {
    out.set_error(fmt::format("working directory {} does not exist on this host",
                              EscapeBytes(search.working_dir())));
    out.set_bad_command(true);
    return out;
  }
  if (on_working_dir) on_working_dir();
  const absl::StatusOr<std::string> found =
      search.shipped_job().empty()
          ? os::FindCommand(search.command(), search.working_dir(), search.path_variable())
          : FindShippedJob(search.jobs_dir(), search.shipped_job(), search.gpus());
  if (found.ok()) {
    out.set_program(*found);
  } else {
    out.set_error(EscapeBytes(std::string(found.status().message())));
    out.set_bad_command(true);
  }
  return out;
}

std::string WorkingDirectory(const v1::JobSpec& spec, const Environment& inherited) {
  if (!spec.working_dir().empty()) return spec.working_dir();
  const auto home = inherited.find("HOME");
  return home != inherited.end() && !home->second.empty() ? home->second : "/";
}

}  // namespace meshrun::worker
