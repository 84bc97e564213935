#include <fmt/format.h>
#include <google/protobuf/util/time_util.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "client/render/top.h"
#include "core/proto_time.h"

namespace meshrun::client {
namespace {

using nlohmann::json;
using std::chrono::nanoseconds;

const json& Member(const json& object, const char* name) {
  static const json* const none = new json();
  if (!object.is_object()) return *none;
  const auto found = object.find(name);
  return found == object.end() ? *none : *found;
}

// An array; empty where there is none.
const json& List(const json& object, const char* name) {
  static const json* const none = new json(json::array());
  const json& value = Member(object, name);
  return value.is_array() ? value : *none;
}

std::string Text(const json& object, const char* name) {
  const json& value = Member(object, name);
  return value.is_string() ? value.get<std::string>() : "";
}

int64_t Number(const json& object, const char* name) {
  const json& value = Member(object, name);
  return value.is_number() ? value.get<int64_t>() : 0;
}

std::optional<int64_t> MaybeNumber(const json& object, const char* name) {
  const json& value = Member(object, name);
  return value.is_number() ? std::optional<int64_t>(value.get<int64_t>()) : std::nullopt;
}

// NaN and infinities are strings there, as JSON has no such numbers.
std::optional<double> MaybeReal(const json& object, const char* name) {
  const json& value = Member(object, name);
  if (value.is_number()) return value.get<double>();
  if (value == "NaN") return std::numeric_limits<double>::quiet_NaN();
  if (value == "Infinity") return std::numeric_limits<double>::infinity();
  if (value == "-Infinity") return -std::numeric_limits<double>::infinity();
  return std::nullopt;
}

double Real(const json& object, const char* name) { return MaybeReal(object, name).value_or(0); }

// "RUNNING" of "JOB_STATE_RUNNING".
std::string StateOf(const json& object, std::string_view prefix) {
  std::string state = Text(object, "state");
  return state.starts_with(prefix) ? state.substr(prefix.size()) : state;
}

std::string NodeStateOf(const json& node) {
  // NodeStateText says the same.
  const std::string state = StateOf(node, "NODE_STATE_");
  if (Member(node, "drained") != true || state != "HEALTHY") return state;
  if (Member(node, "quarantined") == true) return "QUARANTINED";
  return Number(node, "slotsUsed") > 0 || !List(node, "gpusUsed").empty() ? "DRAINING" : "DRAINED";
}

std::string NoteOf(const json& node) {
  for (const char* name : {"drainedBecause", "drainReason"}) {
    if (std::string text = Text(node, name); !text.empty()) return text;
  }
  const json& problems = List(node, "problems");
  return !problems.empty() && problems[0].is_string() ? problems[0].get<std::string>() : "";
}

v1::Progress ProgressOf(const json& value) {
  v1::Progress out;
  if (const auto step = MaybeNumber(value, "step")) out.set_step(*step);
  if (const auto total = MaybeNumber(value, "totalSteps")) out.set_total_steps(*total);
  if (const auto loss = MaybeReal(value, "loss")) out.set_loss(*loss);
  out.set_note(Text(value, "note"));
  return out;
}

std::string SlowestOf(const json& job) {
  const json* slowest = nullptr;
  for (const json& one : List(job, "stragglers")) {
    if (slowest == nullptr || Real(one, "computesSeconds") > Real(*slowest, "computesSeconds")) {
      slowest = &one;
    }
  }
  if (slowest == nullptr) return "";
  return fmt::format("rank {} on {} computes {:.3g} s a step, the others {:.3g} s",
                     Number(*slowest, "rank"), Text(*slowest, "nodeName"),
                     Real(*slowest, "computesSeconds"), Real(*slowest, "medianSeconds"));
}

TopRank RankOf(const json& value) {
  const json& assignment = Member(value, "assignment");
  const json& exit = Member(value, "exit");
  return {.rank = Number(assignment, "rank"),
          .node = Text(value, "nodeName"),
          .state = StateOf(value, "RANK_STATE_"),
          .has_failed = Member(exit, "teardown") != true &&
                        (Number(exit, "signal") != 0 || Number(exit, "exitCode") != 0),
          .step = MaybeNumber(Member(value, "progress"), "step")};
}

TopJob JobOf(const json& value) {
  TopJob job{.id = Text(value, "jobId"),
             .user = Text(value, "submitter"),
             .state = StateOf(value, "JOB_STATE_"),
             .reason = Text(value, "reason"),
             .hang = Text(value, "hang"),
             .is_paused = !Text(value, "pausedSince").empty(),
             .generation = Number(value, "generation"),
             .world_size = Number(value, "worldSize"),
             .restarts = Number(value, "restarts"),
             .progress = ProgressOf(Member(value, "progress")),
             .slowest = SlowestOf(value)};
  const json& failure = Member(value, "failure");
  if (failure.is_object()) {
    job.failure = Text(failure, "message");
    job.failure_is_planned = Member(failure, "planned") == true;
    for (const json& line : List(Member(failure, "exit"), "lastLines")) {
      if (line.is_string()) job.last_lines.push_back(Visible(line.get<std::string>()));
    }
  }
  for (const json& rank : List(value, "ranks")) {
    job.ranks.push_back(RankOf(rank));
  }
  return job;
}

std::optional<nanoseconds> TimeOf(const json& object, const char* name) {
  google::protobuf::Timestamp at;
  if (!google::protobuf::util::TimeUtil::FromString(Text(object, name), &at)) return std::nullopt;
  return FromProto(at);
}

void Measure(const TopJob& job, bool is_first_look, nanoseconds now, TopModel* model) {
  model->now = now;
  if (!job.progress.has_step() && !model->meters.contains(job.id)) return;
  // As a meter takes a job. What has a state that is not known here does not run.
  v1::Job look;
  v1::JobState state = v1::JOB_STATE_UNSPECIFIED;
  v1::JobState_Parse("JOB_STATE_" + job.state, &state);
  look.set_state(state);
  look.set_hang(job.hang);
  if (job.is_paused) look.mutable_paused_since();
  look.set_generation(static_cast<uint64_t>(job.generation));
  *look.mutable_progress() = job.progress;
  ProgressMeter& meter = model->meters[job.id];
  if (is_first_look) {
    meter.Look(look);
  } else {
    meter.Update(look, now);
  }
}

}  // namespace

std::chrono::milliseconds NodesPace(size_t nodes) {
  // The page has the same pace (coordinator/page/net/poll.js).
  return std::chrono::milliseconds(std::min<size_t>(10'000, 2000 + 8 * nodes));
}

std::chrono::milliseconds RanksPace(size_t ranks) {
  return std::chrono::milliseconds(ranks <= kRanksOfPage ? 0 : std::min<size_t>(10'000, ranks));
}

std::optional<nanoseconds> NowOf(const json& cluster) { return TimeOf(cluster, "now"); }

void ReadCluster(const json& answer, TopModel* model) {
  model->version = Text(answer, "version");
  model->read_only_reason = Text(answer, "readOnlyReason");
}

void ReadNodes(const json& answer, TopModel* model) {
  model->nodes.clear();
  for (const json& node : List(answer, "nodes")) {
    const json& resources = Member(node, "resources");
    const auto size = [](const json& list) {
      return list.is_array() ? static_cast<int64_t>(list.size()) : 0;
    };
    model->nodes.push_back({.name = Text(node, "name"),
                            .state = NodeStateOf(node),
                            .slots = Number(resources, "slots"),
                            .slots_used = Number(node, "slotsUsed"),
                            .gpus = size(Member(resources, "gpus")),
                            .gpus_used = size(Member(node, "gpusUsed")),
                            .note = NoteOf(node)});
  }
}

void ReadJobs(const json& answer, nanoseconds now, TopModel* model) {
  std::vector<TopJob> jobs;
  for (const json& value : List(answer, "jobs")) {
    TopJob job = JobOf(value);
    const auto known = std::find_if(model->jobs.begin(), model->jobs.end(),
                                    [&](const TopJob& one) { return one.id == job.id; });
    const bool is_known = known != model->jobs.end();
    Measure(job, !is_known, now, model);
    // The list is without them.
    if (is_known) {
      if (known->generation == job.generation) job.ranks = std::move(known->ranks);
      job.events = std::move(known->events);
    }
    jobs.push_back(std::move(job));
  }
  const auto is_followed = [&](const TopJob& job) {
    return !job.id.empty() && job.id == model->followed;
  };
  const auto followed = std::find_if(model->jobs.begin(), model->jobs.end(), is_followed);
  if (followed != model->jobs.end() && std::none_of(jobs.begin(), jobs.end(), is_followed)) {
    jobs.push_back(std::move(*followed));
  }
  model->jobs = std::move(jobs);
  model->more_jobs = !Text(answer, "nextPageToken").empty();
  std::erase_if(model->meters, [&](const auto& entry) {
    return std::none_of(model->jobs.begin(), model->jobs.end(),
                        [&](const TopJob& job) { return job.id == entry.first; });
  });
}

void ReadJob(const json& answer, nanoseconds now, TopModel* model) {
  TopJob job = JobOf(Member(answer, "job"));
  if (job.id.empty()) return;
  for (const json& event : List(answer, "events")) {
    const auto at = TimeOf(event, "at");
    job.events.push_back(OneLine(
        fmt::format("{}  {}", AbsoluteTime(at.value_or(nanoseconds(0))), Text(event, "message")),
        kEventWidth));
  }
  const auto known = std::find_if(model->jobs.begin(), model->jobs.end(),
                                  [&](const TopJob& one) { return one.id == job.id; });
  const bool is_measured = model->meters.contains(job.id);
  if (!is_measured) {
    ProgressMeter& meter = model->meters[job.id];
    for (const json& point : List(answer, "curve")) {
      const auto at = TimeOf(point, "at");
      v1::Progress progress = ProgressOf(point);
      if (at && progress.has_step()) meter.Update(progress, *at);
    }
  }
  Measure(job, !is_measured || known == model->jobs.end(), now, model);
  if (known == model->jobs.end()) {
    model->jobs.push_back(std::move(job));
  } else {
    *known = std::move(job);
  }
}

}  // namespace meshrun::client
