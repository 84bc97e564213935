#include "jobs/verify/verification.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <random>

#include "ATen/Functions.h"
#include "agent/agent.h"
#include "core/exit_codes.h"
#include "jobs/runtime/all_reduce.h"
#include "jobs/runtime/error_file.h"
#include "jobs/runtime/job.h"
#include "jobs/runtime/stop.h"
#include "jobs/runtime/words.h"
#include "jobs/verify/conformance.h"
#include "jobs/verify/host_facts.h"
#include "jobs/verify/persistence.h"
#include "jobs/verify/rates.h"
#include "jobs/verify/topology.h"
#include "parallel/checkpoint/atomic_file.h"
#include "parallel/comm/flight_record_file.h"
#include "parallel/manager/distributed_manager.h"
#include "parallel/manager/environment.h"

namespace meshrun::verify {
namespace {

using std::chrono::seconds;

constexpr seconds kStageLimit{30};
// So that rank 0 is the first to end, with the report.
constexpr seconds kOthersWait{3};
// Until another rank has taken a lost one's place.
constexpr seconds kNextWorld{60};

// How often this job was started again so far.
int restarts() {
  const char* const text = std::getenv("TORCHELASTIC_RESTART_COUNT");
  return text == nullptr ? 0 : std::atoi(text);
}

// Empty outside meshrun, where no job is started again.
std::string job_id() {
  const char* const text = std::getenv("MESHRUN_JOB_ID");
  return text == nullptr ? "" : text;
}

int launched_rank() {
  const EnvironmentLookup lookup = process_environment();
  // Where the environment is half set, joining says what is missing.
  const auto environment = detect_environment(lookup);
  if (!environment.ok()) return -1;
  if (environment->method != LaunchMethod::kCoordinator) return environment->rank;
  return lookup("RANK") == "0" ? 0 : -1;
}

constexpr char kMeeting[] = "meeting";
constexpr char kToItsEnd[] = "all ranks to its end";
constexpr char kWithoutCollectives[] = "collectives are wrong here, and all of it uses them";

void print(const std::string& line) { std::cout << line + "\n" << std::flush; }

}  // namespace

Verification::Verification(const Options& options)
    : options_(options),
      rank_(launched_rank()),
      report_(job_id(), [this](const std::string& line) { keep(line); }),
      clock_([this](const std::string& stage, seconds limit) { end_late(stage, limit); }) {
  report_.replace(options_.directory, "<dir>");
  for (const std::string& name : names_here()) report_.replace(name, "<name>");
}

Verification::Phase Verification::common_phase() {
  DistributedManager& manager = DistributedManager::get();
  const at::Tensor phase = jobs::all_reduced(*manager.world(), manager.device(),
                                             at::full({1}, static_cast<int64_t>(phase_), at::kLong),
                                             c10d::ReduceOp::MAX);
  return static_cast<Phase>(phase.item<int64_t>());
}

void Verification::keep(const std::string& line) {
  print(line);
  save(/*is_finished=*/false);
}

void Verification::save(bool is_finished) {
  if (options_.report.empty()) return;
  const MutexLock lock(file_mutex_);
  if (is_file_finished_) return;
  write_file_atomically(options_.report,
                        report_.file(std::chrono::steady_clock::now() - start_, is_finished));
  is_file_finished_ = is_finished;
}

void Verification::begin_file() {
  if (options_.report.empty()) return;
  if (const std::string problem = jobs::check_directory(options_.report); !problem.empty()) {
    throw jobs::UsageError("--report: " + problem);
  }
  if (restarts() > 0 && std::filesystem::exists(options_.report) &&
      report_.take_up(read_file(options_.report))) {
    return print("verify: goes on with the report of the ranks that were lost");
  }
  // What stays there if the ranks never meet must not be the verdict of a former run.
  save(/*is_finished=*/false);
}

void Verification::join() {
  if (rank_ == 0) begin_file();
  jobs::join_world();
  rank_ = DistributedManager::get().rank();
}

void Verification::enter_world() {
  auto exchange = std::make_shared<Exchange>();
  auto agent = DistributedManager::get().shared_agent();
  const MutexLock lock(mutex_);
  exchange_ = std::move(exchange);
  agent_ = std::move(agent);
}

std::shared_ptr<Exchange> Verification::exchange() const {
  const MutexLock lock(mutex_);
  return exchange_;
}

std::shared_ptr<agent::Agent> Verification::agent() const {
  const MutexLock lock(mutex_);
  return agent_;
}

seconds Verification::limit_here(seconds limit) const {
  return stage_limit(limit, std::chrono::steady_clock::now() - start_) +
         (rank_ == 0 ? seconds(0) : kOthersWait);
}

void Verification::run(ElasticContext& elastic) {
  between_worlds_.reset();
  try {
    run_in_world(elastic);
  } catch (...) {
    {
      const MutexLock lock(mutex_);
      exchange_.reset();
    }
    between_worlds_.emplace(clock_, clock_.stage(), limit_here(kNextWorld));
    throw;
  }
}

void Verification::run_in_world(ElasticContext& elastic) {
  Phase phase = kBegins;
  {
    const StageClock::Running meeting(clock_, kMeeting, limit_here(kStageLimit));
    enter_world();
    phase = common_phase();
  }
  const bool is_anew = phase == kBegins && restarts() > 0;
  if (phase == kIsUnderWay || is_anew) {
    const std::string last = report_.last_stage();
    fail("a rank was lost" + (last.empty() ? "" : " in the stage '" + last + "' or the next") +
         ": its log and 'meshrun why' say how it ended");
    return;
  }
  if (phase == kBegins) {
    phase_ = kIsUnderWay;
    stages();
    recovery(elastic);
  } else if (phase == kKills) {
    phase_ = kKills;
    go_on(elastic);
  }
  phase_ = kIsOver;
}

void Verification::stages() {
  if (rank_ == 0) print(heading());
  Hosts hosts = find_hosts();
  run_stage("topology", kStageLimit,
            [&](Stage& stage) { describe_topology(stage, report_, hosts); });
  if (!options_.gpu_check.empty()) {
    run_stage("kernels", kStageLimit, [&](Stage& stage) {
      const std::string& result = options_.gpu_check;
      stage.judge("gpu-check",
                  {result == "passed"   ? Result::kOk
                   : result == "failed" ? Result::kWrong
                                        : Result::kNotRun,
                   result == "no-gpu" ? "no GPU" : result + ": its table stands before this one"});
    });
  }
  run_stage("clocks", kStageLimit, [&](Stage& stage) { measure_clocks(stage, hosts); });
  run_stage("memory", kStageLimit, [&](Stage& stage) { measure_memory(stage, hosts); });
  double link = 0;
  run_stage("links", kStageLimit, [&](Stage& stage) { link = measure_links(stage, hosts); });
  run_stage("collectives", kStageLimit, [&](Stage& stage) {
    check_collectives(stage);
    measure_collectives(stage, hosts, link);
    const bool is_wrong = rank_ == 0 && report_.is_wrong("collectives");
    are_collectives_right_ = stage.exchange().tell(is_wrong ? "wrong" : "") != "wrong";
  });
  // What stands on them would only fail in other words, or hang.
  if (!are_collectives_right_) {
    for (const char* name : {"transforms", "shards", "files"}) {
      run_stage(name, kStageLimit, [](Stage& stage) { stage.not_run("all", kWithoutCollectives); });
    }
    return;
  }
  run_stage("transforms", kStageLimit, [](Stage& stage) { check_transforms(stage); });
  run_stage("shards", kStageLimit, [](Stage& stage) { check_shards(stage); });
  run_stage("files", 2 * kStageLimit, [&](Stage& stage) { check_files(stage); });
}

void Verification::check_files(Stage& stage) {
  const std::string name =
      stage.exchange().tell(jobs::format("meshrun-verify-%08x", std::random_device()()));
  const auto scratch = std::make_shared<ScratchDirectory>(
      (std::filesystem::path(options_.directory) / name).string());
  const auto keep = [this](std::shared_ptr<ScratchDirectory> present) {
    const MutexLock lock(mutex_);
    scratch_.swap(present);
  };
  keep(scratch);
  check_checkpoint(stage, scratch->path());
  keep(nullptr);
}

void Verification::recovery(ElasticContext& elastic) {
  const std::string reason = are_collectives_right_ ? why_no_recovery() : kWithoutCollectives;
  if (reason.empty()) {
    const StageClock::Running moving(clock_, "recovery", limit_here(kStageLimit));
    move_to_ucx();
    enter_world();
  }
  run_stage("recovery", kStageLimit, [&](Stage& stage) {
    if (!reason.empty()) return stage.not_run("a rank is killed, and the job goes on", reason);
    if (rank_ == 0) print("verify: ends the last rank by SIGKILL now, on purpose");
    const std::string record = flight_record_path(rank_);
    if (!std::filesystem::exists(record)) planted_record_ = record;
    phase_ = kKills;
    killed_ = std::chrono::steady_clock::now();
    check_recovery(stage, elastic, std::nullopt);
  });
}

void Verification::go_on(ElasticContext& elastic) {
  // It tells of the loss that was wanted.
  std::error_code ignored;
  if (!planted_record_.empty()) std::filesystem::remove(planted_record_, ignored);
  run_stage("recovery", kStageLimit,
            [&](Stage& stage) { check_recovery(stage, elastic, killed_); });
}

void Verification::run_stage(const std::string& name, seconds limit,
                             const std::function<void(Stage& stage)>& body) {
  if (const auto agent = this->agent()) {
    agent->Report(
        {.step = stages_done_, .total_steps = options_.gpu_check.empty() ? 9 : 10, .note = name});
  }
  const StageClock::Running running(clock_, name, limit_here(limit));
  const std::shared_ptr<Exchange> exchange = this->exchange();
  Stage stage(name, *exchange, report_);
  body(stage);
  // All ranks leave after the same stage, with what they clean up.
  if (exchange->any(stop_requested())) {
    stop_together();
    throw jobs::Stopped();
  }
  ++stages_done_;
}

void Verification::fail(const std::string& problem) {
  between_worlds_.reset();
  if (rank_ != 0) return;
  const std::string stage = clock_.stage();
  report_.add({stage.empty() ? kMeeting : stage, kToItsEnd, Result::kWrong, problem});
}

std::string Verification::finish() {
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start_;
  save(/*is_finished=*/true);
  if (!options_.report.empty()) print("verify: report " + options_.report);
  print("verify: " + report_.counts() + jobs::format(", %.1f s", took.count()));
  return report_.first_wrong();
}

std::string Verification::who_is_late() const {
  const std::shared_ptr<Exchange> exchange = this->exchange();
  if (!exchange) return "a rank was lost, and no other world has followed";
  std::vector<int> ranks;
  try {
    if (rank_ == 0) ranks = exchange->awaited();
  } catch (const std::exception&) {
    // The store does not answer either.
  }
  if (ranks.empty()) return "a call between ranks does not end, since one hangs or a link does";
  return "rank " + std::to_string(ranks.front()) + " has not answered" +
         (ranks.size() == 1
              ? ""
              : ", nor have " + jobs::ranks(static_cast<int>(ranks.size()) - 1) + " more");
}

void Verification::end_late(const std::string& stage, seconds limit) {
  // An exception would end this thread's process by SIGABRT.
  std::string wrong = stage + ": it is not done in time";
  const auto try_to = [&](const std::function<void()>& act) {
    try {
      act();
    } catch (const std::exception& error) {
      std::cerr << std::string("verify: ") + error.what() + "\n";
    } catch (...) {
      std::cerr << "verify: an error without a text\n";
    }
  };
  try_to([&] {
    const seconds own = limit - (rank_ == 0 ? seconds(0) : kOthersWait);
    const bool is_rest = own < kStageLimit;
    const std::string text =
        "the stage '" + stage + "' is not done within " + std::to_string(own.count()) + " s" +
        (is_rest ? ", the rest of " + std::to_string(kAllStages.count()) + " s for all stages"
                 : "") +
        ": " + who_is_late();
    wrong = stage + ": " + text;
    if (rank_ != 0) return;
    report_.add({stage, kToItsEnd, Result::kWrong, text});
  });
  try_to([&] {
    if (rank_ == 0) wrong = finish();
  });
  std::cerr << "verify: " + wrong + "\n" << std::flush;
  jobs::write_error_file({"VerificationError", wrong, ""});
  // Else the job would begin again.
  try_to([&] {
    if (const auto agent = this->agent()) {
      static_cast<void>(agent->ReportFinished(std::chrono::seconds(2)));
    }
  });
  std::shared_ptr<ScratchDirectory> scratch;
  {
    const MutexLock lock(mutex_);
    scratch = scratch_;
  }
  if (scratch) scratch->remove_within(seconds(2));
  std::fflush(nullptr);
  std::_Exit(kExitJobFailed);
}

}  // namespace meshrun::verify
