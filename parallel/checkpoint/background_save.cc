#include "parallel/checkpoint/background_save.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <stdexcept>
#include <thread>
#include <utility>

#include "agent/background.h"
#include "core/mutex.h"
#include "core/text.h"
#include "fmt/format.h"
#include "parallel/checkpoint/chunk_notes.h"
#include "parallel/checkpoint/raised_by.h"
#include "parallel/checkpoint/save_leader.h"

namespace meshrun {
namespace {

using Seconds = std::chrono::duration<double>;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using Kind = SaveOutcome::Kind;

// After so long a save tells that it is slow, and then each time after as long again.
constexpr seconds kSlow(10);
// How long a thread that is given up is waited for: a disk may hold it.
constexpr seconds kLeave(5);

// The problem in the text of a stage.
SaveOutcome problem_in(const std::string& text) {
  return {text[0] == kRefusedText ? Kind::kRefused : Kind::kFailed, text.substr(1)};
}

}  // namespace

struct BackgroundSave::State {
  struct Batch {
    size_t file = 0;
    std::vector<FileRange> ranges;
    std::shared_ptr<void> keep;
  };

  State(SaveTask given, const MakeMeeting& make_meeting)
      : task(std::move(given)),
        writer([this] { return stopped.load(); }),
        meeting(make_meeting([this] { return stopped.load(); })) {}

  void run();
  SaveOutcome save();
  // This rank's part of "written".
  void write_ranges(const std::string& path);
  std::optional<Batch> next_batch();
  // From here on the save cannot be given up. Raises where it is already.
  void begin_commit();
  void drop_ranges();
  void watch();
  void set_outcome(SaveOutcome result);
  std::string progress() const;

  SaveTask task;
  const steady_clock::time_point begin = steady_clock::now();
  std::atomic<bool> stopped = false;
  std::atomic<bool> is_told = false;
  std::atomic<uint64_t> added = 0;
  RangeWriter writer;
  SaveMeeting meeting;
  // Absent where this rank leads no site.
  std::optional<SaveLeader> leader;

