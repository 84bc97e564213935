#include "jobs/runtime/job.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <c10/util/Type.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iostream>
#include <sstream>
#include <typeinfo>

#include "agent/agent.h"
#include "core/exit_codes.h"
#include "core/os/cores.h"
#include "jobs/runtime/error_file.h"
#include "jobs/runtime/stop.h"
#include "parallel/base/errors.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/manager/distributed_manager.h"

namespace meshrun::jobs {
namespace {

std::string type_of(const std::exception& error) { return c10::demangle(typeid(error).name()); }

// "geoid", or "geoid: rank 1" in a world of several.
std::string speaker(const std::string& name) {
  if (!DistributedManager::is_initialized()) return name;
  const DistributedManager& manager = DistributedManager::get();
  if (manager.world_size() == 1) return name;
  return name + ": rank " + std::to_string(manager.rank());
}

int report(const std::string& name, const Failure& failure, int exit_code) {
  std::ostringstream line;
  line << speaker(name) << ": " << failure.text << '\n';
  std::cerr << line.str() << std::flush;
  write_error_file(failure);
  return exit_code;
}

int fail(const std::string& name, const Failure& failure, int exit_code) {
  if (stop_requested()) {
    // Peers that stop first break the collectives of those that follow. That is not a failure of
    // this rank.
    std::cerr << speaker(name) << ": stopped by " << strsignal(stop_signal()) << std::endl;
    return kExitSignalBase + stop_signal();
  }
  return report(name, failure, exit_code);
}

int run_body(const std::string& name, const std::function<void()>& body) {
  try {
    body();
    if (DistributedManager::is_initialized()) DistributedManager::cleanup(/*barrier=*/true);
    return kExitOk;
  } catch (const Stopped& stopped) {
    return fail(name, {type_of(stopped), stopped.what(), ""}, kExitJobFailed);
  } catch (const UsageError& error) {
    return fail(name, {type_of(error), error.what(), ""}, kExitUsage);
  } catch (const EnvironmentError& error) {
    return fail(name, {type_of(error), error.what_without_backtrace(), ""}, kExitUsage);
  } catch (const CheckpointFileError& error) {
    // Also on a stop: what was to be saved is lost.
    return report(name, {type_of(error), error.what_without_backtrace(), error.what()},
                  kExitJobFailed);
  } catch (const c10::Error& error) {
    return fail(name, {type_of(error), error.what_without_backtrace(), error.what()},
                kExitJobFailed);
  } catch (const std::exception& error) {
    return fail(name, {type_of(error), error.what(), ""}, kExitJobFailed);
  }
}

}  // namespace

void run_job(const std::string& name, const std::function<void()>& body) noexcept {
  catch_stop_signals();
  const int exit_code = run_body(name, body);
  // Without a barrier: after a failure the peers may be gone.
  if (DistributedManager::is_initialized()) DistributedManager::cleanup();
  std::fflush(nullptr);
  std::quick_exit(exit_code);
}

void obey_daemon() {
  if (agent::Agent* const agent = DistributedManager::get().agent()) {
    agent->OnStop([](const std::string&) { request_stop(SIGTERM); });
  }
}

void join_world() {
  DistributedManager::initialize();
  obey_daemon();
  const DistributedManager& manager = DistributedManager::get();
  if (std::getenv("OMP_NUM_THREADS") == nullptr) {
    const auto processors = static_cast<int>(os::WholeCores());
    at::set_num_threads(std::max(1, processors / manager.local_world_size()));
  }
}

}  // namespace meshrun::jobs
