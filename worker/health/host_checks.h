// Checks of this host, repeated: what they find keeps new jobs off it (HostHealth). Running ranks
// go on.
//
//   state directory   a small file can be written, synced and removed there; enough bytes are free
//   ports             the directory for claims on ports
//   GPUs              each GPU that is offered answers the driver
//   health check      the operator's own program exits with 0
//
// Lives on the event loop. Each check runs on a thread of FileTasks, so that a disk, a driver or a
// program that hangs holds up no other: it becomes a problem after its timeout.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "meshrun/v1/common.pb.h"
#include "worker/event_loop/event_loop.h"
#include "worker/files/file_tasks.h"

namespace meshrun::worker {

// The problem is a sentence for people; it has no figures that change by themselves, so that a
// problem that stays does not look like a new one.
using Problem = std::string;
// Empty: the host is well.
using Check = std::function<std::vector<Problem>()>;

// A file of some kilobytes can be written and synced below `directory`, and `least_free_bytes` and
// some names are free there.
std::vector<Problem> CheckDirectory(const std::string& directory, uint64_t least_free_bytes);

// Whether each of `offered` is among `present`, by UUID.
std::vector<Problem> CheckGpus(const std::vector<v1::Gpu>& offered,
                               const std::vector<v1::Gpu>& present);

// Runs the program without arguments, as this process's user; MESHRUN_NODE_NAME is the node's name.
// An exit code other than 0 is a problem, with the last line of the output. At the timeout the
// program's session is killed.
std::vector<Problem> RunHealthCheck(const std::string& program, const std::string& node_name,
                                    std::chrono::nanoseconds timeout);

class HostChecks {
 public:
  struct Options {
    std::chrono::nanoseconds interval = std::chrono::seconds(30);
    // A check that takes longer is a problem until it ends.
    std::chrono::nanoseconds timeout = std::chrono::seconds(10);
    // Start calls `on_first` at the latest then.
    std::chrono::nanoseconds first = std::chrono::milliseconds(300);
  };

  // `on_change`: the problems are others now.
  HostChecks(EventLoop& loop, FileTasks& files, Options options, std::function<void()> on_change);

  // `what` names it in sentences. Call before Start.
  void Add(std::string what, Check check) {
    Add(std::move(what), std::move(check), options_.timeout, false);
  }
  // A check that takes its time. Until it has ended once, the host counts as not well.
  void AddSlow(std::string what, Check check, std::chrono::nanoseconds timeout) {
    Add(std::move(what), std::move(check), timeout, true);
  }
  // `on_first`: all checks have ended once, or take longer than Options::first.
  void Start(std::function<void()> on_first);
  // In the order in which the checks were added.
  std::vector<Problem> problems() const;

 private:
  struct Entry {
    std::string what;
    Check check;
    std::chrono::nanoseconds timeout;
    bool is_slow;
    std::vector<Problem> problems;
    bool ended_once = false;
    EventLoop::TimerId timer = 0;
  };

  void Add(std::string what, Check check, std::chrono::nanoseconds timeout, bool is_slow);
  void Run(Entry& entry);
  void OnEnded(Entry& entry, std::vector<Problem> problems);
  void Set(Entry& entry, std::vector<Problem> problems);
  void EndFirst();

  EventLoop& loop_;
  FileTasks& files_;
  const Options options_;
  const std::function<void()> on_change_;
  std::function<void()> on_first_;
  std::vector<std::unique_ptr<Entry>> entries_;
};

}  // namespace meshrun::worker
