// A program of the site that is called with each checkpoint once it is durable, to copy it to an
// object store, say: PROGRAM DIR/step-600. Calls follow one another; nobody waits for them but the
// end of the job. Without LibTorch.
//
// Threads: any. No errors: a call that fails is said, and changes nothing.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>

namespace meshrun {

class CommitHook {
 public:
  // `program`: a path, or a name that PATH leads to.
  CommitHook(std::string program, std::function<void(const std::string&)> say);
  CommitHook(const CommitHook&) = delete;
  CommitHook& operator=(const CommitHook&) = delete;

  // Calls it, after the calls before.
  void call(const std::string& checkpoint);
  // Names of the checkpoints, step-600, for which it has not ended: they stay until then.
  std::set<std::string> held() const;
  // Waits for all calls, at most so long. Returns whether they have ended.
  bool wait_for(std::chrono::milliseconds most) const;

 private:
  struct State {
    std::string program;
    std::function<void(const std::string&)> say;
    mutable std::mutex mu;
    std::condition_variable changed;
    std::deque<std::string> calls;  // under mu; the first one is under way
  };
  static void run(const std::shared_ptr<State>& state);

  const std::shared_ptr<State> state_;
};

}  // namespace meshrun
