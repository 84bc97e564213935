#include "client/render/report.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <map>
#include <vector>

#include "client/client.h"
#include "client/job_spec.h"
#include "client/render/hints.h"
#include "client/render/table.h"
#include "core/mesh_messages.h"
#include "core/proto_time.h"
#include "core/rank_exit.h"
#include "core/text.h"
#include "core/utf8.h"

namespace meshrun::client {
namespace {

using std::chrono::nanoseconds;

// "JOB_STATE_RUNNING" -> "RUNNING".
std::string LastWord(const std::string& name, std::string_view prefix) {
  return name.starts_with(prefix) ? name.substr(prefix.size()) : "UNKNOWN";
}

// How long its ranks have run, in all generations: what its time limit counts.
nanoseconds RunTime(const v1::Job& job, nanoseconds now) {
  const nanoseconds before = FromProto(job.run_time());
  if (!job.has_running_since()) return before;
  return before + std::max(now - FromProto(job.running_since()), nanoseconds(0));
}

// A line break of a script is shown as it is; what moves the cursor or colours the screen is not.
bool HasHiddenControls(std::string_view text) {
  for (; !text.empty(); text.remove_prefix(1)) {
    if (IsControl(text) && text[0] != '\n' && text[0] != '\t') return true;
  }
  return false;
}

// $'caf\xe9', as bash reads bytes that are not UTF-8.
std::string AnsiQuoted(std::string_view text) {
  std::string out;
  for (const char c : text) out += c == '\'' || c == '\\' ? std::string{'\\', c} : std::string{c};
  return "$'" + EscapeControls(out) + "'";
}

// Quoted where a shell would need it.
std::string CommandText(const v1::JobSpec& spec) {
  std::string out = spec.shipped_job().empty() ? "" : "--job " + spec.shipped_job();
  for (const std::string& part : spec.command()) {
    if (!out.empty()) out += ' ';
    if (!IsUtf8(part) || HasHiddenControls(part)) {
      out += AnsiQuoted(part);
      continue;
    }
    const bool plain =
        !part.empty() && part.find_first_of(" \t\n'\"\\$&|;<>()*?#~`") == std::string::npos;
    if (plain) {
      out += part;
      continue;
    }
    out += '\'';
    for (const char c : part) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
    out += '\'';
  }
  return out;
}

std::string ProgressText(const v1::Progress& progress) {
  std::string out;
  if (progress.has_step()) {
    out = progress.has_total_steps() && progress.total_steps() > 0
              ? fmt::format("{}/{}", progress.step(), progress.total_steps())
              : fmt::format("step {}", progress.step());
  }
  if (progress.has_loss())
    out += fmt::format("{}loss {}", out.empty() ? "" : " ", ShortNumber(progress.loss()));
  if (const std::string note = OneLine(progress.note(), kNoteWidth); !note.empty())
    out += fmt::format("{}{}", out.empty() ? "" : " ", note);
  return out;
}

std::string_view SignalMeaning(int signal) {
  switch (signal) {
    case SIGKILL:
      return "killed from outside; without enough memory the system does that";
    case SIGSEGV:
      return "it accessed memory that it does not own";
    case SIGBUS:
      return "bad memory access; a file it maps may have been cut, or /dev/shm is full";
    case SIGABRT:
      return "it aborted: a failed assertion, or an exception that was not caught";
    case SIGFPE:
      return "a division by zero or an overflow of integers";
    case SIGILL:
      return "an instruction that this processor does not have";
    default:
      return "";
  }
}

bool EndedBadly(const v1::RankStatus& rank) {
  if (rank.state() == v1::RANK_STATE_LOST) return true;
  return rank.state() == v1::RANK_STATE_EXITED && !ExitedCleanly(rank.exit());
}

std::string FailureSentence(const v1::Job& job) {
  return EscapeControls(job.failure().message().empty() ? job.reason() : job.failure().message());
}

constexpr char kNotStarted[] = "given up before its start";

// One line per generation, as far back as the coordinator keeps events. JobAdmitted begins each,
// and ends the one before; the last one is the job's present one.
Table GenerationTable(const v1::GetJobResponse& response, nanoseconds now) {
  struct Generation {
    nanoseconds admitted{0};
    nanoseconds started{0};
    nanoseconds ended{0};
    std::string end;
  };
  std::vector<Generation> generations;
  for (const v1::ClusterEvent& event : response.events()) {
    const std::string& kind = event.kind();
    const nanoseconds at = FromProto(event.at());
    if (kind == "JobAdmitted") {
      if (!generations.empty() && generations.back().ended.count() == 0) {
        Generation& before = generations.back();
        before.ended = at;
        if (before.end.empty() && before.started.count() == 0) before.end = kNotStarted;
      }
      generations.push_back({.admitted = at});
    }
    if (generations.empty()) continue;
    Generation& last = generations.back();
    if (kind == "GenerationStarted") last.started = at;
    // The first failure; what follows it is a consequence.
    if ((kind == "RankFailed" || kind == "NodeFailed" || kind == "PrepareFailed") &&
        last.end.empty()) {
      last.end = event.message();
    }
    const bool ends = kind == "JobRestarting" || kind == "JobRequeued" ||
                      kind == "GoesOnInProcess" || kind == "JobSucceeded" || kind == "JobFailed" ||
                      kind == "JobCancelled";
    if (!ends || last.ended.count() != 0) continue;
    last.ended = at;
    if (last.end.empty()) {
      last.end = kind == "JobSucceeded"   ? "succeeded"
                 : kind == "JobCancelled" ? "cancelled: " + event.message()
                                          : event.message();
    }
  }
  Table table({">GENERATION", "~~BEGAN", "~RUNTIME", "ENDED"});
  for (size_t i = 0; i < generations.size(); ++i) {
    const Generation& g = generations[i];
    const bool current = i + 1 == generations.size();
    const nanoseconds end = g.ended.count() != 0 ? g.ended : now;
    table.Add({fmt::format("{}", response.job().generation() + i + 1 - generations.size()),
               AbsoluteTime(g.admitted),
               g.started.count() == 0 ? "-" : FormatDuration(end - g.started),
               current && g.ended.count() == 0 ? "" : OneLine(g.end, kEventWidth)});
  }
  return table;
}

}  // namespace

std::string Consequences(const v1::Job& job) {
  // The ranks of the job are those of its last generation, which the failure may not have ended.
  if (job.failure().generation() != job.generation()) return "";
  std::map<std::string, std::vector<int>> by_fate;
  size_t count = 0;
  for (const v1::RankStatus& rank : job.ranks()) {
    const int number = rank.assignment().rank();
    if (number == job.failure().rank() || !EndedBadly(rank)) continue;
    by_fate[rank.end()].push_back(number);
    ++count;
  }
  if (count == 0) return "";
  std::string fates;
  for (const auto& [fate, ranks] : by_fate) {
    fates += fmt::format("{}{} {} {}", fates.empty() ? "" : ", ",
                         ranks.size() == 1 ? "rank" : "ranks", FormatRanks(ranks), fate);
  }
  return fmt::format("{}{} ended as a consequence: {}", count,
                     job.failure().rank() < 0 ? (count == 1 ? " rank" : " ranks")
                                              : (count == 1 ? " other rank" : " other ranks"),
                     fates);
}

std::string FailureLabel(bool planned) { return planned ? "last stop" : "last failure"; }

std::string SlowRanks(const v1::Job& job) {
  // The job has them in the order in which they were found.
  std::vector<v1::Straggler> slow(job.stragglers().begin(), job.stragglers().end());
  std::stable_sort(slow.begin(), slow.end(), [](const auto& a, const auto& b) {
    return a.computes_seconds() > b.computes_seconds();
  });
  std::string out;
  constexpr size_t kNamed = 4;
  for (size_t i = 0; i < std::min(slow.size(), kNamed); ++i) {
    out += fmt::format("{}rank {} on {} computes {:.3g} s of each step, the median {:.3g} s",
                       out.empty() ? "" : "; ", slow[i].rank(), slow[i].node_name(),
                       slow[i].computes_seconds(), slow[i].median_seconds());
  }
  if (slow.size() > kNamed) out += fmt::format("; and {} more", slow.size() - kNamed);
  return out;
}

std::string StateName(v1::JobState state) {
  return LastWord(v1::JobState_Name(state), "JOB_STATE_");
}
std::string StateName(v1::NodeState state) {
  return LastWord(v1::NodeState_Name(state), "NODE_STATE_");
}
std::string StateName(v1::RankState state) {
  return LastWord(v1::RankState_Name(state), "RANK_STATE_");
}

namespace {

// Indices of the jobs from `first` on that are of one array and wait alike; none: it is of none.
std::vector<int> WaitingOfArray(const std::vector<v1::Job>& jobs, size_t first) {
  const v1::Job& job = jobs[first];
  std::vector<int> indices;
  if (job.array_id().empty() || job.state() != v1::JOB_STATE_QUEUED) return indices;
  // Some reasons name the job.
  const auto reason = [](const v1::Job& of) {
    std::string out = of.reason();
    const size_t at = out.find(of.job_id());
    return at == std::string::npos ? out : out.replace(at, of.job_id().size(), of.array_id());
  };
  for (size_t i = first; i < jobs.size(); ++i) {
    const v1::Job& next = jobs[i];
    const bool is_alike = next.array_id() == job.array_id() && next.state() == job.state() &&
                          reason(next) == reason(job);
    if (!is_alike) break;
    indices.push_back(static_cast<int>(next.array_index()));
  }
  std::sort(indices.begin(), indices.end());
  return indices;
}

}  // namespace

std::string JobTable(const std::vector<v1::Job>& jobs, nanoseconds now, int width) {
  Table table({"JOB", "~USER", "STATE", "~>PRIORITY", "~>RANKS", "~>RESTARTS", "~SUBMITTED",
               "RUNTIME", "PROGRESS", "REASON"});
  for (size_t i = 0; i < jobs.size(); ++i) {
    const v1::Job& job = jobs[i];
    const std::vector<int> waiting = WaitingOfArray(jobs, i);
    std::string id = job.job_id();
    if (waiting.size() > 1) id = fmt::format("{}_[{}]", job.array_id(), FormatRanks(waiting));
    i += waiting.empty() ? 0 : waiting.size() - 1;
    table.Add({std::move(id), job.submitter(), StateName(job.state()),
               job.spec().priority() == 0 ? "" : fmt::format("{}", job.spec().priority()),
               job.world_size() == 0 ? "-" : fmt::format("{}", job.world_size()),
               job.restarts() == 0 ? "" : fmt::format("{}", job.restarts()),
               Ago(now, FromProto(job.submitted_at())),
               job.has_started_at() ? FormatDuration(RunTime(job, now)) : "-",
               ProgressText(job.progress()), OneLine(job.reason(), 100)});
  }
  return table.Render(0, width);
}

std::string FailureReport(const v1::Job& job, const Style& style) {
  if (!job.has_failure()) return "";
  const v1::Failure& failure = job.failure();
  const std::string label = FailureLabel(failure.planned());
  std::string out = fmt::format("  {}{}{}\n", Paint(style, Colour::kBold, label),
                                std::string(15 - label.size(), ' '), FailureSentence(job));
  const auto meaning = SignalMeaning(failure.exit().signal());
  if (!meaning.empty() && !failure.exit().out_of_memory()) {
    out += fmt::format("                 {}\n", meaning);
  }
  // The sentence above has its first line.
  if (failure.exit().error_message().find('\n') != std::string::npos) {
    out += fmt::format("  {}          {}\n", Paint(style, Colour::kBold, "error"),
                       failure.exit().error_message());
  }
  if (!failure.exit().last_lines().empty()) {
    out += fmt::format("  {}\n", Paint(style, Colour::kBold, "its last lines"));
    for (const std::string& line : failure.exit().last_lines()) {
      out += fmt::format("    {} {}\n", Paint(style, Colour::kGrey, "|"), line);
    }
  }
  if (const std::string hint = HintFor(failure.exit()); !hint.empty()) {
    out += fmt::format("  {}           {}\n", Paint(style, Colour::kBold, "hint"), hint);
  }
  if (const std::string others = Consequences(job); !others.empty()) {
    out += fmt::format("  {}         {}\n", Paint(style, Colour::kBold, "others"), others);
  }
  return out;
}

std::string DescribeJob(const v1::GetJobResponse& response, nanoseconds now, const Style& style) {
  const v1::Job& job = response.job();
  const v1::JobSpec& spec = job.spec();
  std::string out =
      fmt::format("{}  {}{}{}\n", Paint(style, Colour::kBold, job.job_id()), StateName(job.state()),
                  job.reason().empty() ? "" : ": ", EscapeControls(job.reason()));
  const auto field = [&](std::string_view name, const std::string& value) {
    if (!value.empty()) out += fmt::format("  {:<13} {}\n", name, value);
  };
  field("command", CommandText(spec));
  field("directory", EscapeControls(spec.working_dir()));
  field("asked for", DescribeShape(spec) +
                         (spec.mesh().empty() ? "" : ", mesh " + FormatMesh(AxesOf(spec.mesh()))));
  if (job.world_size() > 0) {
    field("has", Count(job.world_size(), "rank") +
                     (job.mesh().empty() ? "" : ", mesh " + FormatMesh(AxesOf(job.mesh()))));
  }
  const auto when = [&](const google::protobuf::Timestamp& at) {
    return fmt::format("{} ({})", AbsoluteTime(FromProto(at)), Ago(now, FromProto(at)));
  };
  field("submitted", when(job.submitted_at()));
  if (job.has_started_at()) field("started", when(job.started_at()));
  if (job.has_finished_at()) field("finished", when(job.finished_at()));
  if (job.generation() > 0) field("generation", fmt::format("{}", job.generation()));
  if (spec.priority() != 0) field("priority", fmt::format("{}", spec.priority()));
  if (spec.has_time_limit()) field("time limit", FormatDuration(FromProto(spec.time_limit())));
  field("constraints", fmt::format("{}", fmt::join(spec.constraints(), ", ")));
  field("not on", fmt::format("{}", fmt::join(spec.exclude_nodes(), ", ")));
  if (job.has_started_at()) field("runtime", FormatDuration(RunTime(job, now)));
  if (spec.max_restarts() > 0 || job.restarts() > 0) {
    field("restarts", fmt::format("{} of {}", job.restarts(), spec.max_restarts()));
  }
  if (!job.master_addr().empty())
    field("master", fmt::format("{}:{}", job.master_addr(), job.master_port()));
  field("progress", ProgressText(job.progress()));
  field("slow", SlowRanks(job));
  field("hangs", EscapeControls(job.hang()));
  if (job.has_failure()) out += "\n" + FailureReport(job, style);

  Table ranks(
      {">RANK", "~~NODE", "~~>LOCAL", "~~MESH", "~~GPUS", "STATE", "~~>PID", "~PROGRESS", "ENDED"});
  for (const v1::RankStatus& rank : job.ranks()) {
    const v1::RankAssignment& place = rank.assignment();
    std::string end = rank.end();
    if (rank.exit().teardown()) end += ", as a consequence";
    ranks.Add({fmt::format("{}", place.rank()),
               rank.node_name().empty() ? place.node_id() : rank.node_name(),
               fmt::format("{}", place.local_rank()),
               fmt::format("{}", fmt::join(place.mesh_coordinates(), ",")),
               fmt::format("{}", fmt::join(place.gpus(), ",")), StateName(rank.state()),
               rank.pid() == 0 ? "" : fmt::format("{}", rank.pid()), ProgressText(rank.progress()),
               end});
  }
  if (!ranks.empty()) out += "\n" + ranks.Render(2, TableWidth(style));

  if (const Table table = GenerationTable(response, now); !table.empty())
    out += "\n" + table.Render(2, TableWidth(style));

  Table groups({"GROUP", "RANKS", "BACKEND"});
  for (const v1::GroupInfo& group : job.groups()) {
    groups.Add(
        {group.name(), FormatRanks({group.ranks().begin(), group.ranks().end()}), group.backend()});
  }
  if (!groups.empty()) out += "\n" + groups.Render(2, TableWidth(style));

  Table events({"~WHEN", "EVENT", "WHAT"});
  for (const v1::ClusterEvent& event : response.events()) {
    events.Add(
        {AbsoluteTime(FromProto(event.at())), event.kind(), OneLine(event.message(), kEventWidth)});
  }
  if (!events.empty()) out += "\n" + events.Render(2, TableWidth(style));
  return out;
}

std::string Verdict(const v1::Job& job, bool can_ask_later, const Style& style) {
  const std::string id = Paint(style, Colour::kBold, job.job_id());
  const std::string after =
      job.has_started_at() ? " after " + FormatDuration(RunTime(job, FromProto(job.finished_at())))
                           : "";
  if (job.state() == v1::JOB_STATE_SUCCEEDED) {
    // A rank that was killed after the work was finished may not have printed the result.
    const std::string late = job.reason().empty() ? "" : "; " + EscapeControls(job.reason());
    return fmt::format("meshrun: {} {}{} ({}){}\n", id, Paint(style, Colour::kGreen, "succeeded"),
                       after, Count(job.world_size(), "rank"), late);
  }
  if (job.state() == v1::JOB_STATE_CANCELLED) {
    const std::string reason = EscapeControls(job.reason());
    std::string_view why = reason;
    if (constexpr std::string_view kSaid = "cancelled: "; why.starts_with(kSaid))
      why.remove_prefix(kSaid.size());
    return fmt::format("meshrun: {} {}{}{}{}\n", id, Paint(style, Colour::kYellow, "was cancelled"),
                       after, why.empty() ? "" : ": ", why);
  }
  std::string out =
      fmt::format("meshrun: {} {}{}: {}\n", id, Paint(style, Colour::kRed, "failed"), after,
                  job.has_failure() ? FailureSentence(job) : EscapeControls(job.reason()));
  // If no rank caused the failure, that sentence says everything.
  if (job.has_failure() && job.failure().rank() >= 0 &&
      (job.failure().cause() == v1::FAILURE_CAUSE_RANK_EXITED ||
       job.failure().cause() == v1::FAILURE_CAUSE_RANK_SIGNALED)) {
    out += FailureReport(job, style);
  } else if (const std::string others = Consequences(job); !others.empty()) {
    out += fmt::format("  {}         {}\n", Paint(style, Colour::kBold, "others"), others);
  }
  if (job.restarts() > 0) {
    out += fmt::format("  {}       {} of {}\n", Paint(style, Colour::kBold, "restarts"),
                       job.restarts(), job.spec().max_restarts());
  }
  if (can_ask_later && job.world_size() > 0) {
    out += fmt::format("  {}           meshrun logs {}{}; meshrun describe {}\n",
                       Paint(style, Colour::kBold, "more"), job.job_id(),
                       job.failure().rank() >= 0 && job.has_failure()
                           ? fmt::format(" --ranks {}", job.failure().rank())
                           : "",
                       job.job_id());
  }
  return out;
}

std::string HangLine(const std::string& before, const v1::Job& job) {
  std::string_view text = job.hang();
  if (text.empty() || text == before) return "";
  // More of the same.
  if (!before.empty() && text.starts_with(before + "; ")) text.remove_prefix(before.size() + 2);
  return fmt::format("{} hangs: {}", job.job_id(), EscapeControls(std::string(text)));
}

std::string WaitingLine(const v1::Job& job) {
  const bool waits = job.state() == v1::JOB_STATE_QUEUED || job.state() == v1::JOB_STATE_WAITING ||
                     job.state() == v1::JOB_STATE_SUSPENDED;
  if (!waits || job.reason().empty()) return "";
  std::string state = StateName(job.state());
  std::transform(state.begin(), state.end(), state.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  return fmt::format("{} is {}: {}", job.job_id(), state, job.reason());
}

}  // namespace meshrun::client