  mutable Mutex mu;
  mutable CondVar changed;
  std::deque<Batch> batches MESHRUN_GUARDED_BY(mu);
  bool is_closed MESHRUN_GUARDED_BY(mu) = false;
  // Nothing more is written: what is added is let go.
  bool drops MESHRUN_GUARDED_BY(mu) = false;
  // Why the caller has no ranges.
  std::string callers_problem MESHRUN_GUARDED_BY(mu);
  bool is_committing MESHRUN_GUARDED_BY(mu) = false;
  bool has_left MESHRUN_GUARDED_BY(mu) = false;
  std::optional<SaveOutcome> outcome MESHRUN_GUARDED_BY(mu);
};

std::string BackgroundSave::State::progress() const {
  return fmt::format("{} of {}", FormatBytes(writer.bytes_done()), FormatBytes(added));
}

void BackgroundSave::State::set_outcome(SaveOutcome result) {
  const MutexLock lock(mu);
  if (!outcome) outcome = std::move(result);
  changed.NotifyAll();
}

void BackgroundSave::State::drop_ranges() {
  const MutexLock lock(mu);
  drops = true;
  batches.clear();
  changed.NotifyAll();
}

std::optional<BackgroundSave::State::Batch> BackgroundSave::State::next_batch() {
  const MutexLock lock(mu);
  while (batches.empty() && !is_closed && callers_problem.empty() && !stopped) changed.Wait(mu);
  if (!callers_problem.empty()) throw std::runtime_error(callers_problem);
  if (batches.empty() || stopped) return std::nullopt;
  Batch batch = std::move(batches.front());
  batches.pop_front();
  return batch;
}

void BackgroundSave::State::write_ranges(const std::string& path) {
  ChunkNotes notes(task.files.size());
  for (size_t i = 0; task.leads && i < task.files.size(); ++i) {
    const SavedFile& file = task.files[i];
    const FileRange head{.begin = 0, .bytes = file.head.size(), .memory = file.head.data()};
    added += head.bytes;
    check_status(
        writer.write(path + "/" + file.name, {&head, 1}, chunk_bytes_of(file.bytes), notes.of(i)));
  }
  while (const auto batch = next_batch()) {
    const SavedFile& file = task.files[batch->file];
    check_status(writer.write(path + "/" + file.name, batch->ranges, chunk_bytes_of(file.bytes),
                              notes.of(batch->file)));
    const MutexLock lock(mu);
    changed.NotifyAll();
  }
  if (stopped) throw SaveGivenUp("the save was given up");
  check_status(writer.flush());
  check_status(notes.write(path, task.rank));
}

void BackgroundSave::State::begin_commit() {
  const MutexLock lock(mu);
  if (outcome || stopped) throw SaveGivenUp("the save was given up");
  is_committing = true;
}

SaveOutcome BackgroundSave::State::save() {
  if (task.leads) leader.emplace(task, meeting, [this] { begin_commit(); });
  if (leader) meeting.arrive(kMadeStage, leader->make(), task.sites);
  std::string problem = meeting.await(kMadeStage);
  if (problem.empty()) {
    problem = problem_of(task.rank, [this] {
      write_ranges(unfinished_path(task.directory, task.manifest.step, task.writer.name));
    });
    // Nothing more is written, and a disk that is full has its room back.
    drop_ranges();
    writer.close();
    meeting.arrive(kWrittenStage, problem, task.ranks);
    problem = meeting.await(kWrittenStage);
  }
  drop_ranges();
  if (!problem.empty()) {
    if (leader) leader->remove();
    return problem_in(problem);
  }
  const std::string end = leader ? leader->finish() : meeting.await(kFinishedStage);
  if (task.sites > 1) meeting.await(kRenamedStage);
  if (end[0] == kWrittenText) return {Kind::kWritten, "", std::stoll(end.substr(1))};
  return problem_in(end);
}

void BackgroundSave::State::run() {
  SaveOutcome result;
  const std::string raised = detail::raised_by([&] { result = save(); });
  if (!raised.empty()) {
    result = {Kind::kGivenUp,
              fmt::format("rank {} cannot agree with the others on the checkpoint of step {}: {}",
                          task.rank, task.manifest.step, raised)};
  }
  drop_ranges();
  writer.close();
  set_outcome(std::move(result));
  if (leader) leader->remove_hidden();
  const MutexLock lock(mu);
  has_left = true;
  changed.NotifyAll();
}

void BackgroundSave::State::watch() {
  auto next = begin + kSlow;
  while (true) {
    std::string said;
    {
      const MutexLock lock(mu);
      const auto limit = task.timeout && !outcome && !is_committing ? begin + *task.timeout : next;
      if (!has_left) changed.WaitUntil(mu, std::min(next, limit));
      if (has_left) return;
      const auto now = steady_clock::now();
      const auto what = [&](Seconds took) {
        return fmt::format("rank {} writes step {} for {} s, {}", task.rank, task.manifest.step,
                           took.count(), progress());
      };
      if (task.timeout && !outcome && !is_committing && now >= begin + *task.timeout) {
        stopped = true;
        outcome = SaveOutcome{Kind::kFailed,
                              fmt::format("{}: the limit of {} s for a checkpoint is over",
                                          what(std::chrono::floor<milliseconds>(now - begin)),
                                          Seconds(*task.timeout).count())};
        changed.NotifyAll();
      }
      if (now < next) continue;
      next = now + kSlow;
      if (!outcome) said = what(std::chrono::floor<seconds>(now - begin));
    }
    if (!said.empty()) task.say(said);
  }
}

BackgroundSave::BackgroundSave(SaveTask task, const MakeMeeting& make_meeting)
    : state_(std::make_shared<State>(std::move(task), make_meeting)) {
  // The one that can do without the other first.
  std::thread([state = state_] { state->watch(); }).detach();
  try {
    std::thread([state = state_] {
      const agent::InBackground background;
      state->run();
    }).detach();
  } catch (...) {
    const MutexLock lock(state_->mu);
    state_->has_left = true;
    state_->changed.NotifyAll();
    throw;
  }
}

BackgroundSave::~BackgroundSave() {
  if (!is_given_up()) give_up_and_wait();
}

void BackgroundSave::add(size_t file, std::vector<FileRange> ranges, std::shared_ptr<void> keep) {
  uint64_t bytes = 0;
  for (const FileRange& range : ranges) bytes += range.bytes;
  if (bytes == 0) return;
  const MutexLock lock(state_->mu);
  if (state_->drops || state_->outcome) return;
  state_->added += bytes;
  state_->batches.push_back({file, std::move(ranges), std::move(keep)});
  state_->changed.NotifyAll();
}

void BackgroundSave::close() {
  const MutexLock lock(state_->mu);
  state_->is_closed = true;
  state_->changed.NotifyAll();
}

void BackgroundSave::fail(const std::string& problem) {
  const MutexLock lock(state_->mu);
  state_->callers_problem = problem;
  state_->changed.NotifyAll();
}

bool BackgroundSave::wait_for(milliseconds most, uint64_t most_left) const {
  const auto until = steady_clock::now() + most;
  const State& state = *state_;
  const MutexLock lock(state.mu);
  while (true) {
    if (state.outcome) return true;
    if (most_left > 0) {
      if (state.drops || state.stopped) return true;
      if (state.added - state.writer.bytes_done() <= most_left) return true;
    }
    if (steady_clock::now() >= until) return false;
    state.changed.WaitUntil(state.mu, until);
  }
}

bool BackgroundSave::is_done() const {
  const MutexLock lock(state_->mu);
  return state_->outcome.has_value();
}

SaveOutcome BackgroundSave::outcome() const {
  const MutexLock lock(state_->mu);
  return *state_->outcome;
}

bool BackgroundSave::is_news() { return !state_->is_told.exchange(true); }

void BackgroundSave::give_up() {
  const MutexLock lock(state_->mu);
  state_->stopped = true;
  state_->changed.NotifyAll();
}

bool BackgroundSave::is_given_up() const { return state_->stopped; }

void BackgroundSave::give_up_and_wait() {
  give_up();
  const auto until = steady_clock::now() + kLeave;
  const MutexLock lock(state_->mu);
  while (!state_->has_left && steady_clock::now() < until) {
    state_->changed.WaitUntil(state_->mu, until);
  }
  if (state_->outcome) return;
  state_->outcome = SaveOutcome{
      Kind::kGivenUp, fmt::format("rank {} has given up the checkpoint of step {}, and its disk "
                                  "has not answered since",
                                  state_->task.rank, state_->task.manifest.step)};
  state_->changed.NotifyAll();
}

void BackgroundSave::wait_left() const {
  const MutexLock lock(state_->mu);
  while (!state_->has_left && !state_->stopped) state_->changed.Wait(state_->mu);
}

int64_t BackgroundSave::step() const { return state_->task.manifest.step; }

std::string BackgroundSave::progress() const { return state_->progress(); }

}  // namespace meshrun
