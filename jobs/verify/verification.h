// All stages of `verify`, on one rank.
//
// run() is the body of an ElasticContext: the last stage kills a rank, and the next world ends it.
// A rank that is lost before that stage ends the verification: the report says in which stage.
// A rank that was asked to stop stops all of them after the stage: run() raises jobs::Stopped.
// Every stage has a deadline, and all of them have one; a rank that is late ends its process, and
// so the job.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/mutex.h"
#include "jobs/verify/options.h"
#include "jobs/verify/report.h"
#include "jobs/verify/scratch_directory.h"
#include "jobs/verify/stage.h"
#include "jobs/verify/stage_clock.h"
#include "parallel/elastic/elastic_context.h"

namespace meshrun::verify {

class Verification {
 public:
  explicit Verification(const Options& options);

  bool is_first() const { return rank_ == 0; }
  // Joins the world. Rank 0 first puts its file in the place of a former one. Raises
  // jobs::UsageError where the file has no directory, and what jobs::join_world() raises.
  void join();
  // In each world. Collective. Where a lost peer's error leaves it, the deadline for all stages
  // holds until the next call, or until fail().
  void run(ElasticContext& elastic);
  // Something outside a stage went wrong, and there will be no other one.
  void fail(const std::string& problem);
  // On rank 0: writes the file and prints the last lines. Returns the first wrong thing, or
  // nothing. Raises std::runtime_error where the file cannot be written.
  std::string finish();

 private:
  // Before the recovery, within it, or after it: of a rank, and the greatest of all ranks.
  enum Phase : int64_t { kBegins = 0, kIsUnderWay = 1, kKills = 2, kIsOver = 3 };

  void run_in_world(ElasticContext& elastic);
  void stages();
  void check_files(Stage& stage);
  // Kills a rank; the other ranks leave it by the error of a lost peer.
  void recovery(ElasticContext& elastic);
  // In the world after that.
  void go_on(ElasticContext& elastic);
  // For each new row.
  void keep(const std::string& line);
  // Writes the file, so that a loss of all ranks leaves what they had found. From any thread;
  // nothing is written after a finished one.
  void save(bool is_finished);
  // The file of a rank 0 that was started again keeps its rows.
  void begin_file();
  void run_stage(const std::string& name, std::chrono::seconds limit,
                 const std::function<void(Stage& stage)>& body);
  // What is left of it now, on this rank: rank 0 is the first to be late.
  std::chrono::seconds limit_here(std::chrono::seconds limit) const;
  Phase common_phase();
  // For all calls in the present world, and for the clock's thread.
  void enter_world();
  std::shared_ptr<Exchange> exchange() const;
  std::shared_ptr<agent::Agent> agent() const;
  // On the clock's thread.
  std::string who_is_late() const;
  // On the clock's thread; ends the process.
  [[noreturn]] void end_late(const std::string& stage, std::chrono::seconds limit);

  const Options options_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  // Before join() as the launcher says it; -1: it does not.
  int rank_;
  Phase phase_ = kBegins;
  bool are_collectives_right_ = true;
  int64_t stages_done_ = 0;
  // When a rank was killed, as rank 0 knows it.
  std::chrono::steady_clock::time_point killed_;
  // File that this rank writes when the last one is killed; empty: it was there before.
  std::string planted_record_;
  Report report_;
  mutable Mutex mutex_;
  // Empty between two worlds.
  std::shared_ptr<Exchange> exchange_ MESHRUN_GUARDED_BY(mutex_);
  // The agent of the last world; the manager has none between two.
  std::shared_ptr<agent::Agent> agent_ MESHRUN_GUARDED_BY(mutex_);
  // While there may be a checkpoint.
  std::shared_ptr<ScratchDirectory> scratch_ MESHRUN_GUARDED_BY(mutex_);
  // Held while the file is written: else an older one could take a newer one's place.
  Mutex file_mutex_;
  bool is_file_finished_ MESHRUN_GUARDED_BY(file_mutex_) = false;
  StageClock clock_;
  // From a world that has lost a rank to the next one.
  std::optional<StageClock::Running> between_worlds_;
};

}  // namespace meshrun::verify
