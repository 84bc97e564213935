// Clients, each with one job: submit it, as often as it takes to be answered and sometimes once
// more; watch it to its end; maybe cancel it.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "meshrun/v1/job.pb.h"
#include "tests/coordinator/simulation/world.h"

namespace meshrun::coordinator::simulation {

class Client {
 public:
  Client(World& world, v1::JobSpec spec);

  void Submit();
  // Gives up when the job has not been submitted yet.
  void Cancel(bool now);
  // Stops all its ranks for that long, as far as the coordinator knows.
  void Pause(nanoseconds time);
  // Its ranks take no step for that long.
  void StandStill(nanoseconds time);
  const std::string& name() const { return spec_.name(); }
  bool submitted() const { return !job_id_.empty(); }
  // The watch has shown the end of the job.
  bool done() const { return done_; }

 private:
  // To one request. Each is asked for at most 20 s after the one before.
  static constexpr int kMostAnswers = 4;

  void OnSubmitted(const absl::Status& status, const MessagePtr& response);
  // SIGCONT is sent until it is answered.
  void Signal(int signal);
  void Watch();

  World& world_;
  const v1::JobSpec spec_;
  const std::string request_id_;
  std::string job_id_;
  v1::JobState seen_ = v1::JOB_STATE_UNSPECIFIED;
  int answers_ = 0;
  bool watching_ = false;
  bool done_ = false;
};

}  // namespace meshrun::coordinator::simulation
