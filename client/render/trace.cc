#include "client/render/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "core/flight_record/flight_record.h"
#include "core/json/json.h"
#include "core/proto_time.h"

namespace meshrun::client {
namespace {

using Json = nlohmann::ordered_json;
using Nanos = int64_t;

constexpr int kStepsThread = 0;
// Nanoseconds, 63 years: what is beyond is not a time.
constexpr double kLongest = 2e18;

// On the coordinator's clock.
struct Slice {
  Nanos begin = 0;
  Nanos end = 0;
  // When all ranks had come; absent: they have not, or nobody knows.
  std::optional<Nanos> met;
  FlightOperation operation;
};

struct RankTimes {
  int rank = 0;
  // By step: when it was reported, which is its end.
  std::map<int64_t, Nanos> steps;
  // By group, in the order of the calls.
  std::vector<std::pair<std::string, std::vector<Slice>>> groups;
};

struct Window {
  Nanos begin = std::numeric_limits<Nanos>::max();
  Nanos end = std::numeric_limits<Nanos>::min();
};

std::optional<Nanos> TimeOf(std::optional<double> ms, Nanos offset) {
  if (!ms) return std::nullopt;
  const double nanos = *ms * 1e6;
  // The sum, and differences of such sums, are within the range of Nanos.
  if (!(std::abs(nanos) < kLongest && std::abs(static_cast<double>(offset)) < kLongest)) {
    return std::nullopt;
  }
  return static_cast<Nanos>(nanos) + offset;
}

// `now`: the end of what has not ended.
std::vector<Slice> SlicesOf(std::vector<FlightOperation> operations, Nanos offset, Nanos now) {
  std::vector<Slice> slices;
  for (FlightOperation& operation : operations) {
    const auto begin = TimeOf(operation.submitted_ms, offset);
    if (!begin) continue;
    const Nanos end = TimeOf(operation.finished_ms, offset).value_or(now);
    slices.push_back({*begin, end, TimeOf(operation.checked_ms, offset), std::move(operation)});
  }
  return slices;
}

RankTimes TimesOf(const v1::FlightRecord& record, std::vector<std::string>* notes) {
  RankTimes times;
  times.rank = record.rank();
  const Nanos offset = record.clock().offset_nanos();
  for (const v1::StepTime& step : record.steps()) times.steps[step.step()] = step.at_nanos();
  if (!record.error().empty()) {
    notes->push_back(fmt::format("rank {} has no collectives: {}", record.rank(), record.error()));
    return times;
  }
  std::optional<FlightGroups> read = ReadFlightGroups(record.json());
  if (!read) {
    notes->push_back(
        fmt::format("rank {} has no collectives: its record is not readable", record.rank()));
    return times;
  }
  const Nanos now = TimeOf(read->now_ms, offset).value_or(record.steady_nanos() + offset);
  for (FlightGroup& group : read->groups) {
    times.groups.emplace_back(std::move(group.name),
                              SlicesOf(std::move(group.operations), offset, now));
  }
  return times;
}

// Begins where a step was reported that lies at least `steps` before the last one that all ranks
// have; programs need not report each step.
void ChooseSteps(const std::vector<RankTimes>& ranks, int steps, JobTrace* trace, Window* window) {
  std::optional<int64_t> last;
  for (const RankTimes& rank : ranks) {
    if (rank.steps.empty()) continue;
    const int64_t its_last = rank.steps.rbegin()->first;
    last = last ? std::min(*last, its_last) : its_last;
  }
  if (!last) return;
  int64_t before = *last;
  for (const RankTimes& rank : ranks) {
    if (rank.steps.empty()) continue;
    auto boundary = rank.steps.upper_bound(*last - steps);
    if (boundary != rank.steps.begin()) --boundary;
    before = std::min(before, boundary->first);
  }
  // A rank whose reports begin later has fewer of them.
  for (const RankTimes& rank : ranks) {
    if (!rank.steps.empty()) before = std::max(before, rank.steps.begin()->first);
  }
  trace->last_step = *last;
  trace->first_step = before + 1;
  trace->steps = static_cast<int>(std::max<int64_t>(*last - before, 0));
  for (const RankTimes& rank : ranks) {
    for (const auto& [step, at] : rank.steps) {
      if (step < before || step > *last) continue;
      window->begin = std::min(window->begin, at);
      window->end = std::max(window->end, at);
    }
  }
}

void ChooseAll(const std::vector<RankTimes>& ranks, Window* window) {
  for (const RankTimes& rank : ranks) {
    for (const auto& [group, slices] : rank.groups) {
      for (const Slice& slice : slices) {
        window->begin = std::min(window->begin, slice.begin);
        window->end = std::max(window->end, slice.end);
      }
    }
  }
}

// Times count from the earliest one: readers drop what is before their beginning.
class Writer {
 public:
  void Name(int process, const std::string& name, int order) {
    Meta(process, 0, "process_name", {{"name", name}});
    Meta(process, 0, "process_sort_index", {{"sort_index", order}});
  }
  void NameThread(int process, int thread, const std::string& name) {
    Meta(process, thread, "thread_name", {{"name", name}});
    Meta(process, thread, "thread_sort_index", {{"sort_index", thread}});
  }
  void AddSlice(int process, int thread, const std::string& name, const char* category, Nanos begin,
                Nanos end, Json arguments) {
    AddTimed(begin, {{"name", name},
                     {"cat", category},
                     {"ph", "X"},
                     {"ts", 0.0},
                     {"dur", Micros(std::max<Nanos>(end - begin, 0))},
                     {"pid", process},
                     {"tid", thread},
                     {"args", std::move(arguments)}});
  }
  void AddInstant(int process, const std::string& name, Nanos at, Json arguments) {
    AddTimed(at, {{"name", name},
                  {"cat", "event"},
                  {"ph", "i"},
                  {"s", "g"},
                  {"ts", 0.0},
                  {"pid", process},
                  {"tid", 0},
                  {"args", std::move(arguments)}});
  }
  // Where it has a time, the earliest of all.
  std::optional<Nanos> began() const { return began_; }
  Json Take() {
    for (const auto& [index, at] : times_) events_[index]["ts"] = Micros(at - *began_);
    return std::move(events_);
  }

