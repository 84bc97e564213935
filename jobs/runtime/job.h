// The frame around a job's own code: what a program that runs as a rank does at its start and its
// end.
//
//   int main(int argc, char** argv) {
//     return meshrun::jobs::run_job("geoid", [&] { train(parse_options(argc, argv)); });
//   }
//
// A failure becomes one sentence on stderr, an error file for the launcher, and an exit code of
// core/exit_codes.h; a job that was told to stop answers with kExitSignalBase + the signal's
// number.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>

namespace meshrun::jobs {

// The command line or the environment makes no sense: the job ends with kExitUsage.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Runs `body`, leaves the world (DistributedManager::cleanup) where it joined one, and ends the
// process with its exit code; without static destructors, of which LibTorch's operator registry
// alone takes 0.13 s. Stop signals are caught from here on (stop.h). Never raises.
[[noreturn]] void run_job(const std::string& name, const std::function<void()>& body) noexcept;

// Joins the world; asks the rank's daemon, if any, to say when to stop; and, where OMP_NUM_THREADS
// does not say otherwise, gives each rank of this host its share of the processors.
void join_world();
// Asks the rank's daemon, if any, to say when to stop: in each world anew.
void obey_daemon();

}  // namespace meshrun::jobs
