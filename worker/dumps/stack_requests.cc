#include "worker/dumps/stack_requests.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <thread>

#include "worker/dumps/process_dump.h"
#include "worker/dumps/python_frames.h"

namespace meshrun::worker {
namespace {

using std::chrono::milliseconds;
using Answer = StackRequests::Answer;
using Request = StackRequests::Request;
using Time = StackRequests::Time;

// From the end of a look to the answer's arrival: the debugger lets the process go, and the answer
// travels.
constexpr milliseconds kWayBack(2000);
// gdb needs so much on a loaded host.
constexpr milliseconds kLeastShare(6000);

milliseconds Until(Time time) {
  return std::chrono::duration_cast<milliseconds>(time - std::chrono::steady_clock::now());
}

// 0 or less: nobody takes an answer any more.
milliseconds TimeFor(const Request& request) {
  if (request.give_up == Time::max()) return request.limit;
  const milliseconds left = Until(request.give_up);
  return std::min(request.limit, left - std::min(kWayBack, left / 2));
}

Answer NoAnswer(std::string why) {
  Answer answer;
  answer.stack.text = fmt::format("call stacks: none: {}\n", why);
  answer.stack.problem = std::move(why);
  return answer;
}

Answer TooLate(const StackRequests::Bounds& bounds) {
  return NoAnswer(
      fmt::format("the debuggers of its host ({} at once, {} for a job) were busy with other ranks "
                  "until the time for an answer was over",
                  bounds.at_once, bounds.of_a_job));
}

bool Holds(const Request& look, const Request& request) {
  return (look.frames || !request.frames) && (look.native || !request.native);
}

void Widen(const Request& request, Request* wanted) {
  wanted->frames = wanted->frames || request.frames;
  wanted->native = wanted->native || request.native;
  wanted->limit = std::max(wanted->limit, request.limit);
  wanted->give_up = std::max(wanted->give_up, request.give_up);
}

Answer LookAt(const Request& request) {
  const Time deadline = std::chrono::steady_clock::now() + request.limit;
  const pid_t pid = WorkingProcess(request.rank);
  Answer answer;
  if (request.frames) answer.stack = StackOf(pid, request.python_file, request.limit);
  if (request.native && RunsPython(pid)) {
    const milliseconds left = Until(deadline);
    answer.native = left > milliseconds(0)
                        ? NativeStack(pid, left).text
                        : "call stacks: none: Python's frames have taken all the time\n";
  }
  answer.threads = DescribeThreads(pid);
  return answer;
}

}  // namespace

StackRequests::StackRequests(FileTasks& files)
    : StackRequests(files, BoundsFor(std::thread::hardware_concurrency()), LookAt) {}

StackRequests::Bounds StackRequests::BoundsFor(size_t cores) {
  const size_t of_a_job = std::clamp<size_t>(cores / 2, 1, Bounds().of_a_job);
  return {2 * of_a_job, of_a_job};
}

void StackRequests::Ask(const Request& request, Done done) {
  const Key key = {request.job_id, request.rank};
  Process& process = processes_[key];
  const bool shares = process.running && Holds(process.running->wanted, request);
  if (!shares && !process.next) {
    process.next = Turn{request, {}};
    order_.push_back(key);
  }
  Turn& turn = shares ? *process.running : *process.next;
  if (turn.waiting.size() >= kMostWaiting) {
    done(NoAnswer(fmt::format("{} requests wait for it already", kMostWaiting)));
    return;
  }
  if (!shares) Widen(request, &turn.wanted);
  turn.waiting.push_back(std::move(done));
  StartDue();
}

void StackRequests::StartDue() {
  while (running_ < bounds_.at_once) {
    const auto due = std::find_if(order_.begin(), order_.end(), [this](const Key& key) {
      const auto of_job = running_of_job_.find(key.first);
      return !processes_.at(key).running &&
             (of_job == running_of_job_.end() || of_job->second < bounds_.of_a_job);
    });
    if (due == order_.end()) return;
    const Key key = *due;
    order_.erase(due);
    Start(key);
  }
}

milliseconds StackRequests::ShareOf(const Key& key) const {
  const auto waiting = static_cast<size_t>(std::count_if(
      order_.begin(), order_.end(), [&](const Key& other) { return other.first == key.first; }));
  const size_t turns = 1 + (waiting + bounds_.of_a_job - 1) / bounds_.of_a_job;
  const milliseconds time = TimeFor(processes_.at(key).running->wanted);
  return std::max(kLeastShare, time / static_cast<int64_t>(turns));
}

void StackRequests::Start(const Key& key) {
  Process& process = processes_.at(key);
  process.running = std::exchange(process.next, std::nullopt);
  ++running_;
  ++running_of_job_[key.first];
  const Request& wanted = process.running->wanted;
  if (TimeFor(wanted) <= milliseconds(0)) {
    End(key, TooLate(bounds_));
    return;
  }
  const auto answer = std::make_shared<Answer>();
  files_.Run(
      fmt::format("{}/stack-{}", key.first, key.second),
      [look = look_, bounds = bounds_, share = ShareOf(key), request = wanted, answer]() mutable {
        request.limit = std::min(TimeFor(request), share);
        *answer = request.limit > milliseconds(0) ? look(request) : TooLate(bounds);
      },
      [this, key, answer] { End(key, *answer); });
}

void StackRequests::End(const Key& key, const Answer& answer) {
  const auto process = processes_.find(key);
  const Turn turn = *std::exchange(process->second.running, std::nullopt);
  if (!process->second.next) processes_.erase(process);
  --running_;
  if (--running_of_job_.at(key.first) == 0) running_of_job_.erase(key.first);
  for (const Done& done : turn.waiting) done(answer);
  StartDue();
}

}  // namespace meshrun::worker
