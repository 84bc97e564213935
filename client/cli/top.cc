// meshrun top: nodes and jobs on the terminal, as they change.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/cli/context.h"
#include "client/cli/coordinator_http.h"
#include "client/cli/full_screen.h"
#include "client/cli/signal_handling.h"
#include "client/cli/top_feed.h"
#include "core/exit_codes.h"
#include "core/os/fd.h"
#include "core/os/process.h"

namespace meshrun::client {
namespace {

struct TopFlags {
  CoordinatorFlags coordinator;
  std::string job;
  bool once = false;
};

// Columns of a screen that no terminal shows.
constexpr int kAnyWidth = 1000;
constexpr std::chrono::milliseconds kEndWithin(200);

// The screen, and what keys do. Runs on one thread; the feed's threads only ring.
class Top {
 public:
  Top(const CoordinatorHttp& http, TopFeed::Find find)
      : feed_(http.target, std::move(find), [this] { Ring(); }) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0) {
      bell_.reset(ends[0]);
      rope_.reset(ends[1]);
    }
    if (!http.job_id.empty()) {
      view_.kind = TopView::Kind::kJob;
      view_.job = http.job_id;
      feed_.Follow(http.job_id);
    }
  }
  // Until a key or a signal ends it: then at once.
  int Run() {
    const int code = Show();
    // A thread that waits for a connection cannot be told. It holds nothing that the kernel does
    // not end.
    if (!feed_.Stop(kEndWithin)) ::_exit(code);
    return code;
  }

 private:
  // A log, or stacks.
  struct Text {
    std::string title;
    std::vector<std::string> lines;
  };

  int Show() {
    sigset_t set;
    ::sigemptyset(&set);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT, SIGWINCH}) {
      ::sigaddset(&set, signal);
    }
    os::BlockSignals(set);
    const os::UniqueFd signals(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
    feed_.Start();
    FullScreen screen;
    while (!done_) {
      Draw(screen);
      pollfd watched[] = {
          {STDIN_FILENO, POLLIN, 0}, {signals.get(), POLLIN, 0}, {bell_.get(), POLLIN, 0}};
      ::poll(watched, std::size(watched), /*timeout_ms=*/1000);
      signalfd_siginfo signal;
      while (::read(signals.get(), &signal, sizeof signal) == sizeof signal) {
        OnSignal(static_cast<int>(signal.ssi_signo), screen);
      }
      if ((watched[0].revents & POLLHUP) != 0) break;
      for (const KeyPress& press : screen.ReadKeys()) OnKey(press);
      char rung[64];
      while (::read(bell_.get(), rung, sizeof rung) > 0) {
      }
      TakeLines();
    }
    return kExitOk;
  }

  void Ring() {
    const char one = 1;
    // A full pipe has rung already.
    [[maybe_unused]] const ssize_t written = ::write(rope_.get(), &one, 1);
  }

  void OnSignal(int signal, FullScreen& screen) {
    if (signal == SIGWINCH || signal == SIGCONT) {
      screen.Forget();
    } else if (signal == SIGTSTP) {
      screen.Leave();
      StopThisProcess();
      screen.Enter();
    } else {
      done_ = true;
    }
  }

  void Draw(FullScreen& screen) {
    const Style style = StyleOf(STDOUT_FILENO);
    model_ = feed_.model();
    if (view_.job.empty() && !model_.jobs.empty()) view_.job = model_.jobs.front().id;
    screen.Draw(DrawTop(model_, view_, style));
    page_ = static_cast<size_t>(std::max(style.height - 2, 1));
  }

  void OnKey(const KeyPress& press) {
    if (asks_cancel_) return OnAnswer(press);
    view_.message.clear();
    switch (press.key) {
      case Key::kUp:
        return Move(-1);
      case Key::kDown:
        return Move(1);
      case Key::kPageUp:
        return Move(-static_cast<int>(page_));
      case Key::kPageDown:
        return Move(static_cast<int>(page_));
      case Key::kHome:
        return Move(-1'000'000);
      case Key::kEnd:
        return Move(1'000'000);
      case Key::kEnter:
        return Open();
      case Key::kEscape:
        return Back();
      case Key::kCharacter:
        return OnCharacter(press.character);
    }
  }

  void OnCharacter(char character) {
    switch (character) {
      case 'q':
        done_ = true;
        return;
      case 'k':
        return Move(-1);
      case 'j':
        return Move(1);
      case 'l':
        return Show("log", "its ranks' last lines", &TopFeed::AskLogs);
      case 's':
        return Show("stacks", "where its ranks stand", &TopFeed::AskStacks);
      case 'c':
        if (view_.kind == TopView::Kind::kText || view_.job.empty()) return;
        asks_cancel_ = true;
        view_.message = fmt::format("cancel {}? y: yes, any other key: no", view_.job);
        return;
      default:
        return;
    }
  }

  void OnAnswer(const KeyPress& press) {
    asks_cancel_ = false;
    if (press.key != Key::kCharacter || press.character != 'y') {
      view_.message = fmt::format("{} goes on", view_.job);
      return;
    }
    view_.message = fmt::format("asking to cancel {}", view_.job);
    feed_.Cancel(view_.job, [this](std::vector<std::string> lines) {
      MutexLock lock(mu_);
      message_ = lines.front();
    });
  }

  void Move(int rows) {
    if (view_.kind == TopView::Kind::kText) {
      const auto last = static_cast<int>(view_.lines.size() - std::min(view_.lines.size(), page_));
      view_.first = static_cast<size_t>(std::clamp(static_cast<int>(view_.first) + rows, 0, last));
    } else if (view_.kind == TopView::Kind::kCluster && !model_.jobs.empty()) {
      const auto marked = std::find_if(model_.jobs.begin(), model_.jobs.end(),
                                       [this](const TopJob& job) { return job.id == view_.job; });
      const auto at =
          marked == model_.jobs.end() ? 0 : static_cast<int>(marked - model_.jobs.begin());
      const auto last = static_cast<int>(model_.jobs.size()) - 1;
      view_.job = model_.jobs[static_cast<size_t>(std::clamp(at + rows, 0, last))].id;
    }
  }

  void Open() {
    if (view_.kind != TopView::Kind::kCluster || view_.job.empty()) return;
    view_.kind = TopView::Kind::kJob;
    feed_.Follow(view_.job);
  }

  void Back() {
    if (view_.kind == TopView::Kind::kText) {
      view_.kind = before_text_;
    } else if (view_.kind == TopView::Kind::kJob) {
      view_.kind = TopView::Kind::kCluster;
      feed_.Follow("");
    }
  }

  void Show(const char* what, const char* of_what,
            void (TopFeed::*ask)(const std::string&, TopFeed::OnLines)) {
    if (view_.kind == TopView::Kind::kText || view_.job.empty()) return;
    view_.message = fmt::format("asking for {}", of_what);
    (feed_.*ask)(view_.job, [this, title = fmt::format("{} of {}", what, view_.job)](
                                std::vector<std::string> lines) {
      MutexLock lock(mu_);
      texts_.push_back({title, std::move(lines)});
    });
  }

  // What the feed's threads have brought.
  void TakeLines() {
    MutexLock lock(mu_);
    if (!message_.empty()) view_.message = std::exchange(message_, "");
    if (texts_.empty()) return;
    // Nobody's text goes away while it is read.
    if (view_.kind == TopView::Kind::kText && texts_.front().title != view_.title) {
      view_.message = fmt::format("{} came: Esc shows it", texts_.front().title);
      return;
    }
    if (view_.kind != TopView::Kind::kText) before_text_ = view_.kind;
    view_.kind = TopView::Kind::kText;
    view_.title = std::move(texts_.front().title);
    view_.lines = std::move(texts_.front().lines);
    texts_.pop_front();
    // The end is what was written last.
    view_.first = view_.lines.size() - std::min(view_.lines.size(), page_);
    view_.message.clear();
  }

  // Rung by the feed's threads.
  os::UniqueFd bell_;
  os::UniqueFd rope_;
  TopView view_;
  TopView::Kind before_text_ = TopView::Kind::kCluster;
  TopModel model_;
  size_t page_ = 1;
  bool asks_cancel_ = false;
  bool done_ = false;
  Mutex mu_;
  std::string message_ MESHRUN_GUARDED_BY(mu_);
  // Not shown yet.
  std::deque<Text> texts_ MESHRUN_GUARDED_BY(mu_);
  // Last: its threads use the others.
  TopFeed feed_;
};

