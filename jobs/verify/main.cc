// Verifies a site: see docs/verify.md.
//
//   meshrun verify                                   this host
//   meshrun submit --follow --nodes 2 --max-restarts 1 --job verify
//   mpirun -n 2 verify                               as ranks of another launcher
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "jobs/runtime/elastic.h"
#include "jobs/runtime/job.h"
#include "jobs/runtime/stop.h"
#include "jobs/verify/options.h"
#include "jobs/verify/verification.h"
#include "parallel/base/errors.h"
#include "parallel/manager/distributed_manager.h"

namespace meshrun::verify {

class VerificationError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

static void verify(const Options& options) {
  Verification verification(options);
  std::string problem;
  try {
    verification.join();
    jobs::run_elastic([&](ElasticContext& elastic) { verification.run(elastic); });
  } catch (const jobs::Stopped&) {
    throw;
  } catch (const jobs::UsageError&) {
    throw;
  } catch (const EnvironmentError&) {
    throw;
  } catch (const c10::Error& error) {
    // Peers that have stopped first are not wrong.
    if (stop_requested()) throw;
    problem = error.what_without_backtrace();
  } catch (const std::exception& error) {
    if (stop_requested()) throw;
    problem = error.what();
  }
  // Rank 0 may fail, and then ends last. After an exception peers may be gone.
  if (DistributedManager::is_initialized()) {
    DistributedManager::cleanup(/*barrier=*/problem.empty());
  }
  if (!problem.empty()) verification.fail(problem);
  if (verification.is_first()) problem = verification.finish();
  if (!problem.empty()) throw VerificationError(problem);
}

}  // namespace meshrun::verify

int main(int argc, char** argv) {
  meshrun::jobs::run_job("verify", [&] {
    const auto options = meshrun::verify::parse_options(argc, argv);
    if (!options) return;
    // The ranks that went on are on ucx, whatever they began with.
    const char* const restarts = std::getenv("TORCHELASTIC_RESTART_COUNT");
    if (restarts != nullptr && std::string(restarts) != "0") ::setenv("MESHRUN_BACKEND", "ucx", 1);
    // Ranks that do not meet say so within the time of a verification.
    ::setenv("MESHRUN_TIMEOUT_SECONDS", "120", 0);
    meshrun::verify::verify(*options);
  });
}
