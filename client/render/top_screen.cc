#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "client/render/report.h"
#include "client/render/table.h"
#include "client/render/top.h"
#include "core/text.h"

namespace meshrun::client {
namespace {

// A row as it is read, and the colour of all of it.
struct Row {
  std::string text;
  std::optional<Colour> colour = std::nullopt;
  // Escape sequences in `text` are ours, and its width is right.
  bool is_painted = false;
};
using Rows = std::vector<Row>;

// Ended jobs of the list, and last lines of a failing rank, where there is room.
constexpr size_t kLastLines = 6;
constexpr size_t kEventRows = 6;

std::optional<Colour> ColourOf(const std::string& state) {
  if (state == "RUNNING" || state == "HEALTHY" || state == "SUCCEEDED") return Colour::kGreen;
  if (state == "FAILED" || state == "LOST" || state == "UNHEALTHY") return Colour::kRed;
  if (state == "QUEUED" || state == "WAITING" || state == "SUSPECT") return Colour::kYellow;
  return std::nullopt;
}

void AddLines(const std::string& text, Rows* rows) {
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    rows->push_back({text.substr(begin, end - begin)});
    begin = end + 1;
  }
}

void AddText(std::string_view label, const std::string& text, std::optional<Colour> colour,
             const Style& style, Rows* rows) {
  if (text.empty()) return;
  const size_t indent = label.size() + 2;
  const size_t width = static_cast<size_t>(style.width);
  const std::string line = OneLine(text, 1000);
  if (width <= indent + 10) {
    rows->push_back({fmt::format("{}: {}", label, line), colour});
    return;
  }
  bool is_first = true;
  for (const std::string& piece : Wrap(line, width - indent)) {
    rows->push_back(
        {is_first ? fmt::format("{}: {}", label, piece) : std::string(indent, ' ') + piece,
         colour});
    is_first = false;
  }
}

std::string Summary(const TopModel& model) {
  int64_t slots = 0;
  int64_t used = 0;
  int64_t gpus = 0;
  int64_t gpus_used = 0;
  size_t healthy = 0;
  for (const TopNode& node : model.nodes) {
    healthy += node.state == "HEALTHY" ? 1 : 0;
    // A node that is lost has nothing: the page counts the same.
    if (node.state == "LOST") continue;
    slots += node.slots;
    used += node.slots_used;
    gpus += node.gpus;
    gpus_used += node.gpus_used;
  }
  std::string out = fmt::format("meshrun {}  {} of {} healthy  {}/{} slots", model.version, healthy,
                                Count(model.nodes.size(), "node"), used, slots);
  if (gpus > 0) out += fmt::format("  {}/{} GPUs", gpus_used, gpus);
  return out + "  " + model.address;
}

void AddHead(const TopModel& model, const Style& style, Rows* rows) {
  rows->push_back({Summary(model), Colour::kBold});
  AddText("problem", model.problem, Colour::kRed, style, rows);
  AddText("read-only", model.read_only_reason, Colour::kRed, style, rows);
}

const ProgressMeter* MeterOf(const TopModel& model, const TopJob& job) {
  const auto found = model.meters.find(job.id);
  return found == model.meters.end() || found->second.empty() ? nullptr : &found->second;
}

std::string PercentOf(const TopJob& job) {
  const v1::Progress& progress = job.progress;
  if (!progress.has_step()) return "";
  const auto fraction = FractionOf(progress);
  return fraction ? fmt::format("{}%", WholePercent(*fraction))
                  : fmt::format("step {}", progress.step());
}

std::string LeftOf(const TopModel& model, const TopJob& job) {
  const ProgressMeter* const meter = MeterOf(model, job);
  if (meter == nullptr) return "";
  const auto left = meter->Remaining(model.now);
  return left ? FormatDuration(*left) : "";
}

std::string NoteOf(const TopJob& job) {
  for (const std::string* text : {&job.hang, &job.slowest, &job.reason, &job.failure}) {
    if (!text->empty()) return OneLine(*text, 200);
  }
  return "";
}

// The last column is wrapped to further lines; each node and job has one. All is told where the
// job is shown, and by `meshrun describe`.
bool IsContinued(const Row& row) { return row.text.starts_with("  "); }

void AddNodes(const TopModel& model, const Style& style, Rows* rows) {
  Table table({"NODE", "STATE", ">SLOTS", "~>GPUS", "NOTE"});
  for (const TopNode& node : model.nodes) {
    table.Add({OneLine(node.name, 60), node.state,
               fmt::format("{}/{}", node.slots_used, node.slots),
               node.gpus == 0 ? "" : fmt::format("{}/{}", node.gpus_used, node.gpus),
               OneLine(node.note, 200)});
  }
  if (table.empty()) {
    rows->push_back({"no node has joined yet"});
    return;
  }
  Rows lines;
  AddLines(table.Render(0, style.width), &lines);
  for (Row& row : lines) {
    if (!IsContinued(row)) rows->push_back(std::move(row));
  }
}

// Rows of jobs, and which of them is the marked one's.
void AddJobs(const TopModel& model, const TopView& view, const Style& style, Rows* rows,
             size_t* marked) {
  *marked = rows->size();
  if (model.jobs.empty()) {
    rows->push_back({"no jobs yet"});
    return;
  }
  Table table({" JOB", "~USER", "STATE", "~>RANKS", ">DONE", ">LEFT", "~>LOSS", "NOTE"});
  for (const TopJob& job : model.jobs) {
    table.Add({(job.id == view.job ? ">" : " ") + job.id, OneLine(job.user, 20), job.state,
               job.world_size == 0 ? "" : fmt::format("{}", job.world_size), PercentOf(job),
               LeftOf(model, job), job.progress.has_loss() ? ShortNumber(job.progress.loss()) : "",
               NoteOf(job)});
  }
  Rows lines;
  AddLines(table.Render(0, style.width), &lines);
  for (Row& row : lines) {
    if (IsContinued(row)) continue;
    if (row.text.starts_with('>')) {
      *marked = rows->size();
      row.colour = Colour::kBold;
    }
    rows->push_back(std::move(row));
  }
  if (model.more_jobs) rows->push_back({" ... and more: meshrun ps --all", Colour::kGrey});
}

const TopJob* Find(const TopModel& model, const std::string& id) {
  for (const TopJob& job : model.jobs) {
    if (job.id == id) return &job;
  }
  return nullptr;
}

void AddFailure(const TopJob& job, size_t lines, const Style& style, Rows* rows) {
  AddText(FailureLabel(job.failure_is_planned), job.failure, Colour::kRed, style, rows);
  const size_t first = job.last_lines.size() - std::min(job.last_lines.size(), lines);
  for (size_t i = first; i < job.last_lines.size(); ++i) {
    rows->push_back({"  | " + job.last_lines[i]});
  }
}

// A report comes once a second: a rank that lags by two reports or less is not behind. The page has
// the same (coordinator/page/model/lag.js).
bool IsBehind(int64_t lag, std::optional<double> steps_per_second) {
  constexpr double kSeconds = 2;
  return lag > 1 && static_cast<double>(lag) > kSeconds * steps_per_second.value_or(0);
}

// How far a rank is behind the first one, in a sign; the colour says whether that is much.
Row CellOf(const TopRank& rank, int64_t front, std::optional<double> steps_per_second) {
  if (rank.state == "LOST") return {"L", Colour::kRed};
  if (rank.state == "EXITED") {
    return {rank.has_failed ? "x" : "=", rank.has_failed ? Colour::kRed : Colour::kGrey};
  }
  if (rank.state != "RUNNING") return {"-", Colour::kGrey};
  if (!rank.step) return {".", std::nullopt};
  const int64_t lag = front - *rank.step;
  if (lag <= 0) return {".", Colour::kGreen};
  return {lag > 9 ? "+" : fmt::format("{}", lag),
          IsBehind(lag, steps_per_second) ? Colour::kRed : Colour::kYellow};
}

int64_t FrontOf(const TopJob& job) {
  int64_t front = std::numeric_limits<int64_t>::min();
  for (const TopRank& rank : job.ranks) front = std::max(front, rank.step.value_or(front));
  return front;
}

// The coordinator's word, else the rank that is furthest behind.
std::string WhoIsSlow(const TopJob& job, std::optional<double> steps_per_second) {
  if (!job.slowest.empty() || job.state != "RUNNING") return job.slowest;
  const TopRank* last = nullptr;
  for (const TopRank& rank : job.ranks) {
    if (rank.state != "RUNNING" || !rank.step) continue;
    if (last == nullptr || *rank.step < *last->step) last = &rank;
  }
  if (last == nullptr) return "";
  const int64_t lag = FrontOf(job) - *last->step;
  if (!IsBehind(lag, steps_per_second)) return "";
  return fmt::format("rank {} on {} is {} steps behind", last->rank, last->node, lag);
}

void AddGrid(const TopJob& job, std::optional<double> steps_per_second, const Style& style,
             Rows* rows) {
  if (job.ranks.empty()) return;
  const int64_t front = FrontOf(job);
  // "  123 " before each line.
  constexpr int kLabel = 8;
  int64_t in_a_line = 8;
  while (in_a_line * 2 + kLabel <= style.width && in_a_line < 128) in_a_line *= 2;
  rows->push_back(
      {"ranks, by how many steps each is behind (. none, + over 9, = ended, x failed, "
       "L lost, - not started)",
       Colour::kGrey});
  for (size_t begin = 0; begin < job.ranks.size(); begin += static_cast<size_t>(in_a_line)) {
    std::string line = fmt::format("{:>6}  ", job.ranks[begin].rank);
    const size_t end = std::min(begin + static_cast<size_t>(in_a_line), job.ranks.size());
    for (size_t i = begin; i < end; ++i) {
      const Row cell = CellOf(job.ranks[i], front, steps_per_second);
      line += cell.colour ? Paint(style, *cell.colour, cell.text) : cell.text;
    }
    rows->push_back({std::move(line), std::nullopt, /*is_painted=*/true});
  }
}

void AddJob(const TopModel& model, const TopView& view, const Style& style, Rows* rows) {
  const TopJob* const job = Find(model, view.job);
  if (job == nullptr) {
    rows->push_back({fmt::format("{} is not known here", view.job)});
    return;
  }
  std::string head = fmt::format("{}  {}  generation {}  {}", job->id, job->state, job->generation,
                                 Count(static_cast<uint64_t>(job->world_size), "rank"));
  if (job->restarts > 0) {
    head += fmt::format("  {}", Count(static_cast<uint64_t>(job->restarts), "restart"));
  }
  if (!job->user.empty()) head += "  of " + job->user;
  rows->push_back({head, ColourOf(job->state)});
  AddText("reason", job->reason, std::nullopt, style, rows);
  std::optional<double> steps_per_second;
  if (const ProgressMeter* const meter = MeterOf(model, *job)) {
    steps_per_second = meter->Rate(model.now);
    rows->push_back({meter->Bar("progress", style, model.now), std::nullopt, /*is_painted=*/true});
  }
  AddText("steps have stopped", job->hang, Colour::kRed, style, rows);
  AddText("slowest", WhoIsSlow(*job, steps_per_second), Colour::kYellow, style, rows);
  AddFailure(*job, kLastLines, style, rows);
  rows->push_back({});
  AddGrid(*job, steps_per_second, style, rows);
  if (job->events.empty()) return;
  rows->push_back({});
  rows->push_back({"events", Colour::kGrey});
  const size_t first = job->events.size() - std::min(job->events.size(), kEventRows);
  for (size_t i = first; i < job->events.size(); ++i) rows->push_back({"  " + job->events[i]});
}

// What a person looks at next of the marked job.
void AddMarked(const TopModel& model, const TopView& view, const Style& style, Rows* rows) {
  const TopJob* const job = Find(model, view.job);
  if (job == nullptr || job->failure.empty()) return;
  rows->push_back({});
  AddFailure(*job, kLastLines, style, rows);
}

std::string Finish(const Row& row, const Style& style) {
  if (row.is_painted) return row.text;
  // Whatever the coordinator has told.
  const std::string text =
      Shorten(Visible(row.text), static_cast<size_t>(std::max(style.width, 1)));
  return row.colour ? Paint(style, *row.colour, text) : text;
}

std::string KeysOf(const TopView& view) {
  switch (view.kind) {
    case TopView::Kind::kCluster:
      return "arrows: mark  Enter: job  l: logs  s: stacks  c: cancel  q: quit";
    case TopView::Kind::kJob:
      return "l: logs  s: stacks  c: cancel  Esc: back  q: quit";
    case TopView::Kind::kText:
      return "arrows, PageUp, PageDown: move  Esc: back  q: quit";
  }
  return "";
}

Rows Body(const TopModel& model, const TopView& view, const Style& style, size_t* marked) {
  Rows rows;
  *marked = 0;
  if (view.kind == TopView::Kind::kText) {
    rows.push_back({view.title, Colour::kBold});
    for (size_t i = std::min(view.first, view.lines.size()); i < view.lines.size(); ++i) {
      rows.push_back({view.lines[i]});
    }
    return rows;
  }
  AddHead(model, style, &rows);
  rows.push_back({});
  if (view.kind == TopView::Kind::kJob) {
    AddJob(model, view, style, &rows);
    return rows;
  }
  AddNodes(model, style, &rows);
  rows.push_back({});
  AddJobs(model, view, style, &rows, marked);
  AddMarked(model, view, style, &rows);
  return rows;
}

}  // namespace

