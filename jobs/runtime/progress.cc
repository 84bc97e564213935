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

void Progress::finished(int64_t step, std::optional<double> loss,
                        const std::map<std::string, double>& metrics, const std::string& summary) {
  const bool first = DistributedManager::get().rank() == 0;
  report_reliably({.step = step,
                   .total_steps = total_steps_,
                   .loss = loss,
                   .metrics = metrics,
                   .note = first ? first_line(summary, kLongestNote) : ""});
}

void Progress::stopped(int64_t step, double loss, const std::map<std::string, double>& metrics) {
  report_reliably(
      {.step = step, .total_steps = total_steps_, .loss = loss, .metrics = metrics, .note = ""});
}

void Progress::report_reliably(const agent::Progress& progress) const {
  const std::string problem = agent::ReportReliably(DistributedManager::get().agent(), progress);
  if (problem.empty()) return;
  std::cerr << job_ << ": the final report did not reach the daemon: " << problem << std::endl;
}

}  // namespace meshrun::jobs
