// Requests for where the processes of ranks stand. One debugger at a time looks at a process: the
// kernel allows no second one. A request that comes meanwhile shares that debugger's answer; one
// that asks for more than it looks at shares the next look with all others that wait.
//
// Lives on the event loop; the looks are on threads of FileTasks. Bounds: `at_once` looks, so that
// the other threads stay for what generations need, and kMostWaiting requests for one look. A
// request beyond that, or whose time is over before a look begins, is answered with a reason.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "worker/dumps/process_stack.h"
#include "worker/files/file_tasks.h"

namespace meshrun::worker {

class StackRequests {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // Each reads the symbols of LibTorch into memory of its own, which keeps a core busy: a host with
  // few cores has one debugger at a time for a job.
  struct Bounds {
    size_t at_once = 16;
    size_t of_a_job = 8;
  };
  static Bounds BoundsFor(size_t cores);
  static constexpr size_t kMostWaiting = 64;

  struct Request {
    std::string job_id;
    // Process that was started as the rank; its WorkingProcess is looked at.
    pid_t rank = 0;
    // As of FramesOfPython.
    std::string python_file;
    // StackOf.
    bool frames = true;
    // Frames of machine code too, where it runs Python.
    bool native = false;
    // Longest time of the look.
    std::chrono::milliseconds limit{0};
    // No answer is taken after this.
    Time give_up = Time::max();
  };
  struct Answer {
    ProcessStack stack;
    // Text of the frames that `native` asks for.
    std::string native;
    // DescribeThreads.
    std::string threads;
  };
  using Done = std::function<void(const Answer&)>;
  using Look = std::function<Answer(const Request&)>;

  // `files` outlives this. `look` is another one in tests; it blocks.
  explicit StackRequests(FileTasks& files);
  StackRequests(FileTasks& files, Bounds bounds, Look look)
      : files_(files), bounds_(bounds), look_(std::move(look)) {}

  // Calls `done` on the loop; at once where the request is refused.
  void Ask(const Request& request, Done done);

 private:
  using Key = std::pair<std::string, pid_t>;
  struct Turn {
    // What all of them want.
    Request wanted;
    std::vector<Done> waiting;
  };
  struct Process {
    std::optional<Turn> running, next;
  };

  void StartDue();
  // So that other ranks of its job that wait have theirs.
  std::chrono::milliseconds ShareOf(const Key& key) const;
  void Start(const Key& key);
  void End(const Key& key, const Answer& answer);

  FileTasks& files_;
  const Bounds bounds_;
  const Look look_;
  std::map<Key, Process> processes_;
  // Processes whose next turn has not begun.
  std::deque<Key> order_;
  size_t running_ = 0;
  std::map<std::string, size_t> running_of_job_;
};

}  // namespace meshrun::worker
