#include "worker/event_loop/event_loop.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>

namespace meshrun::worker {

EventLoop::EventLoop() : wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

// The wake-up happens under the lock: the thread that sees the task may destroy the loop right
// after.
void EventLoop::Post(Task task) {
  MutexLock lock(mu_);
  const bool first = posted_.empty();
  posted_.push_back(std::move(task));
  if (first) ::eventfd_write(wake_.get(), 1);
}

void EventLoop::Stop() {
  MutexLock lock(mu_);
  stopping_ = true;
  ::eventfd_write(wake_.get(), 1);
}

void EventLoop::Run() {
  while (true) {
    RunPosted();
    {
      MutexLock lock(mu_);
      if (stopping_ && posted_.empty()) return;
    }
    RunTimers();
    PollOnce();
  }
}

EventLoop::TimerId EventLoop::After(std::chrono::nanoseconds delay, Task task) {
  const TimerId id = next_id_++;
  const Time at = std::chrono::steady_clock::now() + delay;
  timers_[id] = {at, std::move(task)};
  due_.emplace(at, id);
  return id;
}

void EventLoop::Cancel(TimerId id) {
  const auto timer = timers_.find(id);
  if (timer == timers_.end()) return;
  for (auto [it, end] = due_.equal_range(timer->second.at); it != end; ++it) {
    if (it->second == id) {
      due_.erase(it);
      break;
    }
  }
  timers_.erase(timer);
}

void EventLoop::Watch(int fd, short events, std::function<void(short)> on_ready) {
  watches_[fd] = {events, next_id_++, std::move(on_ready)};
}

void EventLoop::Unwatch(int fd) { watches_.erase(fd); }

void EventLoop::RunPosted() {
  std::vector<Task> tasks;
  {
    MutexLock lock(mu_);
    tasks.swap(posted_);
  }
  for (Task& task : tasks) task();
}

void EventLoop::RunTimers() {
  const Time now = std::chrono::steady_clock::now();
  while (!due_.empty() && due_.begin()->first <= now) {
    const TimerId id = due_.begin()->second;
    due_.erase(due_.begin());
    auto timer = timers_.extract(id);
    timer.mapped().task();
  }
}

int EventLoop::PollTimeout() const {
  if (due_.empty()) return -1;
  const auto wait = due_.begin()->first - std::chrono::steady_clock::now();
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(wait).count();
  return static_cast<int>(std::clamp<int64_t>(ms, 0, 60'000));
}

void EventLoop::PollOnce() {
  std::vector<pollfd> fds = {{wake_.get(), POLLIN, 0}};
  std::vector<uint64_t> ids = {0};
  for (const auto& [fd, watch] : watches_) {
    fds.push_back({fd, watch.events, 0});
    ids.push_back(watch.id);
  }
  if (::poll(fds.data(), fds.size(), PollTimeout()) <= 0) return;
  eventfd_t value;
  if (fds[0].revents != 0) ::eventfd_read(wake_.get(), &value);
  for (size_t i = 1; i < fds.size(); ++i) {
    if (fds[i].revents == 0) continue;
    // An earlier callback of this round may have removed the watch or reused the descriptor.
    const auto it = watches_.find(fds[i].fd);
    if (it == watches_.end() || it->second.id != ids[i]) continue;
    const auto on_ready = it->second.on_ready;
    on_ready(fds[i].revents);
  }
}

}  // namespace meshrun::worker