std::vector<std::string> DrawTop(const TopModel& model, const TopView& view, const Style& style) {
  size_t marked = 0;
  const Rows rows = Body(model, view, style, &marked);
  const size_t height = static_cast<size_t>(std::max(style.height, 2));
  const size_t room = height - 1;
  // The marked row stays on the screen, and the first row, which says how all is.
  size_t skipped = marked >= room ? marked - room + 1 : 0;
  std::vector<std::string> out;
  for (size_t i = 0; i < rows.size() && out.size() < room; ++i) {
    if (i > 0 && skipped > 0) {
      --skipped;
      continue;
    }
    out.push_back(Finish(rows[i], style));
  }
  out.resize(room);
  // Keys scroll texts, and move the mark; a job's screen ends where the terminal does.
  if (view.kind == TopView::Kind::kJob && rows.size() > room) {
    out.back() = Finish({fmt::format("{} more rows: a taller terminal, or meshrun top --once {}",
                                     rows.size() - room + 1, view.job),
                         Colour::kYellow},
                        style);
  }
  out.push_back(Finish({view.message.empty() ? KeysOf(view) : view.message,
                        view.message.empty() ? Colour::kGrey : Colour::kYellow},
                       style));
  return out;
}

std::vector<std::string> DrawTopOnce(const TopModel& model, const TopView& view,
                                     const Style& style) {
  size_t marked = 0;
  std::vector<std::string> out;
  for (const Row& row : Body(model, view, style, &marked)) out.push_back(Finish(row, style));
  return out;
}

}  // namespace meshrun::client