int ShowOnce(const CoordinatorHttp& http, const TopFeed::Find& find) {
  TopFeed feed(http.target, find, [] {});
  feed.Follow(http.job_id);
  if (const absl::Status status = feed.Refresh(); !status.ok()) return Fail(status);
  TopView view;
  view.job = http.job_id;
  if (!http.job_id.empty()) view.kind = TopView::Kind::kJob;
  Style style = StyleOf(STDOUT_FILENO);
  if (!style.terminal) style.width = kAnyWidth;
  for (const std::string& row : DrawTopOnce(feed.model(), view, style)) Print(row + "\n");
  return kExitOk;
}

int Run(const TopFlags& flags) {
  if (!flags.once && (::isatty(STDIN_FILENO) == 0 || !StyleOf(STDOUT_FILENO).terminal)) {
    return Fail(absl::InvalidArgumentError(
        "standard input and output are not a terminal: --once prints the screen as text"));
  }
  // Kept: it goes to no leader of another cluster.
  const auto connection = Connect(flags.coordinator, flags.job);
  if (!connection.ok()) return Fail(connection.status());
  const auto http = FindHttp(*connection, flags.job);
  if (!http.ok()) return Fail(http.status());
  const TopFeed::Find find = [&connection]() -> absl::StatusOr<HttpTarget> {
    auto again = FindHttp(*connection, "");
    if (!again.ok()) return again.status();
    return std::move(again->target);
  };
  if (flags.once) return ShowOnce(*http, find);
  return Top(*http, find).Run();
}

}  // namespace

void AddTop(FlagSet& root, Commands* commands) {
  auto values = std::make_shared<TopFlags>();
  FlagSet flags = root.Command(
      "top",
      "Shows nodes and jobs on the terminal, as they change\n\n"
      "Jobs with their progress, time left and loss, the slowest rank, and the last lines of the "
      "rank that failed\n"
      "first; of a job each rank, by how many steps it is behind.");
  flags.Examples(
      "  meshrun top                 nodes and jobs; Enter shows the marked job, q ends\n"
      "  meshrun top geoid-k3x9w2    one job; the start of its id is enough\n"
      "  meshrun top --once          the screen as text, for scripts");
  flags.ListUnder("Look");
  flags.Argument("JOB", &values->job, /*required=*/false, "Job to show");
  flags.Switch("--once", &values->once, "Print the screen once, and end");
  AddCoordinatorFlags(flags, &values->coordinator);
  commands->push_back({flags.app(), [values] { return Run(*values); }});
}

}  // namespace meshrun::client
