#include "client/render/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "client/render/report.h"
#include "client/render/step_axis.h"
#include "client/render/style.h"
#include "client/render/trace_writer.h"
#include "core/flight_record/flight_record.h"
#include "core/json/json.h"
#include "core/proto_time.h"

namespace meshrun::client {
namespace {

using Json = TraceWriter::Json;
using Nanos = TraceWriter::Nanos;

constexpr int kStepsThread = 0;
// A group's record with fewer operations than this has lost none: ranks keep 1024, and show 256 to
// a worker that does not say how many it wants.
constexpr size_t kFewestOfARing = 256;
// Nanoseconds, 63 years: what is beyond is not a time.
constexpr double kLongest = 2e18;

// On the coordinator's clock.
struct Slice {
  Nanos begin = 0;
  Nanos end = 0;
  // When all ranks had come; absent: they have not, or nobody knows.
  std::optional<Nanos> met;
  bool has_ended = false;
  FlightOperation operation;
};

struct Window {
  Nanos begin = std::numeric_limits<Nanos>::max();
  Nanos end = std::numeric_limits<Nanos>::min();

  void Add(Nanos at) {
    begin = std::min(begin, at);
    end = std::max(end, at);
  }
  Nanos length() const { return std::max<Nanos>(end - begin, 0); }
};

struct RankTimes {
  int rank = 0;
  StepAxis::Reports reports;
  // By its place on the axis: when a step was reported, which is its end.
  std::map<int64_t, Nanos> steps;
  // By group, in the order of the calls.
  std::vector<std::pair<std::string, std::vector<Slice>>> groups;
  // All of its collectives that ended in this time are known; its end is when the record was taken.
  bool has_record = false;
  Window known;
  // Group that loses its oldest operations, and so many of it are kept: why `known` begins there.
  std::string full_group;
  size_t kept = 0;
  // Time of the shown steps on this rank.
  Window shown;
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
    const auto end = TimeOf(operation.finished_ms, offset);
    slices.push_back({*begin, end.value_or(now), TimeOf(operation.checked_ms, offset),
                      end.has_value(), std::move(operation)});
  }
  return slices;
}

// A record is a ring. What it has lost ended before the first operation that it still has: a group
// runs its collectives one after the other. Numbers of calls begin with 1.
void LimitKnown(const std::string& group, size_t operations, const std::vector<Slice>& slices,
                RankTimes* times) {
  if (slices.empty()) return;
  const bool has_all = operations < kFewestOfARing || slices.front().operation.number == 1;
  if (has_all || slices.front().end <= times->known.begin) return;
  times->known.begin = slices.front().end;
  times->full_group = group;
  times->kept = operations;
}

RankTimes TimesOf(const v1::FlightRecord& record, std::vector<std::string>* notes) {
  RankTimes times;
  times.rank = record.rank();
  const Nanos offset = record.clock().offset_nanos();
  for (const v1::StepTime& step : record.steps()) {
    times.reports.emplace_back(step.step(), step.at_nanos());
  }
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
  times.has_record = true;
  times.known = {std::numeric_limits<Nanos>::min(), now};
  for (FlightGroup& group : read->groups) {
    const size_t operations = group.operations.size();
    times.groups.emplace_back(std::move(group.name),
                              SlicesOf(std::move(group.operations), offset, now));
    LimitKnown(times.groups.back().first, operations, times.groups.back().second, &times);
  }
  return times;
}

StepAxis PlaceSteps(std::vector<RankTimes>* ranks) {
  std::vector<StepAxis::Reports> reports;
  for (RankTimes& rank : *ranks) reports.push_back(std::move(rank.reports));
  StepAxis axis(reports);
  for (size_t i = 0; i < ranks->size(); ++i) (*ranks)[i].steps = axis.PlacesOf(i);
  return axis;
}

bool HasOperations(const RankTimes& rank) {
  return std::any_of(rank.groups.begin(), rank.groups.end(),
                     [](const auto& group) { return !group.second.empty(); });
}

// A rank that takes part in none is alone with that, or runs alone.
void NoteEmptyRecords(const std::vector<RankTimes>& ranks, std::vector<std::string>* notes) {
  const bool any = std::any_of(ranks.begin(), ranks.end(), HasOperations);
  for (const RankTimes& rank : ranks) {
    if (!rank.has_record || HasOperations(rank) || (!any && ranks.size() < 2)) continue;
    notes->push_back(fmt::format("rank {} has no collectives: its record holds none{}", rank.rank,
                                 rank.groups.empty() ? ", as it has no process group on ucx" : ""));
  }
}

// The newest report at `place` or before it; null: there is none.
const std::pair<const int64_t, Nanos>* ReportAt(const RankTimes& rank, int64_t place) {
  const auto after = rank.steps.upper_bound(place);
  return after == rank.steps.begin() ? nullptr : &*std::prev(after);
}

// Place of the last step that all ranks had reported when their records were taken.
std::optional<int64_t> LastStep(const std::vector<RankTimes>& ranks) {
  std::optional<int64_t> last;
  for (const RankTimes& rank : ranks) {
    if (rank.steps.empty()) continue;
    auto report = std::prev(rank.steps.end());
    while (rank.has_record && report->second > rank.known.end && report != rank.steps.begin()) {
      --report;
    }
    last = last ? std::min(*last, report->first) : report->first;
  }
  return last;
}

// The steps that are shown, on the axis.
struct Places {
  int64_t first = 0;
  int64_t last = -1;
};

// What a rank shows of the steps after `before` to `last`; one that reports none shows what the
// others do.
void SetShown(int64_t before, int64_t last, std::vector<RankTimes>* ranks, Window* window) {
  *window = Window();
  for (RankTimes& rank : *ranks) {
    rank.shown = Window();
    for (const auto& [step, at] : rank.steps) {
      if (step >= before && step <= last) rank.shown.Add(at);
    }
    if (const auto* const begin = ReportAt(rank, before); begin != nullptr) {
      rank.shown.Add(begin->second);
    }
    if (rank.steps.empty()) continue;
    window->begin = std::min(window->begin, rank.shown.begin);
    window->end = std::max(window->end, rank.shown.end);
  }
  for (RankTimes& rank : *ranks) {
    if (rank.steps.empty()) rank.shown = *window;
  }
}

// The rank whose record begins last, compared with what it shows; null: all records have all of
// that.
const RankTimes* FirstToLack(const std::vector<RankTimes>& ranks) {
  const RankTimes* worst = nullptr;
  const auto lacks = [](const RankTimes& rank) { return rank.known.begin - rank.shown.begin; };
  for (const RankTimes& rank : ranks) {
    if (!rank.has_record || rank.known.begin <= rank.shown.begin) continue;
    if (worst == nullptr || lacks(rank) > lacks(*worst)) worst = &rank;
  }
  return worst;
}

std::string WhereRecordBegins(const RankTimes& rank, const StepAxis& axis) {
  std::string where;
  const auto next = std::find_if(rank.steps.begin(), rank.steps.end(), [&](const auto& report) {
    return report.second >= rank.known.begin;
  });
  if (next != rank.steps.end()) {
    const bool is_first = next == rank.steps.begin();
    where = " in the middle of " +
            axis.Range(is_first ? next->first : std::prev(next)->first + 1, next->first);
  } else {
    where = " after the last step that is known";
  }
  return fmt::format("rank {}'s record begins{}: it holds the last {} operations of group {}",
                     rank.rank, where, rank.kept, rank.full_group);
}

// Begins where a step was reported that lies at least `steps` before the last one that all ranks
// have, and whose collectives all records still have; programs need not report each step.
Places ChooseSteps(int steps, const StepAxis& axis, std::vector<RankTimes>* ranks, JobTrace* trace,
                   Window* window) {
  const std::optional<int64_t> last = LastStep(*ranks);
  if (!last) return {};
  int64_t before = *last;
  for (const RankTimes& rank : *ranks) {
    if (rank.steps.empty()) continue;
    const auto* const report = ReportAt(rank, *last - steps);
    before = std::min(before, report != nullptr ? report->first : rank.steps.begin()->first);
  }
  // A rank whose reports begin later has fewer of them.
  for (const RankTimes& rank : *ranks) {
    if (!rank.steps.empty()) before = std::max(before, rank.steps.begin()->first);
  }
  const int64_t wanted = before;
  SetShown(before, *last, ranks, window);
  if (const RankTimes* const lacks = FirstToLack(*ranks); lacks != nullptr) {
    trace->notes.push_back(WhereRecordBegins(*lacks, axis));
    trace->may_grow = lacks->known.length() >= lacks->shown.length();
    // Fewer steps, whose collectives are all there.
    std::set<int64_t> reported;
    for (const RankTimes& rank : *ranks) {
      for (const auto& [step, at] : rank.steps) reported.insert(step);
    }
    for (auto step = reported.upper_bound(before); step != reported.end() && *step < *last;
         ++step) {
      SetShown(*step, *last, ranks, window);
      if (FirstToLack(*ranks) != nullptr) continue;
      before = *step;
      break;
    }
    if (before == wanted) {
      SetShown(before, *last, ranks, window);
      trace->notes.back() += ", so that collectives of these steps are missing";
    } else {
      trace->notes.back() += fmt::format(", so that {} {} left out", axis.Range(wanted + 1, before),
                                         before == wanted + 1 ? "is" : "are");
    }
    trace->complete = before != wanted;
  }
  trace->steps = static_cast<int>(std::max<int64_t>(*last - before, 0));
  trace->last_step = axis.StepAt(*last);
  if (trace->steps == 0) return {};
  trace->first_step = axis.StepAt(before + 1);
  trace->shown = axis.Range(before + 1, *last);
  return {before + 1, *last};
}

void ChooseAll(std::vector<RankTimes>* ranks, Window* window) {
  for (const RankTimes& rank : *ranks) {
    for (const auto& [group, slices] : rank.groups) {
      for (const Slice& slice : slices) {
        window->Add(slice.begin);
        window->Add(slice.end);
      }
    }
  }
  for (RankTimes& rank : *ranks) rank.shown = {window->begin - 1, window->end};
}

Json ArgumentsOf(const std::string& group, const FlightOperation& operation) {
  Json arguments = {{"group", group}};
  for (const char* const name : {"sequence", "bytes", "dtype", "shape", "sizes", "peer", "state"}) {
    const auto found = operation.fields.find(name);
    if (found != operation.fields.end()) arguments[name] = *found;
  }
  return arguments;
}

void WriteSteps(const RankTimes& rank, const Places& places, const StepAxis& axis,
                TraceWriter* writer) {
  writer->NameThread(rank.rank, kStepsThread, "steps");
  for (auto step = rank.steps.begin(); step != rank.steps.end(); ++step) {
    if (step == rank.steps.begin() || step->first < places.first || step->first > places.last) {
      continue;
    }
    const auto before = std::prev(step);
    writer->AddSlice(rank.rank, kStepsThread, axis.Range(before->first + 1, step->first), "step",
                     before->second, step->second, {{"step", axis.StepAt(step->first)}});
  }
}

// Slices of one thread must not overlap: each goes to the first thread of its group that is free.
//
// A collective is of the step in which it ended on its rank, or began where it has not: ranks leave
// one at different moments, and report their steps after it, so that all count the same.
void WriteGroups(const RankTimes& rank, JobTrace* trace, TraceWriter* writer) {
  int next_thread = kStepsThread + 1;
  for (const auto& [group, slices] : rank.groups) {
    // Where the threads of this group are free again.
    std::vector<Nanos> free;
    const int first_thread = next_thread;
    for (const Slice& slice : slices) {
      const Nanos decides = slice.has_ended ? slice.end : slice.begin;
      if (decides <= rank.shown.begin || decides > rank.shown.end) continue;
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
  trace.generation = job.generation();
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
  NoteEmptyRecords(ranks, &trace.notes);
  const StepAxis axis = PlaceSteps(&ranks);
  const Places places = ChooseSteps(steps, axis, &ranks, &trace, &window);
  if (window.begin > window.end) ChooseAll(&ranks, &window);
  TraceWriter writer;
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
      WriteSteps(rank, places, axis, &writer);
      WriteGroups(rank, &trace, &writer);
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

bool HasLost(const JobTrace& now, const JobTrace& before) {
  if (now.generation != before.generation) return false;
  return now.ranks < before.ranks || now.steps < before.steps ||
         (now.last_step == before.last_step && now.collectives < before.collectives);
}

absl::StatusOr<JobTrace> TraceOfEnded(const v1::Job& job, std::optional<JobTrace> before,
                                      int steps) {
  if (!before || (before->steps == 0 && before->collectives == 0)) {
    return absl::FailedPreconditionError(fmt::format(
        "job {} is {}, so that there is nothing to trace: ranks keep their steps and collectives "
        "while they run; ask while it runs",
        job.job_id(), StateName(job.state())));
  }
  std::string note = fmt::format("job {} ended after {} of {}", job.job_id(), before->steps,
                                 Count(static_cast<size_t>(steps), "step"));
  before->notes.push_back(note);
  Json json = Json::parse(before->json);
  json["otherData"]["notes"].push_back(std::move(note));
  before->json = json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  return *std::move(before);
}

}  // namespace meshrun::client
