#include "jobs/runtime/elastic.h"

#include <csignal>

#include "jobs/runtime/job.h"
#include "jobs/runtime/stop.h"

namespace meshrun::jobs {

void run_elastic(const std::function<void(ElasticContext& elastic)>& body) {
  ElasticContext elastic({.on_joined = obey_daemon, .stop_requested = stop_requested, .log = {}});
  try {
    elastic.run([&] { body(elastic); });
  } catch (const ElasticStoppedError&) {
    request_stop(SIGTERM);
    throw Stopped();
  }
}

}  // namespace meshrun::jobs
