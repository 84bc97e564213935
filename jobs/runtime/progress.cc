#include "jobs/runtime/progress.h"

#include <iostream>
#include <sstream>
#include <utility>

#include "agent/agent.h"
#include "jobs/runtime/first_line.h"
#include "parallel/manager/distributed_manager.h"

namespace meshrun::jobs {
namespace {

// A note is one line of a table for whoever follows the job.
constexpr size_t kLongestNote = 512;

}  // namespace

Progress::Progress(std::string job, int64_t total_steps, int64_t line_every)
    : job_(std::move(job)), total_steps_(total_steps), line_every_(line_every) {}

void Progress::report(int64_t step, double loss, const std::map<std::string, double>& metrics) {
  const DistributedManager& manager = DistributedManager::get();
  if (agent::Agent* agent = manager.agent()) {
    agent->Report({.step = step, .total_steps = total_steps_, .loss = loss, .metrics = metrics});
  } else if (manager.rank() == 0 && (step % line_every_ == 0 || step == total_steps_)) {
    std::ostringstream line;
    line.precision(4);
    line << job_ << ": step " << step << "/" << total_steps_ << "  loss " << loss;
    for (const auto& [name, value] : metrics) line << "  " << name << " " << value;
    std::cout << line.str() << std::endl;
  }
}

void Progress::finish(int64_t step, const std::map<std::string, double>& metrics,
                      const std::string& summary) {
  const DistributedManager& manager = DistributedManager::get();
  if (agent::Agent* agent = manager.agent()) {
    const absl::Status status = agent->ReportReliably(
        {.step = step,
         .total_steps = total_steps_,
         .metrics = metrics,
         .note = manager.rank() == 0 ? first_line(summary, kLongestNote) : ""});
    if (!status.ok()) {
      std::cerr << job_ << ": the final report did not reach the daemon: " << status.message()
                << std::endl;
    }
  }
  if (manager.rank() == 0) std::cout << summary << std::endl;
}

}  // namespace meshrun::jobs