 private:
  static double Micros(Nanos nanos) { return static_cast<double>(nanos) / 1e3; }
  void AddTimed(Nanos at, Json event) {
    began_ = std::min(at, began_.value_or(at));
    times_.emplace_back(events_.size(), at);
    events_.push_back(std::move(event));
  }
  void Meta(int process, int thread, const char* what, Json arguments) {
    events_.push_back({{"name", what},
                       {"ph", "M"},
                       {"pid", process},
                       {"tid", thread},
                       {"args", std::move(arguments)}});
  }

  Json events_ = Json::array();
  // By its place among the events.
  std::vector<std::pair<size_t, Nanos>> times_;
  std::optional<Nanos> began_;
};

Json ArgumentsOf(const std::string& group, const FlightOperation& operation) {
  Json arguments = {{"group", group}};
  for (const char* const name : {"sequence", "bytes", "dtype", "shape", "sizes", "peer", "state"}) {
    const auto found = operation.fields.find(name);
    if (found != operation.fields.end()) arguments[name] = *found;
  }
  return arguments;
}

void WriteSteps(const RankTimes& rank, const JobTrace& trace, Writer* writer) {
  writer->NameThread(rank.rank, kStepsThread, "steps");
  for (auto step = rank.steps.begin(); step != rank.steps.end(); ++step) {
    if (step == rank.steps.begin() || step->first < trace.first_step ||
        step->first > trace.last_step) {
      continue;
    }
    const auto before = std::prev(step);
    const std::string name = before->first + 1 == step->first
                                 ? fmt::format("step {}", step->first)
                                 : fmt::format("steps {} to {}", before->first + 1, step->first);
    writer->AddSlice(rank.rank, kStepsThread, name, "step", before->second, step->second,
                     {{"step", step->first}});
  }
}

// Slices of one thread must not overlap: each goes to the first thread of its group that is free.
void WriteGroups(const RankTimes& rank, const Window& window, JobTrace* trace, Writer* writer) {
  int next_thread = kStepsThread + 1;
  for (const auto& [group, slices] : rank.groups) {
    // Where the threads of this group are free again.
    std::vector<Nanos> free;
    const int first_thread = next_thread;
    for (const Slice& slice : slices) {
      if (slice.end < window.begin || slice.begin > window.end) continue;
      size_t lane = 0;
      while (lane < free.size() && free[lane] > slice.begin) ++lane;
      const int thread = first_thread + static_cast<int>(lane);
      if (lane == free.size()) {
        free.push_back(0);
        writer->NameThread(rank.rank, thread,
                           lane == 0 ? group : fmt::format("{} ({})", group, lane + 1));
      }
      free[lane] = slice.end;
      writer->AddSlice(rank.rank, thread,
                       slice.operation.name.empty() ? "operation" : slice.operation.name,
                       "collective", slice.begin, slice.end, ArgumentsOf(group, slice.operation));
      if (slice.met && *slice.met > slice.begin) {
        writer->AddSlice(rank.rank, thread, "waits for ranks", "wait", slice.begin, *slice.met,
                         Json::object());
      }
      ++trace->collectives;
    }
    next_thread += static_cast<int>(free.size());
  }
}

}  // namespace

JobTrace MakeTrace(const v1::Job& job, const std::vector<v1::GetFlightRecordsResponse>& records,
                   const std::vector<v1::ClusterEvent>& events, int steps) {
  JobTrace trace;
  std::vector<RankTimes> ranks;
  for (const v1::GetFlightRecordsResponse& answer : records) {
    const v1::FlightRecord& record = answer.record();
    if (!record.has_clock()) {
      trace.notes.push_back(fmt::format("rank {} is left out: {}", record.rank(),
                                        record.error().empty()
                                            ? "its worker has not compared its clock with the "
                                              "coordinator's, or is of a version that does not"
                                            : record.error()));
      continue;
    }
    ranks.push_back(TimesOf(record, &trace.notes));
    trace.clock_error_seconds = std::max(trace.clock_error_seconds,
                                         static_cast<double>(record.clock().error_nanos()) * 1e-9);
  }
  std::sort(ranks.begin(), ranks.end(),
            [](const RankTimes& a, const RankTimes& b) { return a.rank < b.rank; });
  trace.ranks = static_cast<int>(ranks.size());

  Window window;
  ChooseSteps(ranks, steps, &trace, &window);
  if (window.begin > window.end) ChooseAll(ranks, &window);
  Writer writer;
  const int coordinator = static_cast<int>(job.world_size());
  std::string began;
  if (!records.empty() && window.begin <= window.end) {
    // What the coordinator's two clocks showed at one moment.
    const Nanos wall_minus_steady = FromProto(records[0].now()).count() - records[0].now_nanos();
    writer.Name(coordinator, "coordinator", -1);
    for (const v1::ClusterEvent& event : events) {
      const Nanos at = FromProto(event.at()).count() - wall_minus_steady;
      if (at < window.begin || at > window.end) continue;
      writer.AddInstant(coordinator, event.kind(), at, {{"message", event.message()}});
    }
    for (const RankTimes& rank : ranks) {
      const bool known = rank.rank < job.ranks_size();
      const std::string node = known ? job.ranks(rank.rank).node_name() : "";
      writer.Name(rank.rank,
                  node.empty() ? fmt::format("rank {}", rank.rank)
                               : fmt::format("rank {} on {}", rank.rank, node),
                  rank.rank);
      WriteSteps(rank, trace, &writer);
      WriteGroups(rank, window, &trace, &writer);
    }
    began = JsonTime(WallNanos(writer.began().value_or(window.begin) + wall_minus_steady));
  }
  const Json json = {{"traceEvents", writer.Take()},
                     {"displayTimeUnit", "ms"},
                     {"otherData",
                      {{"job", job.job_id()},
                       {"generation", job.generation()},
                       {"began", began},
                       {"clock_error_seconds", trace.clock_error_seconds},
                       {"notes", trace.notes}}}};
  trace.json = json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  return trace;
}

}  // namespace meshrun::client
