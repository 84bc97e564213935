// `meshrun top`: a cluster and a job as a screen of rows. Pure: what the HTTP API answers goes in,
// rows come out.
#pragma once

#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "client/render/progress.h"
#include "client/render/style.h"

namespace meshrun::client {

struct TopNode {
  std::string name;
  std::string state;
  int64_t slots = 0;
  int64_t slots_used = 0;
  int64_t gpus = 0;
  int64_t gpus_used = 0;
  // Why it takes nothing, or what its worker has found.
  std::string note;
};

struct TopRank {
  int64_t rank = 0;
  std::string node;
  std::string state;
  // It has ended with a signal, or with a code other than 0, and not because meshrun ended it.
  bool has_failed = false;
  std::optional<int64_t> step;
};

struct TopJob {
  std::string id;
  std::string user;
  std::string state;
  std::string reason;
  std::string hang;
  // Ranks of it are stopped by a client's SIGSTOP.
  bool is_paused = false;
  int64_t generation = 0;
  int64_t world_size = 0;
  int64_t restarts = 0;
  v1::Progress progress;
  // "rank 3 on node-b computes 0.52 s a step, the others 0.31 s"; empty: none is slow.
  std::string slowest;
  // First failing rank of the last generation that failed, how it ended, and its last lines.
  std::string failure;
  bool failure_is_planned = false;
  std::vector<std::string> last_lines;
  // Only /jobs/ID has these two.
  std::vector<TopRank> ranks;
  std::vector<std::string> events;
};

struct TopModel {
  std::string address;
  // Empty while all is well; else what is wrong with what is shown.
  std::string problem;
  std::string version;
  std::string read_only_reason;
  std::vector<TopNode> nodes;
  // Those that run, then those that wait, then some that have ended.
  std::vector<TopJob> jobs;
  bool more_jobs = false;
  // Stays there while the list is without it: its whole id.
  std::string followed;
  // Rates and time left, by job, as they are at this time: that of the last answer about jobs.
  std::map<std::string, ProgressMeter> meters;
  std::chrono::nanoseconds now{0};
};

// What the coordinator's clock shows, in its answer to /cluster: the times of curves are of it.
std::optional<std::chrono::nanoseconds> NowOf(const nlohmann::json& cluster);

// From answers of the API: of /cluster, /nodes, /jobs, and of /jobs/ID (the job's entry is
// replaced, and its meter gets the curve). What is missing there is empty here.
void ReadCluster(const nlohmann::json& answer, TopModel* model);
void ReadNodes(const nlohmann::json& answer, TopModel* model);
void ReadJobs(const nlohmann::json& answer, std::chrono::nanoseconds now, TopModel* model);
void ReadJob(const nlohmann::json& answer, std::chrono::nanoseconds now, TopModel* model);

// So many ranks of a job are asked for at a time.
inline constexpr size_t kRanksOfPage = 2000;

// How long after an answer with so many nodes they are asked for again.
std::chrono::milliseconds NodesPace(size_t nodes);
// The same of a job's ranks. Up to a page of them: at each look.
std::chrono::milliseconds RanksPace(size_t ranks);

struct TopView {
  enum class Kind { kCluster, kJob, kText };
  Kind kind = Kind::kCluster;
  // The job that is marked, or shown.
  std::string job;
  // What kText shows, and from which line on.
  std::string title;
  std::vector<std::string> lines;
  size_t first = 0;
  // The last row in place of the keys: a question, or what came of an answer.
  std::string message;
};

// Exactly style.height rows of at most style.width columns.
std::vector<std::string> DrawTop(const TopModel& model, const TopView& view, const Style& style);
// The same without keys, as many rows as there is to say: for `--once`.
std::vector<std::string> DrawTopOnce(const TopModel& model, const TopView& view,
                                     const Style& style);

}  // namespace meshrun::client
